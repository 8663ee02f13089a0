"""What networks for photographs share: normalization of pictures and of features."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.normalization import GroupNormBeforeReLU

Norm = Literal["group", "frozen_batch"]
Colours = tuple[float, float, float]

# Mean and standard deviation of red, green and blue on ImageNet, for pictures from 0 to 1.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)
_EPSILON = 1e-5  # of torch's BatchNorm and GroupNorm


class NormalizedColours(nn.Module):
    """Pictures from 0 to 1 less a mean, over a standard deviation; by default ImageNet's, as published weights expect.

    Where there are not three channels, each has the mean of what red, green and blue have.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int, mean: Colours = _MEAN, deviation: Colours = _DEVIATION):
        super().__init__()
        # Not in files of weights, where torchvision has no such thing either.
        for name, values in (("mean", mean), ("deviation", deviation)):
            each = torch.tensor(values)
            each = each if channels == len(values) else each.mean().expand(channels).clone()
            self.register_buffer(name, each.view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures ``[samples, channels, height, width]`` with about mean 0 and deviation 1."""
        return (x - self.mean) / self.deviation


class FrozenBatchNorm(nn.Module):
    """BatchNorm whose statistics are those of a pretraining and stay; scale and bias are trained.

    Nothing depends on whose pictures are in a batch, so nothing leaks between clients, and many of them train at once.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of the same shape."""
        scale = self.weight * (self.running_var + _EPSILON).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)

    def extra_repr(self) -> str:
        """What torch shows of the layer."""
        return str(len(self.weight))


class MakeNorm(Protocol):
    """Makes a normalization layer for so many channels."""

    def __call__(self, channels: int, before_relu: float | None = None) -> nn.Module:
        """The layer; `before_relu` is the ceiling of a ReLU (0: it has none) into which alone its output goes."""


def norm_maker(norm: Norm, groups: int) -> MakeNorm:
    """What makes the normalization layers of a network."""
    if norm == "frozen_batch":
        return frozen_batch_norm

    def group_norm(channels: int, before_relu: float | None = None) -> nn.Module:
        if channels % groups:
            raise BadInputError(f"model.groups is {groups}, but a layer of the model has {channels} channels to divide")
        if before_relu is None:
            return nn.GroupNorm(groups, channels)
        return GroupNormBeforeReLU(groups, channels, before_relu)

    return group_norm


def frozen_batch_norm(channels: int, before_relu: float | None = None) -> nn.Module:
    """Frozen BatchNorm, whatever follows."""
    return FrozenBatchNorm(channels)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias, which the normalization after it has, around which pictures are padded."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
