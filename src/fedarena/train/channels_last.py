"""Layers for pictures whose channels are innermost in memory, the layout in which GPUs convolve fastest.

Torch's group normalization wants another layout, so that pictures would be turned around before and after each, and
gives a whole group of a sample to one processor of the GPU, of which there are many more than a client has samples.
Where kernels of our own can be made, they normalize, and apply a ReLU while they are at it; others filter channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.models.augmentation.pixels import picked
from fedarena.models.normalization import group_norm_before_relu
from fedarena.models.sequences import in_sequence
from fedarena.train.joined_layers import join_in_sequence
from fedarena.train.kernel_layers import (
    DepthwiseConvolution,
    FirstConvolution,
    KernelGroupNorm,
    PointwiseConvolution,
    as_pictures,
)
from fedarena.train.replaced_layers import ReplacedLayers
from fedarena.train.usable_kernels import group_norm_kernels, picture_kernels

_MOST_OF_A_PATCH = 32  # numbers; larger patches take more memory than they are worth


class ChannelsInnermost(ReplacedLayers):
    """Within this context, layers leave pictures in the layout in which they come, and do so as fast as they can."""

    def __init__(self) -> None:
        super().__init__(
            {
                F.group_norm: _group_norm,
                group_norm_before_relu: _group_norm,
                F.hardtanh: _unless_done,
                F.relu: _unless_done,
                torch.relu: _unless_done,
                torch.conv2d: _convolution,
                picked: _picked,
                in_sequence: _in_sequence,
            }
        )


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    ceiling: float | None = None,
) -> Tensor | None:
    if input.dim() != 4 or weight is None or bias is None:
        return None
    output: Tensor
    if group_norm_kernels(input) is not None:
        output = KernelGroupNorm.apply(input, num_groups, weight, bias, eps, ceiling)  # type: ignore[no-untyped-call]
        if ceiling is not None:
            output.relu_done = ceiling  # type: ignore[attr-defined]
        return output
    if input.dtype != weight.dtype:
        return None
    output = _GroupNorm.apply(input, num_groups, weight, bias, eps)  # type: ignore[no-untyped-call]
    return output


def _unless_done(input: Tensor, min_val: float = 0.0, max_val: float = 0.0, inplace: bool = False) -> Tensor | None:
    """What the normalization before has made of it already, if it was to the same ceiling."""
    return input if min_val == 0 and getattr(input, "relu_done", None) == max_val else None


def _in_sequence(layers: nn.Sequential, x: Tensor) -> Tensor:
    with ChannelsInnermost():
        return join_in_sequence(layers, x)


def _picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor | None:
    kernels = picture_kernels(x)
    return kernels.picked(x, rows, columns) if kernels is not None and not x.requires_grad else None


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """As a product, if it mixes the channels of every pixel; by kernels, if it filters every channel by itself."""
    if bias is not None or input.dim() != 4 or not input.is_cuda or _pair(dilation) != (1, 1):
        return None
    layer = _convolution_layer(input, weight, _pair(stride), _pair(padding), groups)
    if layer is None:
        return None
    rounded = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else input.dtype
    output: Tensor = layer(input, weight, rounded)
    return output


def _convolution_layer(
    input: Tensor, weight: Tensor, stride: tuple[Any, Any], padding: tuple[Any, Any], groups: int
) -> Callable[[Tensor, Tensor, torch.dtype], Tensor] | None:
    """What computes such a convolution of rounded numbers faster than the library, if anything does."""
    side = tuple(weight.shape[2:])
    if (groups, side, stride, padding) == (1, (1, 1), (1, 1), (0, 0)):
        return lambda x, w, rounded: PointwiseConvolution.apply(x.to(rounded), w)  # type: ignore[no-untyped-call]
    alike = side[0] == side[1] and stride[0] == stride[1] and padding[0] == padding[1] and isinstance(padding[0], int)
    if groups == 1 and alike and not input.requires_grad and weight[0].numel() <= _MOST_OF_A_PATCH:
        return lambda x, w, rounded: FirstConvolution.apply(x, w, stride[0], padding[0], rounded)  # type: ignore[no-untyped-call]
    filters = groups == len(weight) == input.shape[1] and (side, padding) == ((3, 3), (1, 1))
    if filters and stride in ((1, 1), (2, 2)) and group_norm_kernels(input) is not None:
        return lambda x, w, rounded: DepthwiseConvolution.apply(x.to(rounded), w, stride[0])  # type: ignore[no-untyped-call]
    return None


def _pair(value: int | Sequence[int] | str) -> tuple[Any, Any]:
    if isinstance(value, int | str):
        return value, value
    return (value[0], value[0]) if len(value) == 1 else (value[0], value[1])


class _GroupNorm(torch.autograd.Function):
    """The same where there are no kernels. Pictures are ``[batch, pixels, groups, channels of a group]`` here.

    Small clients wait for how many operations there are rather than for how much each does, so there are few.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalizes ``[batch, channels, height, width]``."""
        ctx.picture, ctx.groups = x.shape[2:], groups
        x, weight, bias = _rows(x, groups), weight.view(groups, -1), bias.view(groups, -1)
        variance, mean = torch.var_mean(x, dim=(1, 3), correction=0, keepdim=True)
        inverse = (variance + eps).rsqrt()
        scale = inverse * weight
        output = torch.addcmul(torch.addcmul(bias, mean, scale, value=-1), x, scale)
        ctx.save_for_backward(x, mean, inverse, scale, weight)
        return as_pictures(output, ctx.picture)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        """The gradients of pictures, weight and bias."""
        x, mean, inverse, scale, weight = ctx.saved_tensors
        grad = _rows(grad, ctx.groups)
        sums = grad.new_empty(2, len(x), 1, *weight.shape)  # of gradients, and of their products with x
        torch.sum(grad, 1, keepdim=True, out=sums[0])
        torch.sum(grad * x, 1, keepdim=True, out=sums[1])
        of_all, of_products = (sums * weight).sum(-1, keepdim=True).unbind()
        mean_inverse = inverse / (x.shape[1] * x.shape[3])
        slope = torch.addcmul(of_products, of_all, mean, value=-1) * (inverse * inverse * mean_inverse)  # downwards
        shift = torch.addcmul(slope * mean, of_all, mean_inverse, value=-1)
        of_x = torch.addcmul(torch.addcmul(shift, x, slope, value=-1), grad, scale)
        of_weight = (torch.addcmul(sums[1], sums[0], mean, value=-1) * inverse).sum(0)
        return as_pictures(of_x, ctx.picture), None, of_weight.flatten(), sums[0].sum(0).flatten(), None


def _rows(x: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).reshape(batch, height * width, groups, channels // groups)
