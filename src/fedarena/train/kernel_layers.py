"""Layers of one client's pictures on a GPU by kernels of our own, with their gradients.

Pictures come and go as ``[samples, channels, height, width]`` with the channels innermost in memory. They may be
rounded more than weights are, whose gradients are as exact as they.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.train.usable_kernels import picture_kernels

_ALIGNED = 8  # numbers of a row, or a multiple, which products read fastest


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
        return as_pictures(output, ctx.picture)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None, None]:
        """The gradients of pictures, weight and bias."""
        pixels, mean, inverse, weight, bias = ctx.saved_tensors
        slopes = _innermost(grad).flatten(1, 2)
        found = ctx.kernels.gradients(slopes, pixels, weight, bias, mean, inverse, ctx.ceiling)
        of_x, of_weight, of_bias = found
        return as_pictures(of_x, ctx.picture), None, of_weight, of_bias, None, None


class DepthwiseConvolution(torch.autograd.Function):
    """A convolution that filters every channel by itself; see `depthwise_kernels`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        """Filters pictures, with filters of 3 x 3 and one pixel of padding."""
        from fedarena.train.depthwise_kernels import filtered

        pictures, filters = _innermost(x), weight.flatten(1).contiguous()
        ctx.save_for_backward(pictures, filters)
        ctx.stride, ctx.layout = stride, _Layout(weight)
        return filtered(pictures, filters, stride).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of pictures and filters."""
        from fedarena.train.depthwise_gradient_kernels import gradients

        pictures, filters = ctx.saved_tensors
        of_pictures, of_filters, _ = gradients(_innermost(grad), pictures, filters, ctx.stride)
        return of_pictures.permute(0, 3, 1, 2), ctx.layout.of(of_filters), None


class NormalizedFilter(torch.autograd.Function):
    """Group normalization, a ReLU and a convolution that filters every channel by itself.

    What is between them is not kept. On the way back, the kernel of the filters makes it again from what was
    normalized, and the sums that the normalization needs at the same time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        groups: int,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        ceiling: float,
        filters: Tensor,
        stride: int,
    ) -> Tensor:
        """Filters what pictures come to when they are normalized; a `ceiling` of 0 is none."""
        from fedarena.train.depthwise_kernels import filtered
        from fedarena.train.group_norm_kernels import normalized

        pictures, each = _innermost(x), filters.flatten(1).contiguous()
        between, mean, inverse = normalized(pictures.flatten(1, 2), groups, weight, bias, eps, ceiling)
        ctx.save_for_backward(pictures, each, weight, bias, mean, inverse)
        ctx.stride, ctx.ceiling, ctx.layout = stride, ceiling, _Layout(filters)
        return filtered(between.view_as(pictures), each, stride).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None, None, Tensor, None]:
        """The gradients of pictures, weight, bias and filters."""
        from fedarena.train.depthwise_gradient_kernels import Norm, gradients
        from fedarena.train.group_norm_kernels import gradients_from_notes

        pictures, each, weight, bias, mean, inverse = ctx.saved_tensors
        norm = Norm(weight, bias, mean, inverse, ctx.ceiling)
        slopes, of_filters, notes = gradients(_innermost(grad), pictures, each, ctx.stride, norm)
        assert notes is not None
        rows = (slopes.flatten(1, 2), pictures.flatten(1, 2))
        of_x, of_weight, of_bias = gradients_from_notes(notes, *rows, weight, bias, mean, inverse, None)
        of_pictures = as_pictures(of_x, pictures.shape[1:3])
        return of_pictures, None, of_weight, of_bias, None, None, ctx.layout.of(of_filters), None


class PointwiseConvolution(torch.autograd.Function):
    """A convolution of single pixels as a product of matrices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Mixes the channels of every pixel."""
        pictures = _innermost(x)
        factors = weight.flatten(1).to(x.dtype)
        ctx.save_for_backward(pictures, factors)
        ctx.exact, ctx.layout = weight.dtype, _Layout(weight)
        output: Tensor = pictures @ factors.t()
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        """The gradients of pictures and weights."""
        pictures, factors = ctx.saved_tensors
        slopes = _innermost(grad)
        of_x = (slopes @ factors).permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None
        return of_x, ctx.layout.of(_product(slopes.flatten(0, 2), pictures.flatten(0, 2), ctx.exact))


class FirstConvolution(torch.autograd.Function):
    """A convolution of few colours, with small filters, of pictures whose gradient nobody wants: a product of patches.

    Libraries have no fast kernels for so few channels.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int, rounded: torch.dtype) -> Tensor:
        """Applies filters ``[outputs, colours, side, side]`` to numbers that are `rounded` to this type."""
        outputs, colours, side, _ = weight.shape
        numbers = side * side * colours
        filled_up = -(-numbers // _ALIGNED) * _ALIGNED
        patches = _patches(x, side, stride, padding, filled_up, rounded)
        factors = weight.new_zeros(outputs, filled_up, dtype=rounded)
        factors[:, :numbers] = weight.permute(0, 2, 3, 1).flatten(1)
        ctx.save_for_backward(patches)
        ctx.exact, ctx.layout, ctx.numbers = weight.dtype, _Layout(weight), numbers
        output: Tensor = patches @ factors.t()
        return output.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None, None]:
        """The gradient of filters."""
        (patches,) = ctx.saved_tensors
        of_factors = _product(_innermost(grad).flatten(0, 2), patches.flatten(0, 2), ctx.exact)
        return None, ctx.layout.of(of_factors[:, : ctx.numbers]), None, None, None


def _patches(x: Tensor, side: int, stride: int, padding: int, filled_up: int, dtype: torch.dtype) -> Tensor:
    """Patches of pictures, ``[samples, rows, columns, numbers]``: pixel by pixel, and zeros behind the last one."""
    kernels = picture_kernels(x)
    if kernels is not None:
        cut_up: Tensor = kernels.patches(x, side, stride, padding, filled_up, dtype)
        return cut_up
    pictures = F.pad(x.permute(0, 2, 3, 1), (0, 0, *[padding] * 4)).contiguous()
    rows, columns = ((length - side) // stride + 1 for length in pictures.shape[1:3])
    down, across = pictures.stride()[1:3]
    shape = (len(x), rows, columns, side, side * x.shape[1])
    strides = (pictures.stride(0), stride * down, stride * across, down, 1)
    patches = torch.zeros(len(x), rows, columns, filled_up, dtype=dtype, device=x.device)
    patches[..., : side * side * x.shape[1]].view(shape).copy_(pictures.as_strided(shape, strides))
    return patches


class _Layout:
    """How weights of a convolution lie in memory.

    Optimizers take all parameters at once only if their gradients lie like them, to the strides of single pixels.
    """

    def __init__(self, weight: Tensor):
        self._shape = weight.shape
        self._strides = weight.stride() if weight.permute(0, 2, 3, 1).is_contiguous() else None

    def of(self, gradient: Tensor) -> Tensor:
        """A gradient that is given as a matrix with a row for every output, in which channels are innermost."""
        gradient = gradient.contiguous()
        if self._strides is not None:
            return gradient.as_strided(self._shape, self._strides)
        outputs, inputs, height, width = self._shape
        return gradient.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


def _product(rows: Tensor, inputs: Tensor, exact: torch.dtype) -> Tensor:
    """The sum over rows of the products of both, as exact as weights are."""
    if rows.dtype == exact:
        return torch.mm(rows.t(), inputs)
    return torch.mm(rows.t(), inputs, out_dtype=exact)


def _innermost(pictures: Tensor) -> Tensor:
    """Pictures ``[samples, height, width, channels]``."""
    return pictures.permute(0, 2, 3, 1).contiguous()


def as_pictures(rows: Tensor, size: torch.Size) -> Tensor:
    """Pictures whose channels are innermost in memory, from rows of their pixels."""
    return rows.view(len(rows), *size, -1).permute(0, 3, 1, 2)
