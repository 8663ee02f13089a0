"""The kernels of `convolution_kernels`, in Triton's language, which looks like Python but is compiled for a GPU."""

# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


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
def convolve_kernel(
    x, weight, out, samples, height, width, out_height, out_width,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONE_TAP: tl.constexpr,
):  # fmt: skip
    """A part of the pixels that come out in a lane, for some of the outputs."""
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
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(rows < of_lane)[:, None] & (columns < OUTPUTS)[None, :])


@triton.jit
def weight_gradient_kernel(
    x, grad, out, samples, height, width, out_height, out_width,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONE_TAP: tl.constexpr,
):  # fmt: skip
    """A part of the weights of a lane, over a part of its pixels."""
    part = tl.program_id(2) % PARTS
    lane = (tl.program_id(2) // PARTS).to(tl.int64)
    of_lane = samples * out_height * out_width
    patch: tl.constexpr = KERNEL_H * KERNEL_W * CHANNELS
    x += lane * samples * height * width * CHANNELS
    grad += lane * of_lane * OUTPUTS
    out += (lane * PARTS + part) * OUTPUTS * patch
    begin = tl.program_id(0) * DEPTH
    k = tl.arange(0, DEPTH)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS, DEPTH), dtype=tl.float32)
    of_part = tl.cdiv(tl.cdiv(of_lane, PARTS), ROWS) * ROWS
    for first in range(part * of_part, tl.minimum((part + 1) * of_part, of_lane), ROWS):
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
    tl.store(out + at, total, mask=(columns < OUTPUTS)[:, None] & (numbers < patch)[None, :])


@triton.jit
def sum_of_pixels_kernel(
    grad, out, pixels, OUTPUTS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The sum over a part of a lane's pixels, for some of the outputs."""
    part = tl.program_id(1) % PARTS
    lane = (tl.program_id(1) // PARTS).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    grad += lane * pixels * OUTPUTS
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    of_part = tl.cdiv(tl.cdiv(pixels, PARTS), ROWS) * ROWS
    for first in range(part * of_part, tl.minimum((part + 1) * of_part, pixels), ROWS):
        rows = first + tl.arange(0, ROWS)
        known = (rows < pixels)[:, None] & (columns < OUTPUTS)[None, :]
        total += tl.load(grad + rows[:, None] * OUTPUTS + columns[None, :], mask=known, other=0.0).to(tl.float32)
    tl.store(out + (lane * PARTS + part) * OUTPUTS + columns, tl.sum(total, 0), mask=columns < OUTPUTS)
