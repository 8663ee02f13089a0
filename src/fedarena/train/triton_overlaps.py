"""The kernel of `overlaps`, in Triton's language, which looks like Python but is compiled for a GPU."""

# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def overlaps_kernel(
    rows, others, out, rows_of_lane, others_of_lane,
    COUNT: tl.constexpr, OTHERS: tl.constexpr, LENGTH: tl.constexpr, PARTS: tl.constexpr,
    OF_PART: tl.constexpr, PRECISION: tl.constexpr, COLUMNS: tl.constexpr, PLACES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The products of a lane's rows and some of its others, over a part of their length."""
    part = tl.program_id(1) % PARTS
    lane = (tl.program_id(1) // PARTS).to(tl.int64)
    row = tl.arange(0, PLACES)
    other = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows += lane * rows_of_lane + row[:, None] * LENGTH
    others += lane * others_of_lane + other[None, :] * LENGTH
    total = tl.zeros((PLACES, COLUMNS), dtype=tl.float32)
    for begin in range(part * OF_PART, tl.minimum((part + 1) * OF_PART, LENGTH), DEPTH):
        k = begin + tl.arange(0, DEPTH)
        a = tl.load(rows + k[None, :], mask=(row < COUNT)[:, None] & (k < LENGTH)[None, :], other=0.0)
        b = tl.load(others + k[:, None], mask=(other < OTHERS)[None, :] & (k < LENGTH)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    at = ((lane * PARTS + part) * COUNT + row[:, None]) * OTHERS + other[None, :]
    tl.store(out + at, total, mask=(row < COUNT)[:, None] & (other < OTHERS)[None, :])
