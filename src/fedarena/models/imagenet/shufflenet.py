"""ShuffleNet-V2. Ma et al., "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design", ECCV 2018.

Structure, names of parameters and first weights are torchvision's.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedarena.models.imagenet.layers import MakeNorm, Norm, convolution, norm_maker
from fedarena.models.imagenet.network import ImageNetwork, require_photographs
from fedarena.models.sequences import in_sequence
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one

Size = Literal["x0.5", "x1.0", "x1.5", "x2.0"]
_FIRST = 24  # channels of the stem
_DEPTHS = (4, 8, 4)
# Table 5 of the paper: channels of the three stages, and before the last layer; of x2.0 as in torchvision's.
_WIDTHS: dict[Size, tuple[tuple[int, int, int], int]] = {
    "x0.5": ((48, 96, 192), 1024),
    "x1.0": ((116, 232, 464), 1024),
    "x1.5": ((176, 352, 704), 1024),
    "x2.0": ((244, 488, 976), 2048),
}


class ShuffleBlock(nn.Module):
    """One half of the channels is filtered, the other stays (or, where maps become smaller, is filtered otherwise).

    Both halves are then shuffled into each other.
    """

    adapted_behind = ("",)  # see `fedarena.models.adaptation.adapter`

    def __init__(self, inputs: int, outputs: int, stride: int, make_norm: MakeNorm):
        super().__init__()
        half = outputs // 2
        self.halves = stride == 1
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                *(convolution(inputs, inputs, 3, stride, groups=inputs), make_norm(inputs)),
                *(convolution(inputs, half, 1), make_norm(half, before_relu=0.0), nn.ReLU()),
            )
        self.branch2 = nn.Sequential(
            *(convolution(half if stride == 1 else inputs, half, 1), make_norm(half, before_relu=0.0), nn.ReLU()),
            *(convolution(half, half, 3, stride, groups=half), make_norm(half)),
            *(convolution(half, half, 1), make_norm(half, before_relu=0.0), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, `stride` times smaller."""
        first, second = x.chunk(2, dim=1) if self.halves else (x, x)
        both = torch.stack([self.branch1(first), in_sequence(self.branch2, second)], dim=2)
        return both.flatten(1, 2)  # one channel of this, one of that


class ShuffleNetV2(ImageNetwork):
    """Three stages of blocks, and the mean of what comes out."""

    def __init__(self, spec: DataSpec, size: Size, make_norm: MakeNorm, normalize: bool, small_images: bool):
        super().__init__(spec, make_norm, normalize)
        widths, last = _WIDTHS[size]
        channels = _FIRST
        stem = convolution(spec.input_shape[0], channels, 3, 1 if small_images else 2)
        self.conv1 = nn.Sequential(stem, make_norm(channels, before_relu=0.0), nn.ReLU())
        self.maxpool: nn.Module = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        for number, (width, depth) in enumerate(zip(widths, _DEPTHS, strict=True), 2):
            blocks: list[nn.Module] = [ShuffleBlock(channels, width, 2, make_norm)]
            blocks += [ShuffleBlock(width, width, 1, make_norm) for _ in range(depth - 1)]
            self.add_module(f"stage{number}", nn.Sequential(*blocks))
            channels = width
        self.conv5 = nn.Sequential(convolution(channels, last, 1), make_norm(last, before_relu=0.0), nn.ReLU())
        self.fc = nn.Linear(last, spec.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores ``[samples, classes]`` of pictures ``[samples, channels, height, width]``."""
        x = self.maxpool(self.conv1(self.colours(x)))
        for number in range(2, 2 + len(_DEPTHS)):
            x = self.get_submodule(f"stage{number}")(x)
        scores: Tensor = self.fc(self.conv5(x).mean((-2, -1)))
        return scores


@MODELS.register("shufflenet_v2")
def shufflenet_v2(
    spec: DataSpec,
    *,
    size: Size = "x1.0",
    norm: Norm = "group",
    groups: int = 2,
    normalize: bool = True,
    small_images: bool = False,
) -> nn.Module:
    """ShuffleNet-V2 as torchvision's, 2,278,604 parameters at 1,000 classes, 0.15 billion multiply-adds at 224.

    `size` is one of the four that are published, ``x0.5`` to ``x2.0``. With `small_images` the stem has no stride and
    no pooling. Other options are those of `resnet18_imagenet`.
    """
    require_photographs(spec, "shufflenet_v2")
    at_least_one(groups=groups)
    return ShuffleNetV2(spec, size, norm_maker(norm, groups), normalize, small_images)
