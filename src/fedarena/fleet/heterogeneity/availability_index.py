"""Availability of clients for simulations that ask millions of times: one binary search for each question.

`Availability` answers the same questions for any shape of arguments and checks them; here all clients' periods lie one
after the other on a line of seconds, and so do their available seconds, so that NumPy's own search finds an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, IntArray
from fedarena.fleet.availability import Availability
from fedarena.fleet.trace_positions import count_below

_LARGEST_DENOMINATOR = 1000


@dataclass(frozen=True, eq=False)
class Slots:
    """One interval of a client each: its number, and when it begins and ends in this period of the client."""

    intervals: IntArray
    begins: FloatArray
    ends: FloatArray

    def take(self, positions: AnyArray) -> Slots:
        """Those at `positions`."""
        return Slots(self.intervals[positions], self.begins[positions], self.ends[positions])


class AvailabilityIndex:
    """When client i, the row i of an availability, is there.

    With `whole_seconds` clients are looked up in whole seconds, as FLHetBench's code does: at the difference between a
    time and the start of the client's trace, rounded towards 0. So times are rounded up before the trace starts, and
    down afterwards; where the start is not known, always up.
    """

    def __init__(self, availability: Availability, whole_seconds: bool = False):
        counts = np.diff(availability.offsets)
        self.clients = len(availability)
        self.owners: IntArray = np.repeat(np.arange(self.clients), counts)
        self.starts: FloatArray = availability.starts.astype(np.float64)
        self.ends: FloatArray = availability.ends.astype(np.float64)
        self.periods: FloatArray = availability.periods.astype(np.float64)
        self.shares: FloatArray = availability.share()
        self._availability = availability
        self._whole_seconds = whole_seconds
        self._trace_starts: FloatArray | None = None
        if whole_seconds and availability.trace_starts is not None:
            self._trace_starts = availability.trace_starts.astype(np.float64)
        self._first: IntArray = np.asarray(availability.offsets[:-1])
        self._behind: IntArray = np.asarray(availability.offsets[1:])
        # Seconds on the line of all periods, and available seconds before each interval on it; whole numbers below
        # 2**53.
        self._line: FloatArray = np.append(0.0, np.cumsum(self.periods))[:-1]
        self._line_starts: FloatArray = self._line[self.owners] + self.starts
        self._worked: FloatArray = np.append(0.0, np.cumsum(self.ends - self.starts))
        self._worked_first: FloatArray = self._worked[self._first]
        self._totals: FloatArray = self._worked[self._behind] - self._worked_first

    @property
    def mean_slot_seconds(self) -> float:
        """How long an interval lasts on average."""
        return float(self._worked[-1]) / max(1, len(self.starts))

    def lookup_times(self, times: FloatArray) -> FloatArray:
        """Times to look clients up: rounded up, if that is so for all of them."""
        return np.ceil(times) if self._whole_seconds and self._trace_starts is None else times

    def client_times(self, clients: IntArray, times: FloatArray) -> FloatArray:
        """The same for single clients, rounded by the start of each one's trace if need be."""
        if self._trace_starts is None:
            return times
        starts = self._trace_starts[clients]
        # In floating point, as in the published code: the difference may be whole where the time is not quite.
        return starts + np.trunc(times - starts)

    def are_available(self, clients: IntArray, times: FloatArray) -> BoolArray:
        """Whether clients are available at these times: quicker than `find` for many clients of a large fleet.

        A search among the few intervals of a client stays in one place of memory.
        """
        if not len(self.starts):
            return np.zeros(clients.shape, dtype=np.bool_)
        positions = np.fmod(times, self.periods[clients])
        first = self._first[clients]
        counts = self._behind[clients] - first
        begun = count_below(self._availability.starts, first, counts, positions, or_equal=True)
        return np.asarray((begun > 0) & (positions < self._availability.ends[first + begun - 1]))

    def find(self, clients: IntArray, times: FloatArray) -> tuple[BoolArray, Slots]:
        """Whether clients are available at these times, and in which intervals those are that are available."""
        if not len(self.starts):
            nowhere = np.zeros(clients.shape)
            return np.zeros(clients.shape, dtype=np.bool_), Slots(nowhere.astype(np.int64), nowhere, nowhere)
        positions = np.fmod(times, self.periods[clients])
        latest = self._latest(clients, positions)
        inside = (latest >= self._first[clients]) & (positions < self.ends[latest])
        period_starts = times - positions
        return inside, Slots(latest, period_starts + self.starts[latest], period_starts + self.ends[latest])

    def earliest(self, time: float) -> float:
        """When anybody is available from `time` on; infinity, if nobody ever is."""
        there = np.flatnonzero(self._totals)
        if not len(there):
            return math.inf
        positions = np.fmod(time, self.periods[there])
        latest = self._latest(there, positions)
        if ((latest >= self._first[there]) & (positions < self.ends[latest])).any():
            return time
        later = latest + 1 < self._behind[there]
        following = np.where(later, latest + 1, self._first[there])
        begins = self.starts[following] + np.where(later, 0.0, self.periods[there])
        return float((time - positions + begins).min())

    def finish(self, clients: IntArray, slots: Slots, times: FloatArray, work_seconds: FloatArray) -> FloatArray:
        """When clients that are in `slots` at `times` were available for `work_seconds` more, above zero."""
        before_period = self._worked_first[clients]
        needed = self._worked[slots.intervals] - before_period + (times - slots.begins) + work_seconds
        totals = self._totals[clients]
        rest = np.fmod(needed, totals)
        full_periods = np.rint((needed - rest) / totals)
        # Work that ends with the last available second of a period does not wait for the next one.
        ends_period = rest == 0
        rest = np.where(ends_period, totals, rest)
        full_periods -= ends_period
        last = np.searchsorted(self._worked, before_period + rest, side="left") - 1
        # The sum above may have been rounded up to or down from the very second in which an interval begins.
        last = np.clip(last, self._first[clients], self._behind[clients] - 1)
        last += self._worked[last + 1] - before_period < rest
        last -= self._worked[last] - before_period >= rest
        into_interval = rest - (self._worked[last] - before_period)
        period_starts = slots.begins - self.starts[slots.intervals]
        return period_starts + full_periods * self.periods[clients] + self.starts[last] + into_interval

    def ever_met(self, time: float, step_seconds: float) -> bool:
        """Whether anybody is available at one of the moments ``time + step_seconds``, ``time + 2 * step_seconds``, …

        After whole numbers of steps and periods, positions in a period repeat; those that are reached have the same
        remainder when divided by the greatest common divisor of both. It may say yes for a client that is met if times
        are rounded up, as long as its trace has not started.
        """
        step = Fraction(step_seconds).limit_denominator(_LARGEST_DENOMINATOR)
        if step <= 1 or float(step) != step_seconds:
            # Intervals last a second or longer, and a step that does not fit into seconds comes by everywhere in the
            # end.
            return len(self.starts) > 0
        units = step.denominator
        apart = np.gcd((units * self.periods).astype(np.int64), step.numerator)[self.owners]
        starts, ends = ((units * side).astype(np.int64) for side in (self.starts, self.ends))
        met = np.zeros(len(starts), dtype=np.bool_)
        if not self._whole_seconds or self._trace_starts is not None:
            met |= starts + (math.floor(time * units) - starts) % apart < ends
        if self._whole_seconds:
            # Rounded up: whatever is less than a second early counts as well, and the last second does not.
            starts, ends = starts - units + 1, ends - units + 1
            met_rounded_up = starts + (math.ceil(time * units) - starts) % apart < ends
            if self._trace_starts is not None:
                met_rounded_up &= self._trace_starts[self.owners] > time
            met |= met_rounded_up
        return bool(met.any())

    def _latest(self, clients: IntArray, positions: FloatArray) -> IntArray:
        """The interval that began last on the line of all periods; it may be that of a client before."""
        # Intervals begin with whole seconds, and rounding a large sum must not lead into the next one.
        seconds = self._line[clients] + np.floor(positions)
        return np.searchsorted(self._line_starts, seconds, side="right") - 1
