"""Intervals as users give them, in any order and perhaps wrong, made into sorted flat arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import (
    AnyArray,
    BoolArray,
    Int32Array,
    IntArray,
    Names,
    called,
    check_names,
    first_true,
    whole_numbers,
)

LONGEST_PERIOD_SECONDS = 2**31 - 1


def checked_intervals(
    rows: Any, starts: Any, ends: Any, periods: Any, names: Names, wrap: bool
) -> tuple[IntArray, Int32Array, Int32Array, IntArray]:
    """Offsets, starts, ends and periods; raises `BadInputError` about the first device whose intervals are wrong."""
    periods = checked_periods(periods, names)
    rows, starts, ends = (
        whole_numbers(values, what) for values, what in ((rows, "Rows"), (starts, "Starts"), (ends, "Ends"))
    )
    if not len(rows) == len(starts) == len(ends):
        raise BadInputError(
            f"There are {len(rows)} rows, {len(starts)} starts and {len(ends)} ends; every interval needs all three."
        )
    wrong = first_true((rows < 0) | (rows >= len(periods)))
    if wrong is not None:
        raise BadInputError(
            f"Interval {wrong} belongs to phone {rows[wrong]}, but phones are numbered from 0 to {len(periods) - 1}."
        )
    if wrap:
        rows, starts, ends = _wrapped(rows, starts, ends, periods, names)
    starts, ends = _as_int32(rows, starts, ends, periods, names)
    if not _is_sorted(rows, starts):
        order = np.lexsort((starts, rows))
        rows, starts, ends = rows[order], starts[order], ends[order]
    _check(rows, starts, ends, periods, names)
    touches_next = (rows[1:] == rows[:-1]) & (starts[1:] == ends[:-1])
    if touches_next.any():
        begins, closes = np.append(True, ~touches_next), np.append(~touches_next, True)
        rows, starts, ends = rows[begins], starts[begins], ends[closes]
    offsets = np.searchsorted(rows, np.arange(len(periods) + 1, dtype=rows.dtype)).astype(np.int64)
    return offsets, starts, ends, periods


def checked_periods(periods: Any, names: Names) -> IntArray:
    """Periods as whole seconds; raises `BadInputError` about the first that cannot be one."""
    seconds = whole_numbers(periods, "Periods")
    check_names(names, len(seconds))
    wrong = first_true((seconds <= 0) | (seconds > LONGEST_PERIOD_SECONDS))
    if wrong is not None:
        raise BadInputError(
            f"The period of {called(wrong, names)} is {seconds[wrong]} seconds; "
            f"it must be between 1 and {LONGEST_PERIOD_SECONDS}."
        )
    return seconds.astype(np.int64)


def seconds_before(offsets: IntArray, starts: Int32Array, ends: Int32Array) -> Int32Array:
    """The available seconds of a device's period before each of its intervals."""
    # A sum over all devices may exceed 32 bits. Unsigned numbers wrap around then, and the difference of two sums of
    # one device, which is less than its period, is right all the same; this needs half the memory of a sum of 64 bits.
    sums = (ends - starts).astype(np.uint32)
    np.cumsum(sums, out=sums)
    before = np.zeros(len(starts), dtype=np.uint32)
    before[1:] = sums[:-1]
    del sums
    counts = np.diff(offsets)
    filled = counts > 0
    before -= np.repeat(before[offsets[:-1][filled]], counts[filled])
    return before.view(np.int32)


def _wrapped(
    rows: AnyArray, starts: AnyArray, ends: AnyArray, periods: IntArray, names: Names
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Intervals modulo the period; those that reach over its end are cut there."""
    period = periods[rows]
    lengths = ends - starts.astype(np.int64)
    wrong = first_true((lengths <= 0) | (lengths > period))
    if wrong is not None:
        _refuse_reversed(rows, starts, ends, names, wrong, lengths[wrong] <= 0)
        raise BadInputError(
            f"The interval from {starts[wrong]} to {ends[wrong]} of {called(int(rows[wrong]), names)} "
            f"is longer than its period of {period[wrong]} seconds."
        )
    starts = starts % period
    ends = starts + lengths
    over = ends > period
    if over.any():
        rest = (ends - period)[over]
        ends = np.concatenate([np.minimum(ends, period), rest])
        starts = np.concatenate([starts, np.zeros_like(rest)])
        rows = np.concatenate([rows, rows[over]])
    return rows, starts, ends


def _as_int32(
    rows: AnyArray, starts: AnyArray, ends: AnyArray, periods: IntArray, names: Names
) -> tuple[Int32Array, Int32Array]:
    for values in (starts, ends):
        if values.dtype != np.int32:
            wrong = first_true((values < -LONGEST_PERIOD_SECONDS) | (values > LONGEST_PERIOD_SECONDS))
            if wrong is not None:
                _refuse_reversed(rows, starts, ends, names, wrong, starts[wrong] >= ends[wrong])
                _refuse_outside(rows, starts, ends, periods, names, wrong)
    return starts.astype(np.int32, copy=False), ends.astype(np.int32, copy=False)


def _is_sorted(rows: AnyArray, starts: Int32Array) -> bool:
    following = rows[1:] > rows[:-1]
    following |= (rows[1:] == rows[:-1]) & (starts[1:] >= starts[:-1])
    return bool(following.all())


def _check(rows: AnyArray, starts: Int32Array, ends: Int32Array, periods: IntArray, names: Names) -> None:
    reversed_ = starts >= ends
    # Where a device's intervals are in order and apart, only its last one can reach over the period.
    same_device = rows[1:] == rows[:-1]
    outside = starts < 0
    last = np.flatnonzero(np.append(~same_device, True)) if len(rows) else np.empty(0, dtype=np.int64)
    outside[last] |= ends[last] > periods[rows[last]]
    overlaps: BoolArray = np.zeros(len(rows), dtype=np.bool_)
    overlaps[1:] = same_device & (starts[1:] < ends[:-1])
    wrong = first_true(reversed_ | outside | overlaps)
    if wrong is None:
        return
    _refuse_reversed(rows, starts, ends, names, wrong, reversed_[wrong])
    if outside[wrong]:
        _refuse_outside(rows, starts, ends, periods, names, wrong)
    raise BadInputError(
        f"The intervals {starts[wrong - 1]} to {ends[wrong - 1]} and {starts[wrong]} to {ends[wrong]} of "
        f"{called(int(rows[wrong]), names)} overlap; they must be apart."
    )


def _refuse_reversed(
    rows: AnyArray, starts: AnyArray, ends: AnyArray, names: Names, wrong: int, is_reversed: bool | np.bool_
) -> None:
    if is_reversed:
        raise BadInputError(
            f"An interval of {called(int(rows[wrong]), names)} begins at {starts[wrong]} and ends at {ends[wrong]} "
            "seconds; it must end after it begins."
        )


def _refuse_outside(
    rows: AnyArray, starts: AnyArray, ends: AnyArray, periods: IntArray, names: Names, wrong: int
) -> None:
    row = int(rows[wrong])
    raise BadInputError(
        f"The interval from {starts[wrong]} to {ends[wrong]} of {called(row, names)} is outside of its period, "
        f"which is from 0 to {periods[row]} seconds."
    )
