"""Who is there, written down for a span of time.

The span is cut into windows, and each lists the intervals that touch it or begin where it ends, because times may be
rounded up. A client that is available is in exactly one interval of the window, so looking through its list finds
everybody.
"""

from __future__ import annotations

import numpy as np

from fedarena.fleet.arrays import AnyArray, FloatArray, IntArray
from fedarena.fleet.heterogeneity.availability_index import AvailabilityIndex, Slots

_SHORTEST_WINDOW_SECONDS = 60
_LONGEST_WINDOW_SECONDS = 86_400
_MOST_ENTRIES = 1_000_000


class AvailabilityWindows:
    """The intervals of all clients from `begin` to at least `seconds` later, or less if they are too many."""

    def __init__(self, index: AvailabilityIndex, begin: float, seconds: float):
        window = int(np.clip(index.mean_slot_seconds, _SHORTEST_WINDOW_SECONDS, _LONGEST_WINDOW_SECONDS))
        first_window = int(begin // window)
        per_window = index.shares.sum() + (window / index.periods)[index.owners].sum()
        # At least two, so that `begin` is not in the last second.
        windows = int(np.clip(np.ceil(seconds / window) + 1, 2, max(2.0, _MOST_ENTRIES / max(per_window, 1.0))))
        self._index, self._window, self._first_window = index, window, first_window
        self.begin, self.end = float(first_window * window), float((first_window + windows) * window)
        intervals, begins, ends = _unrolled(index, self.begin, self.end)
        first = np.maximum((begins - 1) // window, first_window).astype(np.int64) - first_window
        last = np.minimum((ends - 1) // window, first_window + windows - 1).astype(np.int64) - first_window
        touched = last - first + 1
        entries = np.repeat(np.arange(len(first)), touched)
        within = np.arange(len(entries)) - np.repeat(np.cumsum(touched) - touched, touched)
        lists = first[entries] + within
        entries = entries[np.argsort(lists, kind="stable")]
        self._offsets = np.append(0, np.cumsum(np.bincount(lists, minlength=windows)))
        self._slots = Slots(intervals, begins, ends).take(entries)
        self._clients = index.owners[self._slots.intervals]
        self._asked: tuple[AnyArray, ...] = ()

    def available(self, times: FloatArray) -> tuple[IntArray, IntArray, Slots]:
        """Positions of times, and for each the clients that are available then and their intervals."""
        windows = (times // self._window).astype(np.int64) - self._first_window
        first = self._offsets[windows]
        counts = self._offsets[windows + 1] - first
        columns = np.arange(counts.max(initial=0))
        # Where a window has fewer entries, later ones follow, which do not count.
        entries = np.minimum(first[:, None] + columns, len(self._clients) - 1)
        asked = self._index.client_times(self._clients[entries], times[:, None])
        begins = self._slots.begins[entries]
        inside = (begins <= asked) & (asked < self._slots.ends[entries])
        inside &= columns < counts[:, None]
        self._asked = (times, entries, begins, inside)
        found = entries[inside]
        return np.nonzero(inside)[0], self._clients[found], self._slots.take(found)

    def steady_until(self, rows: IntArray) -> FloatArray:
        """Until when nobody comes or goes, at least, after those of the times that were asked for last."""
        times, entries, begins, inside = (array[rows] for array in self._asked)
        come = np.where(begins > times[:, None], begins, np.inf)
        changes = np.where(inside, self._slots.ends[entries], come).min(axis=1, initial=np.inf)
        return np.asarray(np.minimum(changes, (times // self._window + 1) * self._window))


def _unrolled(index: AvailabilityIndex, begin: float, end: float) -> tuple[IntArray, FloatArray, FloatArray]:
    """Every interval that touches the time from `begin` to `end`, in all its periods: its number, begin and end."""
    periods = index.periods[index.owners]
    first = np.floor((begin - index.ends) / periods) + 1
    counts = np.maximum(np.ceil((end - index.starts) / periods) - first, 0).astype(np.int64)
    intervals = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(intervals)) - np.repeat(np.cumsum(counts) - counts, counts)
    shifts = (first[intervals] + within) * periods[intervals]
    return intervals, index.starts[intervals] + shifts, index.ends[intervals] + shifts
