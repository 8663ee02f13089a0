"""Convolutions that filter every channel by itself, for pictures whose channels are innermost in memory, on a GPU.

Such a filter does next to nothing with every number it reads, so what counts is to read each once and in order.
Pictures are ``[samples, height, width, channels]``, filters ``[channels, 9]`` of 3 x 3, and pictures padded by one
pixel. A program takes a strip of columns from row to row and keeps what the next rows need. How large strips are was
found by trying, with MobileNet-V2's layers in bf16. Gradients are in `depthwise_gradient_kernels`.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedarena.train.group_norm_kernels import accurate_type

# Of a strip: channels, and at most so many columns and rows of what comes out.
_CHANNELS, _COLUMNS, _ROWS = 32, 8, 14
_WARPS = 1
_STAGES = 3  # rows that are on their way from memory
ANY = ["height", "width", "rows", "columns", "groups"]


@triton.jit
def strip(
    rows: tl.tensor, columns: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """This program's columns and channels as numbers ``[columns, 1]`` and ``[1, channels]``, and its rows."""
    strips = tl.cdiv(columns, COLUMNS)
    column = tl.program_id(1) % strips * COLUMNS + tl.arange(0, COLUMNS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    begin = tl.program_id(1) // strips * ROWS
    return column[:, None], channel[None, :], begin, tl.minimum(begin + ROWS, rows)


@triton.jit
def read(
    x: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    pitch: tl.tensor,
    where: tl.tensor,
    inside: tl.tensor,
    ACCURATE: tl.constexpr,
) -> tl.tensor:
    """Numbers at these places of a row; 0 where there are none, as in all rows but those from the first to the end."""
    there = inside & ((row >= first) & (row < end))
    return tl.load(x + row * pitch + where, mask=there, other=0.0).to(ACCURATE)


@triton.jit
def three_filters(
    filters: tl.tensor, channel: tl.tensor, channels: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A row of every channel's filter, of which the first channel's begins here."""
    exists = channel < channels
    left = tl.load(filters + channel * 9, mask=exists, other=0.0)
    middle = tl.load(filters + channel * 9 + 1, mask=exists, other=0.0)
    right = tl.load(filters + channel * 9 + 2, mask=exists, other=0.0)
    return left, middle, right


@triton.jit(do_not_specialize=ANY)
def _filter(
    x: tl.tensor,
    filters: tl.tensor,
    output: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    channels: tl.tensor,
    STRIDE: tl.constexpr,
    ACCURATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Filters pictures of ``height`` and ``width`` to ``rows`` and ``columns``."""
    column, channel, begin, end = strip(rows, columns, ROWS, COLUMNS, CHANNELS)
    sample = tl.program_id(2).to(tl.int64)
    x += sample * height * width * channels
    output += sample * rows * columns * channels
    upper_left, upper, upper_right = three_filters(filters, channel, channels)
    on_left, middle, on_right = three_filters(filters + 3, channel, channels)
    lower_left, lower, lower_right = three_filters(filters + 6, channel, channels)
    pitch, across, exists = width * channels, column * STRIDE, channel < channels
    where = across * channels + channel
    in_left, in_middle = exists & (across > 0) & (across <= width), exists & (across < width)
    in_right = exists & (across + 1 < width)
    to, kept = column * channels + channel, exists & (column < columns)
    # What rows so far come to, of the next row of the output and of the one after it.
    nothing = tl.zeros([COLUMNS, CHANNELS], ACCURATE)
    next_one, after_it = nothing, nothing
    if STRIDE == 1:
        for row in tl.range(begin - 1, end + 1, num_stages=STAGES):
            a = read(x, row, 0, height, pitch, where - channels, in_left, ACCURATE)
            b = read(x, row, 0, height, pitch, where, in_middle, ACCURATE)
            c = read(x, row, 0, height, pitch, where + channels, in_right, ACCURATE)
            done = next_one + (a * lower_left + b * lower + c * lower_right)
            tl.store(output + (row - 1) * columns * channels + to, done, mask=kept & (row > begin))
            next_one = after_it + (a * on_left + b * middle + c * on_right)
            after_it = a * upper_left + b * upper + c * upper_right
    else:
        a = read(x, begin * 2 - 1, 0, height, pitch, where - channels, in_left, ACCURATE)
        b = read(x, begin * 2 - 1, 0, height, pitch, where, in_middle, ACCURATE)
        c = read(x, begin * 2 - 1, 0, height, pitch, where + channels, in_right, ACCURATE)
        next_one = a * upper_left + b * upper + c * upper_right
        for row in tl.range(begin, end, num_stages=STAGES):
            a = read(x, row * 2, 0, height, pitch, where - channels, in_left, ACCURATE)
            b = read(x, row * 2, 0, height, pitch, where, in_middle, ACCURATE)
            c = read(x, row * 2, 0, height, pitch, where + channels, in_right, ACCURATE)
            next_one += a * on_left + b * middle + c * on_right
            a = read(x, row * 2 + 1, 0, height, pitch, where - channels, in_left, ACCURATE)
            b = read(x, row * 2 + 1, 0, height, pitch, where, in_middle, ACCURATE)
            c = read(x, row * 2 + 1, 0, height, pitch, where + channels, in_right, ACCURATE)
            done = next_one + (a * lower_left + b * lower + c * lower_right)
            tl.store(output + row * columns * channels + to, done, mask=kept)
            next_one = a * upper_left + b * upper + c * upper_right


def filtered(x: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Filtered pictures, in steps of one pixel or of two."""
    samples, height, width, channels = x.shape
    rows, columns = (-(-side // stride) for side in (height, width))
    output = x.new_empty(samples, rows, columns, channels)
    at_once = min(_COLUMNS, triton.next_power_of_2(columns))
    parts = triton.cdiv(columns, at_once) * triton.cdiv(rows, _ROWS)
    _filter[triton.cdiv(channels, _CHANNELS), parts, samples](
        *(x, filters, output, height, width, rows, columns, channels),
        STRIDE=stride,
        ACCURATE=accurate_type(filters),
        ROWS=_ROWS,
        COLUMNS=at_once,
        CHANNELS=_CHANNELS,
        STAGES=_STAGES,
        num_warps=_WARPS,
    )
    return output
