"""Convolutions that filter every channel by itself, for pictures whose channels are innermost in memory, on a GPU.

Such a filter does next to nothing with every number it reads, so what counts is to read few and in order. Pictures are
``[samples, height, width, channels]``, filters square with an odd side, and pictures padded by half of it. Gradients
of filters are added up in parts and in a fixed order, so that the same numbers give the same bits.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedarena.train.group_norm_kernels import accurate_type

_PIXELS, _CHANNELS = 64, 32  # of a block
_PIXELS_ADDED = 32  # the same where a gradient is added up, of so many blocks
_BLOCKS_ADDED = 32
_ANY = ["height", "width", "rows", "columns"]


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
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    BACK: tl.constexpr,
    ACCURATE: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    """Filters pictures of ``height`` and ``width`` to ``rows`` and ``columns``; ``BACK`` from gradients to gradients."""
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    row, column = pixel // columns, pixel % columns
    first = tl.program_id(0).to(tl.int64) * height * width
    total = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    for down in tl.static_range(SIDE):
        for across in tl.static_range(SIDE):
            if BACK:
                above, left = row + SIDE // 2 - down, column + SIDE // 2 - across
                met = (above % STRIDE == 0) & (left % STRIDE == 0) & (above >= 0) & (left >= 0)
                above, left = above // STRIDE, left // STRIDE
            else:
                above, left = row * STRIDE + down - SIDE // 2, column * STRIDE + across - SIDE // 2
                met = (above >= 0) & (left >= 0)
            met = met & (above < height) & (left < width) & (row < rows)
            where = (first + above * width + left)[:, None] * channels + channel[None, :]
            values = tl.load(x + where, mask=met[:, None] & exists[None, :], other=0.0).to(ACCURATE)
            factor = tl.load(weight + channel * SIDE * SIDE + down * SIDE + across, mask=exists, other=0.0)
            total += values * factor.to(ACCURATE)[None, :]
    place = (tl.program_id(0).to(tl.int64) * rows * columns + pixel)[:, None] * channels + channel[None, :]
    tl.store(output + place, total, mask=(row < rows)[:, None] & exists[None, :])


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
    """The gradient of one of three rows of filters of 3 x 3, from some blocks of a sample's pixels."""
    parts = tl.cdiv(rows * columns, PIXELS * BLOCKS)
    down, part = tl.program_id(0), tl.program_id(1)
    sample, begin = part // parts, (part % parts) * PIXELS * BLOCKS
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    left = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    middle = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    right = tl.zeros([PIXELS, CHANNELS], ACCURATE)
    end = tl.minimum(begin + PIXELS * BLOCKS, rows * columns)
    for block in range(begin, end, PIXELS):
        pixel = block + tl.arange(0, PIXELS)
        row, column = pixel // columns, pixel % columns
        place = (sample.to(tl.int64) * rows * columns + pixel)[:, None] * channels + channel[None, :]
        slope = tl.load(grad + place, mask=(row < rows)[:, None] & exists[None, :], other=0.0).to(ACCURATE)
        above, across = row * STRIDE + down - 1, column * STRIDE
        met = (row < rows) & (above >= 0) & (above < height)
        where = (sample.to(tl.int64) * height * width + above * width + across)[:, None] * channels + channel[None, :]
        met_left, met_right = met & (across > 0), met & (across + 1 < width)
        left += slope * tl.load(x + where - channels, mask=met_left[:, None] & exists[None, :], other=0.0).to(ACCURATE)
        middle += slope * tl.load(x + where, mask=met[:, None] & exists[None, :], other=0.0).to(ACCURATE)
        right += slope * tl.load(x + where + channels, mask=met_right[:, None] & exists[None, :], other=0.0).to(
            ACCURATE
        )
    note = notes + (part.to(tl.int64) * channels + channel) * 9 + down * 3
    tl.store(note, tl.sum(left, 0), mask=exists)
    tl.store(note + 1, tl.sum(middle, 0), mask=exists)
    tl.store(note + 2, tl.sum(right, 0), mask=exists)


def filtered(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Pictures filtered with ``[channels, 1, side, side]``."""
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
    """The gradient of filters of 3 x 3."""
    samples, height, width, channels = x.shape
    rows, columns = grad.shape[1:3]
    parts = samples * triton.cdiv(rows * columns, _PIXELS_ADDED * _BLOCKS_ADDED)
    notes = weight.new_empty(parts, *weight.shape)
    _note_weights[3, parts, triton.cdiv(channels, _CHANNELS)](
        *(x, grad, notes, height, width, rows, columns, channels),
        STRIDE=stride,
        ACCURATE=accurate_type(weight),
        PIXELS=_PIXELS_ADDED,
        BLOCKS=_BLOCKS_ADDED,
        CHANNELS=_CHANNELS,
    )
    return notes.sum(0)


def try_out() -> None:
    """Makes and runs kernels, to see whether that is possible here."""
    filtered(torch.ones(1, 1, 1, 16, device="cuda"), torch.ones(16, 1, 3, 3, device="cuda"), 1)


def _run_filter(x: Tensor, weight: Tensor, output: Tensor, stride: int, back: bool) -> None:
    samples, height, width, channels = x.shape
    rows, columns = output.shape[1:3]
    _filter[samples, triton.cdiv(rows * columns, _PIXELS), triton.cdiv(channels, _CHANNELS)](
        *(x, weight, output, height, width, rows, columns, channels),
        SIDE=weight.shape[-1],
        STRIDE=stride,
        BACK=back,
        ACCURATE=accurate_type(weight),
        PIXELS=_PIXELS,
        CHANNELS=_CHANNELS,
    )
