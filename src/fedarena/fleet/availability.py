"""When devices may take part: a pure function of the device and the time.

A device is available in intervals of whole seconds that repeat with its period for ever. All questions are answered by
arithmetic on these intervals, for many devices at once: the order of questions does not matter, a time after a thousand
periods costs as much as one in the first, and a device that is never available costs no more than another.

>>> devices = Availability.from_intervals(rows=[0, 0], starts=[10, 50], ends=[20, 80], periods=[100, 100])
>>> devices.is_available([0, 0, 1], [15, 3_020, 15]).tolist()
[True, False, False]
>>> devices.finish_time(0, 15.0, 10.0, leaving="pause").item()
55.0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.fleet.arrays import (
    BoolArray,
    FloatArray,
    Int32Array,
    IntArray,
    Names,
    Rows,
    gather_lists,
    known_rows,
)
from fedarena.fleet.intervals import checked_intervals, seconds_before
from fedarena.fleet.trace_positions import TracePositions

# What happens to the work of a device that leaves: all is lost, or it goes on when the device is back.
Leaving = Literal["abort", "pause"]
Times = npt.ArrayLike

DAY_SECONDS = 86_400


@dataclass(frozen=True, eq=False)
class Availability:
    """Periodic intervals of many devices: device r owns the intervals ``offsets[r]:offsets[r + 1]``.

    Intervals are half-open, ``[start, end)``, ascending, apart from each other, and within ``[0, period)``. The
    constructor believes that; `from_intervals` takes them in any order, checks them and merges those that touch.

    Times are seconds from 0, and infinity is a time like others: nobody is available then. Arguments of questions are
    broadcast against each other.

    `trace_starts` has the seconds at which recordings began, where a source tells. Nothing depends on them but
    heterogeneity metrics that round as FLHetBench's code does.
    """

    offsets: IntArray
    starts: Int32Array
    ends: Int32Array
    periods: IntArray
    trace_starts: IntArray | None = None

    @classmethod
    def from_intervals(
        cls, rows: Any, starts: Any, ends: Any, periods: Any, names: Names = None, *, wrap: bool = False
    ) -> Availability:
        """Makes an availability of intervals in any order: interval i belongs to device ``rows[i]``.

        There are as many devices as `periods`. With `wrap` intervals may lie anywhere in time and are taken modulo
        the period: one that reaches over the end goes on at the beginning.
        """
        return cls(*checked_intervals(rows, starts, ends, periods, names, wrap))

    @classmethod
    def always(cls, rows: int) -> Availability:
        """Devices that never leave."""
        return cls(
            np.arange(rows + 1, dtype=np.int64),
            np.zeros(rows, dtype=np.int32),
            np.full(rows, DAY_SECONDS, dtype=np.int32),
            np.full(rows, DAY_SECONDS, dtype=np.int64),
        )

    @classmethod
    def never(cls, rows: int) -> Availability:
        """Devices that are never there."""
        nothing = np.empty(0, dtype=np.int32)
        return cls(np.zeros(rows + 1, dtype=np.int64), nothing, nothing, np.full(rows, DAY_SECONDS, dtype=np.int64))

    @classmethod
    def with_sums(
        cls,
        offsets: IntArray,
        starts: Int32Array,
        ends: Int32Array,
        periods: IntArray,
        before: Int32Array,
        trace_starts: IntArray | None = None,
    ) -> Availability:
        """Like the constructor, for somebody who kept `before`, so that it need not be computed again."""
        availability = cls(offsets, starts, ends, periods, trace_starts)
        availability.__dict__["before"] = before  # where cached_property would put it
        return availability

    @cached_property
    def before(self) -> Int32Array:
        """How many seconds a device was available in its period before each interval begins."""
        return seconds_before(self.offsets, self.starts, self.ends)

    def __len__(self) -> int:
        return len(self.periods)

    def take(self, rows: Rows) -> Availability:
        """The devices at `rows`, in their order."""
        wanted = known_rows(np.atleast_1d(np.asarray(rows)), len(self))
        offsets, positions = gather_lists(self.offsets, wanted)
        trace_starts = None if self.trace_starts is None else self.trace_starts[wanted]
        return Availability(offsets, self.starts[positions], self.ends[positions], self.periods[wanted], trace_starts)

    def share(self) -> FloatArray:
        """The available share of every device's period."""
        return TracePositions(self, np.arange(len(self)), 0.0).seconds_in_period / self.periods

    def is_available(self, rows: Rows, times: Times) -> BoolArray:
        """Whether devices are available at these times."""
        return TracePositions(self, rows, times).inside

    def next_available(self, rows: Rows, times: Times) -> FloatArray:
        """When devices are available the next time: now, if they are; infinity, if never."""
        return TracePositions(self, rows, times).next_available()

    def leaves_at(self, rows: Rows, times: Times) -> FloatArray:
        """When devices that are available leave (infinity, if never); the time itself for those that are not."""
        moment = TracePositions(self, rows, times)
        return np.where(moment.inside, moment.leaves_at(), moment.times)

    def available_seconds(self, rows: Rows, begin: Times, end: Times) -> FloatArray:
        """For how long devices are available from `begin` to `end`, which must not be earlier."""
        first, last = TracePositions(self, rows, begin), TracePositions(self, rows, end)
        if (last.times < first.times).any():
            raise ValueError("a span of time must not end before it begins")
        # Whole periods are counted apart from the seconds within one, so that large times cost no precision.
        periods = (last.period_starts - first.period_starts) / first.periods
        seconds = periods * first.seconds_in_period + (last.seconds_so_far - first.seconds_so_far)
        if first.finite.all() and last.finite.all():
            return seconds
        forever = np.where(first.finite & (first.seconds_in_period > 0), np.inf, 0.0)
        return np.where(last.finite, seconds, forever)

    def finish_time(self, rows: Rows, times: Times, work_seconds: Times, leaving: Leaving) -> FloatArray:
        """When devices that begin at `times` have worked for `work_seconds`; infinity, if they never have.

        With ``abort`` a device must be available from the beginning until it is done; it may leave that very moment.
        With ``pause`` it works whenever it is available. No work is done at once, even if the device is not there.
        """
        if leaving not in ("abort", "pause"):
            raise BadInputError(f"A phone that leaves can 'abort' or 'pause' its work, not {leaving!r}.")
        work = np.asarray(work_seconds, dtype=np.float64)
        if not (work >= 0).all():
            raise ValueError("work must not be negative or NaN")
        moment = TracePositions(self, rows, times)
        ready = moment.times if leaving == "abort" else moment.next_available()
        uninterrupted = ready + work
        fits = uninterrupted <= moment.leaves_at()
        if leaving == "abort":
            finished = np.where(fits & moment.inside, uninterrupted, np.inf)
        else:
            # What is done before the device leaves ends to the last bit as it would without leaving.
            finished = np.where(fits, uninterrupted, moment.time_of_work(work))
        return np.where(work == 0, moment.times, finished)
