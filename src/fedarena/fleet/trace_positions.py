"""Where devices are in their periods at some time: the arithmetic behind all questions about availability.

Nothing here is rounded as long as times are below 2**53: the position in a period is a remainder, which floating point
computes exactly, the beginning of a period is then a whole number, and so is the second in which a device comes or
goes.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, IntArray, Rows, known_rows

if TYPE_CHECKING:
    from fedarena.fleet.availability import Availability


class TracePositions:
    """One time of one device each; rows and times are broadcast against each other."""

    def __init__(self, availability: Availability, rows: Rows, times: npt.ArrayLike):
        self._intervals = availability
        row_array, self.times = np.broadcast_arrays(
            known_rows(rows, len(availability)), np.asarray(times, dtype=np.float64)
        )
        if not (self.times >= 0).all():
            raise ValueError("times must not be negative or NaN")
        self.finite: BoolArray = np.isfinite(self.times)
        finite_times = np.where(self.finite, self.times, 0.0)
        self.periods: IntArray = availability.periods[row_array]
        self.positions: FloatArray = np.fmod(finite_times, self.periods)
        self.period_starts: FloatArray = finite_times - self.positions
        self._first: IntArray = availability.offsets[row_array]
        self._count: IntArray = availability.offsets[row_array + 1] - self._first
        begun = count_below(availability.starts, self._first, self._count, self.positions, or_equal=True)
        self._begun = begun > 0
        self._current: IntArray = self._first + begun - 1
        self._ever: BoolArray = self._count > 0
        self.inside: BoolArray = self.finite & (
            self.positions < self._pick(availability.ends, self._current, self._begun)
        )

    def next_available(self) -> FloatArray:
        """Now, if the device is available; else the beginning of its next interval, or infinity."""
        begins = self._slot_period_start + self._pick(self._intervals.starts, self._slot, self._ever)
        return np.where(self.inside, self.times, np.where(self._ever & self.finite, begins, np.inf))

    def leaves_at(self) -> FloatArray:
        """The end of the uninterrupted availability that the device is in, or that comes next; infinity, if never."""
        starts, ends = self._intervals.starts, self._intervals.ends
        end = self._pick(ends, self._slot, self._ever)
        goes_on = self._ever & (end == self.periods) & (self._pick(starts, self._first, self._ever) == 0)
        never_ends = ~self._ever | ~self.finite | (goes_on & (self._slot == self._first))
        leaves = self._slot_period_start + end + np.where(goes_on, self._pick(ends, self._first, self._ever), 0.0)
        return np.where(never_ends, np.inf, leaves)

    def time_of_work(self, work_seconds: FloatArray) -> FloatArray:
        """The earliest time at which the device was available for `work_seconds`, more than zero, since now."""
        possible = self._ever & self.finite & np.isfinite(work_seconds)
        total = np.where(possible, self.seconds_in_period, 1.0)
        needed = np.where(possible, self.seconds_so_far + work_seconds, 1.0)
        # The last second of work is in a period that it may fill but does not leave empty: 0 < rest <= total.
        rest = np.fmod(needed, total)
        full_periods = (needed - rest) / total
        full = rest == 0
        rest, full_periods = np.where(full, total, rest), np.where(full, full_periods - 1, full_periods)
        before, starts = self._intervals.before, self._intervals.starts
        interval = self._first + count_below(before, self._first, self._count, rest, or_equal=False) - 1
        into_interval = rest - self._pick(before, interval, possible)
        position = self._pick(starts, interval, possible) + into_interval
        return np.where(possible, self.period_starts + full_periods * self.periods + position, np.inf)

    @cached_property
    def seconds_so_far(self) -> FloatArray:
        """For how long the device was available in this period until now."""
        before, starts, ends = (
            self._pick(values, self._current, self._begun)
            for values in (self._intervals.before, self._intervals.starts, self._intervals.ends)
        )
        return np.where(self._begun, before + (np.minimum(self.positions, ends) - starts), 0.0)

    @cached_property
    def seconds_in_period(self) -> FloatArray:
        """For how long the device is available in one period."""
        last = self._first + self._count - 1
        before, starts, ends = (
            self._pick(values, last, self._ever)
            for values in (self._intervals.before, self._intervals.starts, self._intervals.ends)
        )
        return before + (ends - starts)

    @cached_property
    def _slot(self) -> IntArray:
        """The interval that the device is in, or the next one."""
        following = np.where(self._in_next_period, self._first, self._current + 1)
        return np.where(self.inside, self._current, following)

    @cached_property
    def _slot_period_start(self) -> FloatArray:
        return self.period_starts + np.where(self._in_next_period, self.periods, 0)

    @cached_property
    def _in_next_period(self) -> BoolArray:
        """Whether the device is not available any more before its next period."""
        return ~self.inside & (self._current + 1 >= self._first + self._count)

    @staticmethod
    def _pick(values: AnyArray, positions: IntArray, valid: BoolArray) -> FloatArray:
        """``values[positions]`` where `valid`, elsewhere 0."""
        if not len(values):
            return np.zeros(positions.shape)
        return np.where(valid, values[np.where(valid, positions, 0)], 0).astype(np.float64)


def count_below(values: AnyArray, first: IntArray, count: IntArray, limits: FloatArray, *, or_equal: bool) -> IntArray:
    """How many of the ascending numbers ``values[first:first + count]`` are below a limit, for many at once."""
    found = np.zeros(first.shape, dtype=np.int64)
    if not len(values) or not found.size:
        return found
    below = np.less_equal if or_equal else np.less
    step = 1 << (int(count.max()).bit_length() - 1) if count.max() else 0
    while step:
        candidate = found + step
        # What is looked up for a candidate that is too large does not count, it only has to exist.
        value = values[first + np.minimum(candidate, count) - 1]
        found = np.where((candidate <= count) & below(value, limits), candidate, found)
        step >>= 1
    return found
