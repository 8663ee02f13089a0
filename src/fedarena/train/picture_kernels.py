"""What comes before the first layer that is trained, as kernels for a GPU: crops, and patches for a first convolution.

Both move numbers and compute nothing, so that every number is read and written once, and rounded on the way if need be.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 512  # of a row of a crop
_PATCHES = 64
_WARPS = 4


@triton.jit
def _pick(
    x: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    output: tl.tensor,
    width: tl.tensor,
    per_sample: tl.tensor,
    per_channel: tl.tensor,
    per_row: tl.tensor,
    per_column: tl.tensor,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
) -> None:
    """Some numbers of a row of a sample, pixel by pixel."""
    sample, row = tl.program_id(2).to(tl.int64), tl.program_id(1)
    number = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    exists = number < width * CHANNELS
    x += sample * per_sample + tl.load(rows + sample * tl.num_programs(1) + row) * per_row
    column = tl.load(columns + sample * width + number // CHANNELS, mask=exists, other=0)
    values = tl.load(x + column * per_column + number % CHANNELS * per_channel, mask=exists, other=0)
    tl.store(output + (sample * tl.num_programs(1) + row) * width * CHANNELS + number, values, mask=exists)


@triton.jit
def _cut_out(
    x: tl.tensor,
    output: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    per_sample: tl.tensor,
    per_colour: tl.tensor,
    per_row: tl.tensor,
    per_column: tl.tensor,
    COLOURS: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    PADDING: tl.constexpr,
    FILLED_UP: tl.constexpr,
    NUMBERS: tl.constexpr,
    PATCHES: tl.constexpr,
) -> None:
    """Some patches of a sample: of each, row by row, the colours of its pixels, and zeros behind them."""
    sample = tl.program_id(1).to(tl.int64)
    patch = (tl.program_id(0) * PATCHES + tl.arange(0, PATCHES))[:, None]
    number = tl.arange(0, NUMBERS)[None, :]
    row = patch // columns * STRIDE + number // (SIDE * COLOURS) - PADDING
    column = patch % columns * STRIDE + number // COLOURS % SIDE - PADDING
    there = (patch < rows * columns) & (number < SIDE * SIDE * COLOURS)
    there = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    x += sample * per_sample
    values = tl.load(x + row * per_row + column * per_column + number % COLOURS * per_colour, mask=there, other=0.0)
    kept = (patch < rows * columns) & (number < FILLED_UP)
    tl.store(output + sample * rows * columns * FILLED_UP + patch * FILLED_UP + number, values, mask=kept)


def picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Of every picture the pixels in its rows and columns, see `fedarena.models.augmentation.pixels`."""
    samples, channels, *_ = x.shape
    height, width = rows.shape[1], columns.shape[1]
    output = x.new_empty(samples, height, width, channels)
    _pick[triton.cdiv(width * channels, _NUMBERS), height, samples](
        *(x, rows.contiguous(), columns.contiguous(), output, width, *x.stride()),
        CHANNELS=channels,
        NUMBERS=_NUMBERS,
        num_warps=_WARPS,
    )
    return output.permute(0, 3, 1, 2)


def patches(x: Tensor, side: int, stride: int, padding: int, filled_up: int, dtype: torch.dtype) -> Tensor:
    """The patches that filters of this side see, ``[samples, rows, columns, numbers]``, filled up with zeros."""
    samples, colours, height, width = x.shape
    rows, columns = ((length + 2 * padding - side) // stride + 1 for length in (height, width))
    output = x.new_empty(samples, rows, columns, filled_up, dtype=dtype)
    _cut_out[triton.cdiv(rows * columns, _PATCHES), samples](
        *(x, output, height, width, rows, columns, *x.stride()),
        COLOURS=colours,
        SIDE=side,
        STRIDE=stride,
        PADDING=padding,
        FILLED_UP=filled_up,
        NUMBERS=triton.next_power_of_2(filled_up),
        PATCHES=_PATCHES,
        num_warps=_WARPS,
    )
    return output


def try_out() -> None:
    """Makes and runs kernels, to see whether that is possible here."""
    patches(torch.ones(1, 1, 1, 1, device="cuda"), 1, 1, 0, 8, torch.float32)
