"""Residual networks for small images (He et al., CVPR 2016), with GroupNorm in place of BatchNorm."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.normalization import GroupNormBeforeReLU
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added; where the shape changes, through a 1x1 convolution."""

    adapted_behind = ("",)  # see `fedarena.models.adaptation.adapter`

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.change = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            GroupNormBeforeReLU(groups, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(groups, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps, `stride` times smaller."""
        return torch.relu(self.change(x) + self.shortcut(x))


class AverageOverImage(nn.Module):
    """The mean of every channel."""

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[samples, channels]`` of feature maps ``[samples, channels, height, width]``."""
        return x.mean((-2, -1))


@MODELS.register("resnet18")
def resnet18(spec: DataSpec, *, width: int = 64, groups: int = 2) -> nn.Module:
    """ResNet-18 for small images: a 3x3 stem without pooling, four stages of two blocks, GroupNorm of `groups` groups.

    `width` is the number of channels of the first stage; each further one has twice as many. 11.2 million parameters
    on 32 x 32 pictures.
    """
    require(spec.is_image, "resnet18", "images (channels, height, width)", spec)
    at_least_one(width=width, groups=groups)
    if width % groups:
        raise BadInputError(f"model.width must be a multiple of model.groups, but {width} is not one of {groups}")
    layers: list[nn.Module] = [
        nn.Conv2d(spec.input_shape[0], width, 3, padding=1, bias=False),
        GroupNormBeforeReLU(groups, width),
        nn.ReLU(),
    ]
    for inputs, outputs in itertools.pairwise([width, width, 2 * width, 4 * width, 8 * width]):
        layers.append(ResidualBlock(inputs, outputs, stride=outputs // inputs, groups=groups))
        layers.append(ResidualBlock(outputs, outputs, stride=1, groups=groups))
    model = nn.Sequential(*layers, AverageOverImage(), nn.Linear(8 * width, spec.classes))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model
