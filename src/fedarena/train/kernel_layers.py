"""Layers of one client's pictures on a GPU by kernels of our own, with their gradients.

Pictures come and go as ``[samples, channels, height, width]`` with the channels innermost in memory. They may be
rounded more than weights are, whose gradients are as exact as they.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KernelGroupNorm(torch.autograd.Function):
    """Group normalization, and the ReLU that follows unless its `ceiling` is None; see `group_norm_kernels`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float, ceiling: float | None
    ) -> Tensor:
        """Normalizes pictures."""
        from fedarena.train import group_norm_kernels, small_group_norm_kernels

        pixels = _innermost(x).flatten(1, 2)
        is_small = small_group_norm_kernels.fit(pixels, groups)
        ctx.kernels = small_group_norm_kernels if is_small else group_norm_kernels
        output, mean, inverse = ctx.kernels.normalized(pixels, groups, weight, bias, eps, ceiling)
        ctx.save_for_backward(pixels, mean, inverse, weight, bias)
        ctx.ceiling, ctx.picture = ceiling, x.shape[2:]
        return _pictures(output, ctx.picture)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None, None]:
        """The gradients of pictures, weight and bias."""
        pixels, mean, inverse, weight, bias = ctx.saved_tensors
        slopes = _innermost(grad).flatten(1, 2)
        found = ctx.kernels.gradients(slopes, pixels, weight, bias, mean, inverse, ctx.ceiling)
        of_x, of_weight, of_bias = found
        return _pictures(of_x, ctx.picture), None, of_weight, of_bias, None, None


class DepthwiseConvolution(torch.autograd.Function):
    """A convolution that filters every channel by itself; see `depthwise_kernels`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Filters pictures, with filters of 3 x 3 and one pixel of padding."""
        from fedarena.train.depthwise_kernels import filtered

        pictures, filters = _innermost(x), weight.reshape(len(weight), 9)
        ctx.save_for_backward(pictures, filters)
        ctx.stride = stride
        return filtered(pictures, filters, stride).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of pictures and filters."""
        from fedarena.train.depthwise_kernels import gradients

        pictures, filters = ctx.saved_tensors
        of_pictures, of_filters = gradients(_innermost(grad), pictures, filters, ctx.stride)
        return of_pictures.permute(0, 3, 1, 2), of_filters.reshape(-1, 1, 3, 3), None


class PointwiseConvolution(torch.autograd.Function):
    """A convolution of single pixels as a product of matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Mixes the channels of every pixel."""
        pictures = _innermost(x)
        factors = weight.flatten(1).to(x.dtype)
        ctx.save_for_backward(pictures, factors)
        ctx.exact = weight.dtype
        ctx.strides = weight.stride() if weight.flatten(1).is_contiguous() else None
        output: Tensor = pictures @ factors.t()
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gradients of pictures and weights."""
        pictures, factors = ctx.saved_tensors
        slopes = _innermost(grad)
        of_x = (slopes @ factors).permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None
        rows, inputs = slopes.flatten(0, 2), pictures.flatten(0, 2)
        exactly = {} if rows.dtype == ctx.exact else {"out_dtype": ctx.exact}
        of_weight = torch.mm(rows.t(), inputs, **exactly)[:, :, None, None]
        # In the layout of the weight: optimizers take all parameters at once only if their gradients lie like them.
        return of_x, of_weight if ctx.strides is None else of_weight.as_strided(of_weight.shape, ctx.strides)


def _innermost(pictures: Tensor) -> Tensor:
    """Pictures ``[samples, height, width, channels]``."""
    return pictures.permute(0, 2, 3, 1).contiguous()


def _pictures(rows: Tensor, size: torch.Size) -> Tensor:
    return rows.view(len(rows), *size, -1).permute(0, 3, 1, 2)
