"""Which client trains where and when if several train at once.

Clients train in *lanes*. In every step, each lane takes one gradient step of the client it is at; when that client is
done, the next one takes its place at once, so a few clients with very much data do not leave the other lanes idle.
Lanes are sorted by length: those still at work are always the first ones.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

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


def order_of_starts(schedule: Schedule) -> IntArray:
    """The clients, those first who begin first."""
    return np.argsort(schedule.start, kind="stable")


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


def deal_out(steps: IntArray, shards: int) -> list[IntArray]:
    """Divides clients into about so many shards for several workers, longest clients first.

    Clients in a shard have about as many steps, so that they keep its lanes busy together; but no shard of several
    clients has much more than a quarter of all steps, because then the others would have to wait for it. A client that
    makes it more is in it if half of its steps are within the quarter, so that no few are left over for a fifth shard.
    """
    longest_first = np.argsort(-steps, kind="stable")
    most_steps = steps.sum() / 4
    dealt: list[IntArray] = []
    start = 0
    while start < len(steps):
        room = -(-(len(steps) - start) // max(1, shards - len(dealt)))
        of_clients = steps[longest_first[start : start + room]]
        size = max(1, int(np.searchsorted(np.cumsum(of_clients) - of_clients / 2, most_steps, side="right")))
        dealt.append(longest_first[start : start + size])
        start += size
    return dealt


def place_steps(schedule: Schedule, widths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Which client is in each lane in every step, and which of its steps it takes; -1 for nobody.

    Both arrays have an entry for each of so many lanes (`widths`) of the first step, then of the second, and so on:
    there may be many steps of few lanes. The third says where every step's entries begin, and where the last ones end.
    """
    begins = np.concatenate([[0], np.cumsum(widths)])
    client, number = (np.full(begins[-1], -1, dtype=np.int64) for _ in range(2))
    owner = np.repeat(np.arange(len(schedule.steps)), schedule.steps)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(schedule.steps) - schedule.steps, schedule.steps)
    where = begins[schedule.start[owner] + step] + schedule.lane[owner]
    client[where], number[where] = owner, step
    return client, number, begins
