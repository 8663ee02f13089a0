"""Residual networks for photographs (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016).

Structure, names of parameters and first weights are torchvision's, whose bottlenecks have their stride in the 3x3
convolution. FLAIR's model is the ResNet-18: with GroupNorm from scratch, with frozen BatchNorm from ImageNet's weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedarena.models.imagenet.layers import MakeNorm, Norm, convolution, norm_maker
from fedarena.models.imagenet.network import ImageNetwork, require_photographs
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one

_WIDTHS = (64, 128, 256, 512)  # channels of the four stages


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added."""

    adapted_behind = ("",)  # see `fedarena.models.adaptation.adapter`
    expansion = 1  # channels that come out, for one within

    def __init__(self, inputs: int, width: int, stride: int, make_norm: MakeNorm):
        super().__init__()
        self.conv1, self.bn1 = convolution(inputs, width, 3, stride), make_norm(width, before_relu=0.0)
        self.conv2, self.bn2 = convolution(width, width, 3), make_norm(width)
        self.downsample = _shortcut(inputs, width, stride, make_norm)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, `stride` times smaller."""
        change = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(change + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, which narrow and widen, around which the input is added."""

    adapted_behind = ("",)
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, make_norm: MakeNorm):
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.bn1 = convolution(inputs, width, 1), make_norm(width, before_relu=0.0)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), make_norm(width, before_relu=0.0)
        self.conv3, self.bn3 = convolution(width, outputs, 1), make_norm(outputs)
        self.downsample = _shortcut(inputs, outputs, stride, make_norm)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, `stride` times smaller."""
        narrow = torch.relu(self.bn1(self.conv1(x)))
        change = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(narrow)))))
        return torch.relu(change + (x if self.downsample is None else self.downsample(x)))


def _shortcut(inputs: int, outputs: int, stride: int, make_norm: MakeNorm) -> nn.Sequential | None:
    """What the input goes through where its shape changes."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(convolution(inputs, outputs, 1, stride), make_norm(outputs))


class ResNet(ImageNetwork):
    """A 7x7 convolution with pooling, four stages of blocks, and the mean of what comes out."""

    def __init__(
        self,
        spec: DataSpec,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        make_norm: MakeNorm,
        normalize: bool,
        small_images: bool,
    ):
        super().__init__(spec, make_norm, normalize)
        channels = _WIDTHS[0]
        self.conv1 = convolution(spec.input_shape[0], channels, *((3, 1) if small_images else (7, 2)))
        self.bn1 = make_norm(channels, before_relu=0.0)
        self.maxpool: nn.Module = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        for number, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), 1):
            blocks: list[nn.Module] = []
            for place in range(depth):
                stride = 2 if number > 1 and place == 0 else 1
                blocks.append(block(channels, width, stride, make_norm))
                channels = width * block.expansion
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, spec.classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(self.colours(x)))))
        for number in range(1, len(_WIDTHS) + 1):
            x = self.get_submodule(f"layer{number}")(x)
        scores: Tensor = self.fc(x.mean((-2, -1)))
        return scores


def _resnet(
    name: str,
    spec: DataSpec,
    block: type[BasicBlock | Bottleneck],
    depths: Sequence[int],
    norm: Norm,
    groups: int,
    normalize: bool,
    small_images: bool,
) -> nn.Module:
    require_photographs(spec, name)
    at_least_one(groups=groups)
    return ResNet(spec, block, depths, norm_maker(norm, groups), normalize, small_images)


@MODELS.register("resnet18_imagenet")
def resnet18_imagenet(
    spec: DataSpec, *, norm: Norm = "group", groups: int = 32, normalize: bool = True, small_images: bool = False
) -> nn.Module:
    """ResNet-18 as torchvision's, 11,689,512 parameters at 1,000 classes, 1.8 billion multiply-adds at 224.

    The stem is a 7x7 convolution with pooling. `norm` is GroupNorm of `groups` groups, or with ``frozen_batch``
    BatchNorm whose statistics stay, for `weights` of torchvision. Colours are normalized as ImageNet's unless
    `normalize` is off. With `small_images` the stem is a 3x3 convolution without pooling.
    """
    return _resnet("resnet18_imagenet", spec, BasicBlock, (2, 2, 2, 2), norm, groups, normalize, small_images)


@MODELS.register("resnet34_imagenet")
def resnet34_imagenet(
    spec: DataSpec, *, norm: Norm = "group", groups: int = 32, normalize: bool = True, small_images: bool = False
) -> nn.Module:
    """ResNet-34 as torchvision's, 21,797,672 parameters at 1,000 classes, 3.7 billion multiply-adds at 224.

    Options are those of `resnet18_imagenet`.
    """
    return _resnet("resnet34_imagenet", spec, BasicBlock, (3, 4, 6, 3), norm, groups, normalize, small_images)


@MODELS.register("resnet50_imagenet")
def resnet50_imagenet(
    spec: DataSpec, *, norm: Norm = "group", groups: int = 32, normalize: bool = True, small_images: bool = False
) -> nn.Module:
    """ResNet-50 as torchvision's, 25,557,032 parameters at 1,000 classes, 4.1 billion multiply-adds at 224.

    Options are those of `resnet18_imagenet`.
    """
    return _resnet("resnet50_imagenet", spec, Bottleneck, (3, 4, 6, 3), norm, groups, normalize, small_images)
