"""Convolutions that filter every channel by itself, for pictures whose channels are innermost in memory, on a GPU.

Such a filter does next to nothing with every number it reads, so what counts is to read few and in order. Pictures are
``[samples, height, width, channels]``, filters ``[9, channels]`` of 3 x 3, and pictures padded by one pixel. Gradients
of filters are added up in parts and in a fixed order, so that the same numbers give the same bits.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedarena.train.group_norm_kernels import accurate_type

_PIXELS, _CHANNELS = 64, 32  # of a block
_PIXELS_ADDED = 32  # the same where a gradient is added up, of so many blocks
_BLOCKS_ADDED = 16
_ANY = ["height", "width", "rows", "columns"]


@triton.jit
def _place(
    columns: tl.tensor, channels: tl.tensor, PIXELS: tl.constexpr, CHANNELS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Pixels of this program's block with their rows and columns, and its channels."""
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    return pixel, pixel // columns, pixel % columns, channel


@triton.jit(do_not_specialize=_ANY)
def _filter(
    x: tl.tensor,
    weight: tl.tensor,
    output: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    STRIDE: tl.constexpr,
    BACK: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Filters pictures of ``height`` and ``width`` to ``rows`` and ``columns``; ``BACK``: gradients to gradients."""
    pixel, row, column, channel = _place(columns, channels, PIXELS, CHANNELS)
    exists = channel < channels
    x += tl.program_id(2).to(tl.int64) * height * width * channels
    output += tl.program_id(2).to(tl.int64) * rows * columns * channels
    total = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    for down in tl.static_range(3):
        for across in tl.static_range(3):
            if BACK:
                above, left = row + 1 - down, column + 1 - across
                met = (above >= 0) & (left >= 0)
                if STRIDE > 1:
                    met = met & (above % STRIDE == 0) & (left % STRIDE == 0)
                    above, left = above // STRIDE, left // STRIDE
            else:
                above, left = row * STRIDE + down - 1, column * STRIDE + across - 1
                met = (above >= 0) & (left >= 0)
            met = met & (above < height) & (left < width) & (row < rows)
            where = ((above * width + left) * channels)[:, None] + channel[None, :]
            values = tl.load(x + where, mask=met[:, None] & exists[None, :], other=0.0).to(ACCURATE)
            factor = tl.load(weight + (down * 3 + across) * channels + channel, mask=exists, other=0.0)
            total += values * factor[None, :]
    place = pixel[:, None] * channels + channel[None, :]
    tl.store(output + place, total, mask=(row < rows)[:, None] & exists[None, :])


@triton.jit
def _products(
    slope: tl.tensor, x: tl.tensor, where: tl.tensor, met: tl.tensor, exists: tl.tensor, ACCURATE: tl.constexpr
) -> tl.tensor:
    values = tl.load(x + where, mask=met[:, None] & exists[None, :], other=0.0)
    return slope * values.to(ACCURATE)


@triton.jit(do_not_specialize=_ANY)
def _note_weights(
    x: tl.tensor,
    grad: tl.tensor,
    notes: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    STRIDE: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """The gradient of filters from some blocks of a sample's pixels."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    x += tl.program_id(2).to(tl.int64) * height * width * channels
    grad += tl.program_id(2).to(tl.int64) * rows * columns * channels
    above_left = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    above = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    above_right = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    left = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    middle = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    right = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    below_left = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    below = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    below_right = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    begin = tl.program_id(1) * PIXELS * BLOCKS
    for block in range(begin, tl.minimum(begin + PIXELS * BLOCKS, rows * columns), PIXELS):
        pixel = block + tl.arange(0, PIXELS)
        row, column = pixel // columns, pixel % columns
        inside = row < rows
        place = pixel[:, None] * channels + channel[None, :]
        slope = tl.load(grad + place, mask=inside[:, None] & exists[None, :], other=0.0).to(ACCURATE)
        down, across = row * STRIDE, column * STRIDE
        where = ((down * width + across) * channels)[:, None] + channel[None, :]
        to_left, to_right = inside & (across > 0), inside & (across + 1 < width)
        middle += _products(slope, x, where, inside, exists, ACCURATE)
        left += _products(slope, x, where - channels, to_left, exists, ACCURATE)
        right += _products(slope, x, where + channels, to_right, exists, ACCURATE)
        upper, has_upper = where - width * channels, down > 0
        above += _products(slope, x, upper, inside & has_upper, exists, ACCURATE)
        above_left += _products(slope, x, upper - channels, to_left & has_upper, exists, ACCURATE)
        above_right += _products(slope, x, upper + channels, to_right & has_upper, exists, ACCURATE)
        lower, has_lower = where + width * channels, down + 1 < height
        below += _products(slope, x, lower, inside & has_lower, exists, ACCURATE)
        below_left += _products(slope, x, lower - channels, to_left & has_lower, exists, ACCURATE)
        below_right += _products(slope, x, lower + channels, to_right & has_lower, exists, ACCURATE)
    note = notes + (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * 9 * channels + channel
    tl.store(note, tl.sum(above_left, 0), mask=exists)
    tl.store(note + channels, tl.sum(above, 0), mask=exists)
    tl.store(note + 2 * channels, tl.sum(above_right, 0), mask=exists)
    tl.store(note + 3 * channels, tl.sum(left, 0), mask=exists)
    tl.store(note + 4 * channels, tl.sum(middle, 0), mask=exists)
    tl.store(note + 5 * channels, tl.sum(right, 0), mask=exists)
    tl.store(note + 6 * channels, tl.sum(below_left, 0), mask=exists)
    tl.store(note + 7 * channels, tl.sum(below, 0), mask=exists)
    tl.store(note + 8 * channels, tl.sum(below_right, 0), mask=exists)


def filtered(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Filtered pictures."""
    samples, height, width, channels = x.shape
    rows, columns = (-(-side // stride) for side in (height, width))
    output = x.new_empty(samples, rows, columns, channels)
    _run_filter(x, weight, output, stride, back=False)
    return output


def gradient_of_pictures(grad: Tensor, weight: Tensor, stride: int, height: int, width: int) -> Tensor:
    """The gradient of what was filtered."""
    output = grad.new_empty(len(grad), height, width, grad.shape[3])
    _run_filter(grad, weight, output, stride, back=True)
    return output


def gradient_of_weights(x: Tensor, grad: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The gradient of filters."""
    samples, height, width, channels = x.shape
    rows, columns = grad.shape[1:3]
    parts = triton.cdiv(rows * columns, _PIXELS_ADDED * _BLOCKS_ADDED)
    notes = weight.new_empty(samples * parts, *weight.shape)
    _note_weights[triton.cdiv(channels, _CHANNELS), parts, samples](
        *(x, grad, notes, height, width, rows, columns, channels),
        STRIDE=stride,
        ACCURATE=accurate_type(weight),
        PIXELS=_PIXELS_ADDED,
        BLOCKS=_BLOCKS_ADDED,
        CHANNELS=_CHANNELS,
    )
    return notes.sum(0)


def _run_filter(x: Tensor, weight: Tensor, output: Tensor, stride: int, back: bool) -> None:
    samples, height, width, channels = x.shape
    rows, columns = output.shape[1:3]
    _filter[triton.cdiv(channels, _CHANNELS), triton.cdiv(rows * columns, _PIXELS), samples](
        *(x, weight, output, height, width, rows, columns, channels),
        STRIDE=stride,
        BACK=back,
        ACCURATE=accurate_type(weight),
        PIXELS=_PIXELS,
        CHANNELS=_CHANNELS,
    )
