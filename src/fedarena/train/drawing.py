"""The batches of many clients at once: those that `batches.batch_indices` gives for each, on the host or on a GPU.

A GPU draws those of large cohorts, so that the host, for which small models are waiting, has less to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.models.keyed_random import continued
from fedarena.train.batches import IntArray
from fedarena.train.tensors import sent_to

# How many samples a GPU draws: fewer are no work for a host, and more would leave little memory for training.
_FEWEST_ON_GPU, _MOST_ON_GPU = 1 << 15, 1 << 22
_LEAST_INT64 = -(1 << 63)


@dataclass(frozen=True)
class Batches(ABC):
    """The batches of every step of some clients, one client after the other."""

    places: int  # in every batch
    sizes: IntArray  # [steps] samples of a batch, which are in its first places
    until: IntArray  # [steps + 1] samples before each step, and in all
    first: IntArray  # [clients] number of a client's first step

    def processed(self, steps: IntArray) -> IntArray:
        """How many samples each client processes over all its steps."""
        processed: IntArray = self.until[self.first + steps] - self.until[self.first]
        return processed

    @abstractmethod
    def on_device(
        self, device: torch.device, steps: IntArray, counts: IntArray, first_row: IntArray
    ) -> tuple[Tensor, Tensor]:
        """Rows of samples, and which of them count: ``[some, places]``, in as many steps as are asked for.

        Only the first `counts` places of each do; a client's samples begin at its `first_row`.
        """


@dataclass(frozen=True)
class HostBatches(Batches):
    """Batches that are in main memory."""

    rows: IntArray  # [steps, places] samples, counted within their client

    def on_device(
        self, device: torch.device, steps: IntArray, counts: IntArray, first_row: IntArray
    ) -> tuple[Tensor, Tensor]:
        """See `Batches`."""
        mask = np.arange(self.places) < counts[:, None]
        rows = np.where(mask, self.rows[steps] + first_row[:, None], 0)
        return sent_to(device, rows), sent_to(device, mask)


@dataclass(frozen=True)
class DeviceBatches(Batches):
    """Batches that a device has drawn."""

    order: Tensor  # samples, counted within their client: all epochs of the first client, then of the second, and so on
    begins: IntArray  # [steps] where in this order a batch begins

    def on_device(
        self, device: torch.device, steps: IntArray, counts: IntArray, first_row: IntArray
    ) -> tuple[Tensor, Tensor]:
        """See `Batches`."""
        begins, of_counts, rows = sent_to(device, np.stack([self.begins[steps], counts, first_row])).unsqueeze(-1)
        places = torch.arange(self.places, device=device)
        mask = places < of_counts
        found = self.order.take((begins + places).clamp_(max=len(self.order) - 1))
        return found.add_(rows).mul_(mask), mask


@dataclass(frozen=True)
class BatchPlan:
    """Which batches there are, before their samples are drawn: of each client, but for the seed and the width."""

    clients: IntArray
    samples: IntArray
    steps: IntArray
    batch_size: int | IntArray
    seed: int
    rounds: IntArray
    width: int | None = None  # of all batches, which are padded; otherwise that of the largest

    @cached_property
    def places(self) -> int:
        """How many samples a batch has room for."""
        return int(np.max(self.batch_size, initial=1)) if self.width is None else self.width

    @cached_property
    def batch_sizes(self) -> IntArray:
        """Of each client."""
        return np.broadcast_to(self.batch_size, len(self.clients))

    @cached_property
    def steps_per_epoch(self) -> IntArray:
        """Of each client; 1 if it has no samples."""
        per_epoch: IntArray = np.maximum(-(-self.samples // self.batch_sizes), 1)
        return per_epoch

    @cached_property
    def drawn_samples(self) -> IntArray:
        """Of each client, over all its epochs."""
        return -(-self.steps // self.steps_per_epoch) * self.samples

    @cached_property
    def first(self) -> IntArray:
        """The number of a client's first step."""
        return np.cumsum(self.steps) - self.steps

    def of_steps(self) -> tuple[IntArray, IntArray, IntArray]:
        """The client of every step, which epoch it belongs to, and which sample of that it begins with."""
        owner = np.repeat(np.arange(len(self.steps)), self.steps)
        epoch, number = np.divmod(np.arange(len(owner)) - self.first[owner], self.steps_per_epoch[owner])
        return owner, epoch, number * self.batch_sizes[owner]

    def common_fields(self, owner: IntArray, begin: IntArray) -> tuple[int, IntArray, IntArray, IntArray]:
        """Those of all `Batches`, for batches of these clients that begin with these samples of an epoch."""
        sizes = np.minimum(np.minimum(self.batch_sizes[owner], self.samples[owner] - begin), self.places)
        return self.places, sizes, np.concatenate([[0], np.cumsum(sizes)]), self.first


def batch_width(batch_size: int, largest: int) -> int:
    """How many places a batch has, of clients of whom the largest has so many samples.

    Places beyond that would be padding for everybody. Powers of two, because every width needs a program of its own.
    """
    return min(batch_size, 1 << max(largest - 1, 0).bit_length())


def drawn(plan: BatchPlan, device: torch.device) -> Batches:
    """The batches, drawn where that takes less time. They are the same wherever they are drawn."""
    if device.type == "cuda" and _FEWEST_ON_GPU <= int(plan.drawn_samples.sum()) <= _MOST_ON_GPU:
        return drawn_on(plan, device)
    return drawn_on_host(plan)


def drawn_on(plan: BatchPlan, device: torch.device) -> DeviceBatches:
    """The samples of all epochs are sorted at once, by their client, their epoch and their keys."""
    owner, epoch, begin = plan.of_steps()
    samples, counts = plan.samples, plan.drawn_samples
    begins, total = np.cumsum(counts) - counts, int(counts.sum())
    keys = np.asarray(streams.bits(plan.seed, "batches", plan.rounds, plan.clients)).view(np.int64)
    of_clients = sent_to(device, np.stack([counts, keys, samples, begins, np.arange(len(counts))]))
    key, of_client, first, client = of_clients[1:].repeat_interleave(of_clients[0], dim=1, output_size=total)
    place = torch.arange(total, device=device).sub_(first)
    epochs = place.div(of_client, rounding_mode="floor")
    place.sub_(epochs * of_client)  # within their epoch
    bits = continued(continued(key, epochs), place).bitwise_xor_(_LEAST_INT64)  # which orders them as without a sign
    by_key = bits.argsort(stable=True)
    group = client * (int(epoch.max(initial=0)) + 1) + epochs
    order = place.take(by_key.take(group.take(by_key).argsort(stable=True)))
    of_steps = begins[owner] + epoch * samples[owner] + begin
    return DeviceBatches(*plan.common_fields(owner, begin), order, of_steps)


def drawn_on_host(plan: BatchPlan) -> HostBatches:
    """One epoch after the other, of clients of about the same size together."""
    samples, first, places = plan.samples, plan.first, plan.places
    owner, _, begin = plan.of_steps()
    rows = np.zeros((len(owner), places), dtype=np.int64)
    unfinished, epoch = np.flatnonzero(plan.steps), 0
    while len(unfinished):
        before = epoch * plan.steps_per_epoch
        for some in _of_similar_size(unfinished, samples):
            shuffled = _shuffled(plan.seed, plan.rounds[some], plan.clients[some], epoch, samples[some])
            place = np.arange(shuffled.shape[1])  # 0, 1, … within each client
            sizes = plan.batch_sizes[some]
            most = np.minimum(samples[some], (plan.steps - before)[some] * sizes)
            step, within = np.divmod(place, sizes[:1] if (sizes == sizes[0]).all() else sizes[:, None])
            where = (first + before)[some, None] * places + (step * places + within)
            if most.min() < len(place):
                counts = place < most[:, None]
                where, shuffled = where[counts], shuffled[counts]
            rows.reshape(-1)[where] = shuffled
        epoch += 1
        unfinished = unfinished[epoch * plan.steps_per_epoch[unfinished] < plan.steps[unfinished]]
    return HostBatches(*plan.common_fields(owner, begin), rows)


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
