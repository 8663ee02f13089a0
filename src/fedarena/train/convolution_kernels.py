"""Convolutions of many clients, each with weights of its own, as kernels for a GPU.

What `products` writes down as patches, these kernels read from the pictures themselves while they multiply: the product
is the same, but nothing of the size of patches goes through memory. Pictures are ``[lanes, samples, height, width,
channels]`` here, kernels ``[lanes, outputs, height, width, channels]``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fedarena.train.operations import Operation

try:
    import triton
    import triton.language as tl
except ImportError:  # where torch comes without a compiler for GPUs
    triton = None

if triton is not None:

    @triton.jit
    def _rows_of_pictures(
        x, rows, of_lane, k, begin, height, width, out_height, out_width,
        CHANNELS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
        PAD_H: tl.constexpr, PAD_W: tl.constexpr, ONE_TAP: tl.constexpr,
    ):  # fmt: skip
        """What the numbers `k` of the patches that belong to some rows of a lane's product are."""
        column, row = rows % out_width, rows // out_width
        row, sample = row % out_height, row // out_height
        if ONE_TAP:  # all of them are of one place of the kernel, which begins with `begin`
            tap = begin // CHANNELS
            top, left = row + (tap // KERNEL_W - PAD_H), column + (tap % KERNEL_W - PAD_W)
            inside = (rows < of_lane) & (top >= 0) & (top < height) & (left >= 0) & (left < width)
            at = ((sample * height + top) * width + left) * CHANNELS
            channel = tl.multiple_of(begin % CHANNELS, 16)
            return tl.load(x + at[:, None] + (channel + k)[None, :], mask=inside[:, None], other=0.0)
        numbers = begin + k
        tap, channel = numbers // CHANNELS, numbers % CHANNELS
        top = row[:, None] + (tap // KERNEL_W - PAD_H)[None, :]
        left = column[:, None] + (tap % KERNEL_W - PAD_W)[None, :]
        inside = (top >= 0) & (top < height) & (left >= 0) & (left < width)
        inside = inside & (rows < of_lane)[:, None] & (tap < KERNEL_H * KERNEL_W)[None, :]
        at = ((sample[:, None] * height + top) * width + left) * CHANNELS + channel[None, :]
        return tl.load(x + at, mask=inside, other=0.0)

    @triton.jit
    def _convolve(
        x, weight, out, samples, height, width, out_height, out_width,
        CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
        PAD_H: tl.constexpr, PAD_W: tl.constexpr, PRECISION: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONE_TAP: tl.constexpr,
    ):  # fmt: skip
        lane = tl.program_id(2).to(tl.int64)
        of_lane = samples * out_height * out_width
        patch: tl.constexpr = KERNEL_H * KERNEL_W * CHANNELS
        x += lane * samples * height * width * CHANNELS
        weight += lane * OUTPUTS * patch
        out += lane * of_lane * OUTPUTS
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        k = tl.arange(0, DEPTH)
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for begin in range(0, patch, DEPTH):
            a = _rows_of_pictures(
                x, rows, of_lane, k, begin, height, width, out_height, out_width,
                CHANNELS, KERNEL_H, KERNEL_W, PAD_H, PAD_W, ONE_TAP,
            )  # fmt: skip
            numbers = begin + k
            known = (numbers < patch)[:, None] & (columns < OUTPUTS)[None, :]
            b = tl.load(weight + columns[None, :] * patch + numbers[:, None], mask=known, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        at = rows[:, None] * OUTPUTS + columns[None, :]
        tl.store(
            out + at, total.to(out.dtype.element_ty), mask=(rows < of_lane)[:, None] & (columns < OUTPUTS)[None, :]
        )

    @triton.jit
    def _weight_gradient(
        x, grad, out, samples, height, width, out_height, out_width,
        CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
        PAD_H: tl.constexpr, PAD_W: tl.constexpr, PRECISION: tl.constexpr,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONE_TAP: tl.constexpr,
    ):  # fmt: skip
        lane = tl.program_id(2).to(tl.int64)
        of_lane = samples * out_height * out_width
        patch: tl.constexpr = KERNEL_H * KERNEL_W * CHANNELS
        x += lane * samples * height * width * CHANNELS
        grad += lane * of_lane * OUTPUTS
        out += lane * OUTPUTS * patch
        begin = tl.program_id(0) * DEPTH
        k = tl.arange(0, DEPTH)
        columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros((COLUMNS, DEPTH), dtype=tl.float32)
        for first in range(0, of_lane, ROWS):
            rows = first + tl.arange(0, ROWS)
            a = _rows_of_pictures(
                x, rows, of_lane, k, begin, height, width, out_height, out_width,
                CHANNELS, KERNEL_H, KERNEL_W, PAD_H, PAD_W, ONE_TAP,
            )  # fmt: skip
            known = (rows < of_lane)[None, :] & (columns < OUTPUTS)[:, None]
            b = tl.load(grad + rows[None, :] * OUTPUTS + columns[:, None], mask=known, other=0.0)
            total = tl.dot(b, a, total, input_precision=PRECISION)
        numbers = begin + k
        at = columns[:, None] * patch + numbers[None, :]
        tl.store(
            out + at, total.to(out.dtype.element_ty), mask=(columns < OUTPUTS)[:, None] & (numbers < patch)[None, :]
        )


Pair = tuple[int, int]


def available() -> bool:
    """Whether such kernels can be made here."""
    return triton is not None


def tiles(channels: int, outputs: int, rows: int) -> dict[str, int]:
    """How the product of a lane is divided among processors: by sizes alone."""
    columns = min(128, max(16, 1 << (outputs - 1).bit_length()))
    return {
        "ROWS": 128 if rows > 64 else 64,
        "COLUMNS": columns,
        "DEPTH": 32,
        "num_warps": 8 if columns == 128 else 4,
        "num_stages": 3,
    }


def gradient_tiles(channels: int, outputs: int) -> dict[str, int]:
    """The same for gradients of weights."""
    depth = 32 if channels % 64 else 64 if channels % 128 else 128
    columns = min(128, max(16, 1 << (outputs - 1).bit_length()))
    large = depth == 128
    return {
        "ROWS": 32 if large else 64,
        "COLUMNS": columns,
        "DEPTH": depth,
        "num_warps": 8 if large else 4,
        "num_stages": 3,
    }


def convolve(x: Tensor, weight: Tensor, padding: Pair, exact: bool, own: dict[str, int] | None = None) -> Tensor:
    """Every lane's convolution, one pixel at a time; unless it is `exact`, with inputs rounded to tf32."""
    lanes, samples, height, width, channels = x.shape
    outputs, kernel_h, kernel_w = weight.shape[1:4]
    out = _output(x, weight, *padding)
    out_height, out_width = out.shape[2:4]
    rows = samples * out_height * out_width
    t = own or tiles(channels, outputs, rows)
    grid = (triton.cdiv(rows, t["ROWS"]), triton.cdiv(outputs, t["COLUMNS"]), lanes)
    _convolve[grid](
        x.contiguous(), weight.contiguous(), out, samples, height, width, out_height, out_width,
        CHANNELS=channels, OUTPUTS=outputs, KERNEL_H=kernel_h, KERNEL_W=kernel_w, PAD_H=padding[0], PAD_W=padding[1],
        PRECISION="ieee" if exact else "tf32", ONE_TAP=channels % t["DEPTH"] == 0, **t,
    )  # fmt: skip
    return out


def weight_gradient(
    x: Tensor, grad: Tensor, kernel: Pair, padding: Pair, exact: bool, own: dict[str, int] | None = None
) -> Tensor:
    """The gradients of every lane's weights, from the pictures that came in and the gradients of what went out."""
    lanes, samples, height, width, channels = x.shape
    out_height, out_width, outputs = grad.shape[2:]
    out = x.new_empty(lanes, outputs, *kernel, channels)
    t = own or gradient_tiles(channels, outputs)
    grid = (triton.cdiv(kernel[0] * kernel[1] * channels, t["DEPTH"]), triton.cdiv(outputs, t["COLUMNS"]), lanes)
    _weight_gradient[grid](
        x.contiguous(), grad.contiguous(), out, samples, height, width, out_height, out_width,
        CHANNELS=channels, OUTPUTS=outputs, KERNEL_H=kernel[0], KERNEL_W=kernel[1], PAD_H=padding[0], PAD_W=padding[1],
        PRECISION="ieee" if exact else "tf32", ONE_TAP=channels % t["DEPTH"] == 0, **t,
    )  # fmt: skip
    return out


def _output(x: Tensor, weight: Tensor, pad_h: int, pad_w: int) -> Tensor:
    lanes, samples, height, width, _ = x.shape
    outputs, kernel_h, kernel_w = weight.shape[1:4]
    return x.new_empty(lanes, samples, height + 2 * pad_h - kernel_h + 1, width + 2 * pad_w - kernel_w + 1, outputs)


def _run_convolve(x: Tensor, weight: Tensor, pad_h: int, pad_w: int, exact: bool) -> Tensor:
    return convolve(x, weight, (pad_h, pad_w), exact)


def _run_gradient(x: Tensor, grad: Tensor, kernel_h: int, kernel_w: int, pad_h: int, pad_w: int, exact: bool) -> Tensor:
    return weight_gradient(x, grad, (kernel_h, kernel_w), (pad_h, pad_w), exact)


_CONVOLVE = Operation(
    "convolve_lanes",
    _run_convolve,
    lambda x, weight, pad_h, pad_w, exact: _output(x, weight, pad_h, pad_w),
    for_gpus=True,
)
_WEIGHT_GRADIENT = Operation(
    "convolution_weights_of_lanes",
    _run_gradient,
    lambda x, grad, kernel_h, kernel_w, *_: x.new_empty(len(x), grad.shape[-1], kernel_h, kernel_w, x.shape[-1]),
    for_gpus=True,
)


class _OfLanes(Function):
    """A function of tensors whose first dimension is the lanes'; under `vmap` there are more lanes."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        """All at once."""
        count: int = info.batch_size
        given = []
        for value, dim in zip(args, in_dims, strict=True):
            if isinstance(value, Tensor):
                value = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
                value = value.flatten(0, 1)
            given.append(value)
        result: Tensor = cls.apply(*given)  # type: ignore[no-untyped-call]
        return result.unflatten(0, (count, -1)), 0


class _InputGradient(_OfLanes):
    """A convolution of gradients with the kernels turned around."""

    @staticmethod
    def forward(grad: Tensor, weight: Tensor, padding: Pair, exact: bool) -> Tensor:
        """Gradients of pictures."""
        kernel_h, kernel_w = weight.shape[2:4]
        turned = weight.flip(2, 3).permute(0, 4, 2, 3, 1).contiguous()
        found: Tensor = _CONVOLVE(grad, turned, kernel_h - 1 - padding[0], kernel_w - 1 - padding[1], exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


class _WeightGradient(_OfLanes):
    """A product of patches and gradients."""

    @staticmethod
    def forward(x: Tensor, grad: Tensor, kernel: Pair, padding: Pair, exact: bool) -> Tensor:
        """Gradients of weights."""
        found: Tensor = _WEIGHT_GRADIENT(x, grad, *kernel, *padding, exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""


class LaneConvolution(_OfLanes):
    """The convolution of every lane, with steps of one pixel."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: Pair, exact: bool) -> Tensor:
        """What comes out, ``[lanes, samples, height, width, outputs]``."""
        found: Tensor = _CONVOLVE(x, weight, *padding, exact)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keeps what came in."""
        x, weight, ctx.padding, ctx.exact = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """The gradients of pictures and weights."""
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        of_weight = _WeightGradient.apply(x, grad, tuple(weight.shape[2:4]), ctx.padding, ctx.exact)  # type: ignore[no-untyped-call]
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _InputGradient.apply(grad, weight, ctx.padding, ctx.exact)  # type: ignore[no-untyped-call]
        return of_x, of_weight, None, None
