"""Layers of many clients as matrix products, which GPUs are made for.

A convolution whose weights differ from client to client becomes a grouped convolution under `vmap`, which no library
runs well. Laying out the patches of the images as rows (im2col) turns it into one batched matrix product. The gradient
of an embedding adds up rows in whatever order the GPU finds; as the product with rows of zeros and a one, its order is
fixed, so that the same seed gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.train.convolution_kernels import LaneBias, LaneConvolution
from fedarena.train.replaced_layers import ReplacedLayers

Pair = tuple[int, int]


# With more rows than this, multiplying all of them costs more than adding up some.
_MOST_EMBEDDED = 1024


class LayersAsProducts(ReplacedLayers):
    """Within this context, two-dimensional convolutions and small embeddings are matrix products.

    With `kernels`, convolutions for which that is faster are products without patches being written down.
    """

    def __init__(self, kernels: bool = False):
        super().__init__({torch.conv2d: partial(_simple_convolution, kernels), F.embedding: _small_embedding})


def _simple_convolution(
    kernels: bool,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    kernel = weight.shape[-2:]
    if groups != 1 or _pair(dilation) != (1, 1) or input.dim() != 4:
        return None
    if isinstance(padding, str):
        if padding == "same" and any(size % 2 == 0 for size in kernel):
            return None
        padding = 0 if padding == "valid" else [size // 2 for size in kernel]
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if kernels and _pair(stride) == (1, 1) and input.dtype != torch.float64:
        pictures, own = (t.permute(0, 2, 3, 1).unsqueeze(0) for t in (input, weight))
        exact = not torch.backends.cuda.matmul.allow_tf32
        found = LaneConvolution.apply(pictures, own, _pair(padding), exact)  # type: ignore[no-untyped-call]
        if bias is not None:
            found = LaneBias.apply(found, bias.unsqueeze(0))  # type: ignore[no-untyped-call]
        pixels: Tensor = found.squeeze(0)
        return pixels.permute(0, 3, 1, 2)
    output: Tensor = _PatchProduct.apply(input, weight, _pair(stride), _pair(padding))[0]  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias.view(-1, 1, 1)


def _small_embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if len(weight) > _MOST_EMBEDDED or padding_idx is not None or max_norm is not None or scale_grad_by_freq or sparse:
        return None
    chosen = input.unsqueeze(-1) == torch.arange(len(weight), device=weight.device)
    return chosen.to(weight.dtype) @ weight


def _pair(value: int | Sequence[int]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class _PatchProduct(torch.autograd.Function):
    """Images are kept with their channels last, so that the rows of the product need not be moved again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        """The convolution of the images ``[batch, channels, height, width]``, and the patches for the gradient."""
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        windows = x.unfold(2, weight.shape[2], stride[0]).unfold(3, weight.shape[3], stride[1])
        windows = windows.permute(0, 2, 3, 1, 4, 5)  # batch, height, width, channels, kernel height, kernel width
        batch, height, width = windows.shape[:3]
        patches = windows.reshape(batch * height * width, -1)
        output = (patches @ weight.flatten(1).t()).view(batch, height, width, -1)
        return output.permute(0, 3, 1, 2), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps the patches: computing them again would cost as much as the product."""
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.image = x.shape[-2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """The gradients of images and weights."""
        weight, patches = ctx.saved_tensors
        batch, channels, height, width = grad.shape
        rows = grad.permute(0, 2, 3, 1).reshape(-1, channels)
        weight_grad = (rows.t() @ patches).view(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, weight_grad, None, None
        windows = (rows @ weight.flatten(1)).view(batch, height, width, *weight.shape[1:])
        return _fold(windows, ctx.image, ctx.stride, ctx.padding), weight_grad, None, None


def _fold(windows: Tensor, image: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Adds up windows ``[batch, height, width, channels, kernel height, kernel width]`` where they lie in the image.

    A sum of shifted images: a compiler makes one pass over memory of it.
    """
    batch, height, width, channels, *kernel = windows.shape
    total: Tensor | None = None
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            piece = windows[..., row, column]
            if stride != (1, 1):  # between two windows there are pixels that this place of the kernel does not touch
                spread = F.pad(piece.unsqueeze(3).unsqueeze(2), (0, 0, 0, stride[1] - 1, 0, 0, 0, stride[0] - 1))
                piece = spread.reshape(batch, height * stride[0], width * stride[1], channels)
            top, left = row - padding[0], column - padding[1]
            if min(top + piece.shape[1], left + piece.shape[2]) <= 0 or top >= image[0] or left >= image[1]:
                continue  # of a picture smaller than the kernel, this place never meets a pixel
            piece = F.pad(piece, (0, 0, left, image[1] - left - piece.shape[2], top, image[0] - top - piece.shape[1]))
            total = piece if total is None else total + piece
    assert total is not None
    return total.permute(0, 3, 1, 2)
