"""Which client trains where and when if several train at once.

Clients train in *lanes*. In every step, each lane takes one gradient step of the client it is at; when that client is
done, the next one takes its place at once, so a few clients with very much data do not leave the other lanes idle.
Lanes are sorted by length: those still at work are always the first ones.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena import streams
from fedarena.train.batches import IntArray


@dataclass(frozen=True)
class Schedule:
    """The plan of a cohort. Clients are numbered by their position in it; those without a step have lane -1."""

    lanes: int
    steps: IntArray  # [clients] gradient steps of each client
    lane: IntArray  # [clients] where a client trains
    start: IntArray  # [clients] the step at which it begins
    lane_lengths: IntArray  # [lanes] descending

    @property
    def length(self) -> int:
        """Number of steps until all are done."""
        return int(self.lane_lengths[0]) if self.lanes else 0

    def active_lanes(self) -> IntArray:
        """How many lanes are at work in each step."""
        return self.lanes - np.searchsorted(np.sort(self.lane_lengths), np.arange(self.length), side="right")


def make_schedule(steps: IntArray, lanes: int) -> Schedule:
    """Longest client first, each to the lane that is free earliest; ties go to the lower number."""
    working = np.flatnonzero(steps)
    longest_first = working[np.argsort(-steps[working], kind="stable")]
    lane = np.full(len(steps), -1, dtype=np.int64)
    start = np.zeros(len(steps), dtype=np.int64)
    if len(working) <= lanes:  # a lane for everybody
        lane[longest_first] = np.arange(len(working))
        return Schedule(len(working), steps, lane, start, steps[longest_first])
    free = [(0, number) for number in range(lanes)]
    for client in longest_first.tolist():
        begin, number = free[0]
        lane[client], start[client] = number, begin
        heapq.heapreplace(free, (begin + int(steps[client]), number))
    lengths = np.zeros(lanes, dtype=np.int64)
    for length, number in free:
        lengths[number] = length
    by_length = np.argsort(-lengths, kind="stable")
    rank = np.empty(lanes, dtype=np.int64)
    rank[by_length] = np.arange(lanes)
    lane[working] = rank[lane[working]]
    return Schedule(lanes, steps, lane, start, lengths[by_length])


def batch_table(
    schedule: Schedule,
    width: int,
    clients: IntArray,
    samples: IntArray,
    first_row: IntArray,
    batch_size: int,
    seed: int,
    round: int,
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """The rows of every step and lane, and which of them count: two arrays ``[steps, width, batch]``.

    What is beyond the lanes of the schedule does not count. `first_row` is where a client's samples begin. The order of
    samples is that of `batches.batch_indices`.
    """
    shape = (schedule.length, width, batch_size)
    rows, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    steps_per_epoch = -(-samples // batch_size)
    epoch = 0
    unfinished = np.flatnonzero(schedule.steps)
    while len(unfinished):
        owner = np.repeat(unfinished, samples[unfinished])
        begins = np.cumsum(samples[unfinished]) - samples[unfinished]
        place = np.arange(len(owner)) - np.repeat(begins, samples[unfinished])  # 0, 1, … within each client
        keys = streams.bits(seed, "batches", round, clients[owner], epoch, place)
        shuffled = place[_sort_within(owner, keys)]  # sample that comes at this place of its client's epoch
        step = epoch * steps_per_epoch[owner] + place // batch_size
        counts = step < schedule.steps[owner]
        owner, place, shuffled, step = owner[counts], place[counts], shuffled[counts], step[counts]
        where = (schedule.start[owner] + step, schedule.lane[owner], place % batch_size)
        rows[where] = first_row[owner] + shuffled
        mask[where] = True
        epoch += 1
        unfinished = unfinished[epoch * steps_per_epoch[unfinished] < schedule.steps[unfinished]]
    return rows, mask


def _sort_within(owner: IntArray, keys: npt.NDArray[np.uint64]) -> IntArray:
    """The order of the keys of each owner; owners are in ascending order. Several times faster than `np.lexsort`."""
    owner_bits = int(owner[-1]).bit_length() + 1  # a shift by all 64 is not defined
    joined = (owner.astype(np.uint64) << np.uint64(64 - owner_bits)) | (keys >> np.uint64(owner_bits))
    order = np.argsort(joined)
    ordered = joined[order]
    if (ordered[1:] == ordered[:-1]).any():  # what was cut off from the keys would decide
        return np.lexsort((keys, owner))
    return order
