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

from fedarena.core import streams
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


@dataclass(frozen=True)
class Batches:
    """The batches of every step of some clients, one client after the other."""

    rows: IntArray  # [steps, batch] samples, counted within their client
    mask: npt.NDArray[np.bool_]  # [steps, batch] which of them count
    first: IntArray  # [clients] number of a client's first step
    until: IntArray  # [steps + 1] how many samples count before each step, and in all

    def processed(self, steps: IntArray) -> IntArray:
        """How many samples each client processes over all its steps."""
        processed: IntArray = self.until[self.first + steps] - self.until[self.first]
        return processed


def batch_width(batch_size: int, largest: int) -> int:
    """How many places a batch has, of clients of whom the largest has so many samples.

    Places beyond that would be padding for everybody. Powers of two, because every width needs a program of its own.
    """
    return min(batch_size, 1 << max(largest - 1, 0).bit_length())


def draw_batches(
    clients: IntArray,
    samples: IntArray,
    steps: IntArray,
    batch_size: int | IntArray,
    seed: int,
    rounds: IntArray,
    width: int | None = None,
) -> Batches:
    """The batches of `batches.batch_indices`, for many clients at once, padded to `width` (else the batch size).

    Batches may have another size for every client.
    """
    first = np.cumsum(steps) - steps
    places = int(np.max(batch_size, initial=1)) if width is None else width
    sizes = np.broadcast_to(batch_size, len(clients))
    steps_per_epoch = -(-samples // sizes)
    rows = np.zeros((int(steps.sum()), places), dtype=np.int64)
    owner = np.repeat(np.arange(len(steps)), steps)
    number = (np.arange(len(owner)) - first[owner]) % np.maximum(steps_per_epoch, 1)[owner]  # within its epoch
    of_steps = np.minimum(sizes[owner], samples[owner] - number * sizes[owner])
    mask = np.arange(places) < of_steps[:, None]
    until = np.concatenate([[0], np.cumsum(np.minimum(of_steps, places))])
    epoch = 0
    unfinished = np.flatnonzero(steps)
    while len(unfinished):
        before = epoch * steps_per_epoch
        for some in _of_similar_size(unfinished, samples):
            shuffled = _shuffled(seed, rounds[some], clients[some], epoch, samples[some])
            place = np.arange(shuffled.shape[1])  # 0, 1, … within each client
            most = np.minimum(samples[some], (steps - before)[some] * sizes[some])
            alike = sizes[some][:1] if (sizes[some] == sizes[some[0]]).all() else sizes[some][:, None]
            step, within = np.divmod(place, alike)
            where = (first + before)[some, None] * places + (step * places + within)
            if most.min() < len(place):
                counts = place < most[:, None]
                where, shuffled = where[counts], shuffled[counts]
            rows.reshape(-1)[where] = shuffled
        epoch += 1
        unfinished = unfinished[epoch * steps_per_epoch[unfinished] < steps[unfinished]]
    return Batches(rows, mask, first, until)


def _of_similar_size(clients: IntArray, samples: IntArray) -> list[IntArray]:
    """Groups of clients of whom none has twice as many samples as another."""
    octaves = np.frexp(samples[clients])[1]
    if (octaves == octaves[0]).all():
        return [clients]
    return [clients[octaves == octave] for octave in np.unique(octaves)]


def _shuffled(seed: int, rounds: IntArray, clients: IntArray, epoch: int, samples: IntArray) -> IntArray:
    """Which sample of each client comes at which place of an epoch: ``[clients, most samples]``, rubbish at the end.

    Short rows are sorted many times faster than all samples at once, by whom they belong to and their keys.
    """
    place = np.arange(samples.max())
    keys = streams.bits(seed, "batches", rounds[:, None], clients[:, None], epoch, place)
    if samples.min() < len(place):
        keys[place >= samples[:, None]] = np.iinfo(np.uint64).max
    return _ranked(keys, samples)


def _ranked(keys: npt.NDArray[np.uint64], counts: IntArray) -> IntArray:
    """The order of so many keys of each row, of which none after them is less; equal ones stay in their order."""
    order: IntArray = np.argsort(keys, axis=1)
    ordered = np.take_along_axis(keys, order, 1)
    equal = ordered[:, 1:] == ordered[:, :-1]
    if equal.any() and (equal & (np.arange(1, keys.shape[1]) <= counts[:, None])).any():
        order = np.argsort(keys, axis=1, kind="stable")
    return order


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
