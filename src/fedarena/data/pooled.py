"""Training on pooled samples: what could be learned if nobody's data were their own.

The training samples of all training clients form one *pool*. Made-up clients hold pieces of an endless sequence of
shuffles of it. They are numbered after the real clients, who keep their numbers and samples, so that models which were
trained on the pool are still evaluated on real people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedarena.core import streams
from fedarena.data.store.federation import ClientSamples, Federation
from fedarena.data.store.schema import AnyArray, IntArray, Part
from fedarena.data.store.stretches import rows_of

_FEISTEL_ROUNDS = 8
# Halves of one or two bits mix so badly that neighbours in a shuffle of a handful of samples would not be independent.
_LEAST_BITS = 6


class PooledFederation:
    """The real clients of a federation, and behind them made-up ones who hold its pooled training samples.

    `samples_per_client` is how many each made-up client has: the first those at the beginning of the sequence, the next
    those that follow, without end. If it is None, there are as many as `pooled_clients`, each with as many samples as
    one of these; together they hold every pooled sample once, which makes them independent and identically distributed.
    Nothing here is as large as the pool, and asking for a client costs as much as it has samples.
    """

    def __init__(self, federation: Federation, pooled_clients: IntArray, seed: int, samples_per_client: int | None):
        self.federation = federation
        self._clients, self._seed, self._samples_per_client = pooled_clients, seed, samples_per_client
        self._bounds = np.concatenate([[0], np.cumsum(federation.counts(pooled_clients, "train"))])

    @property
    def pool_size(self) -> int:
        """Number of samples in the pool."""
        return int(self._bounds[-1])

    def made_up_clients(self, number: int) -> IntArray:
        """The indexes of the first so many made-up clients."""
        return self.federation.num_clients + np.arange(number, dtype=np.int64)

    def counts(self, clients: Sequence[int] | IntArray, part: Part | Literal["all"]) -> IntArray:
        """How many samples each of the clients has; those of made-up clients are all for training."""
        chosen = np.asarray(clients, dtype=np.int64)
        if not self._are_made_up(chosen):
            return self.federation.counts(chosen, part)
        return self._pieces(chosen, part)[1]

    def samples(self, clients: Sequence[int] | IntArray, part: Part | Literal["all"]) -> ClientSamples:
        """The samples of the clients, in their order."""
        chosen = np.asarray(clients, dtype=np.int64)
        if not self._are_made_up(chosen):
            return self.federation.samples(chosen, part)
        starts, counts = self._pieces(chosen, part)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        places = shuffled_places(rows_of(starts, counts), self.pool_size, self._seed)
        owners = np.searchsorted(self._bounds, places, side="right") - 1
        columns = self.federation.samples_at(self._clients[owners], places - self._bounds[owners], "train")
        return ClientSamples(columns, offsets)

    def client_ids(self, clients: Sequence[int] | IntArray) -> list[str]:
        """The ids of real clients; numbers for made-up ones."""
        chosen = np.asarray(clients, dtype=np.int64)
        if not self._are_made_up(chosen):
            return self.federation.client_ids(chosen)
        return [f"pooled {number}" for number in (chosen - self.federation.num_clients).tolist()]

    def _are_made_up(self, clients: IntArray) -> bool:
        made_up = clients >= self.federation.num_clients
        if made_up.any() and not made_up.all():
            raise ValueError("Real and made-up clients cannot be asked for at once")
        return bool(made_up.any())

    def _pieces(self, clients: IntArray, part: str) -> tuple[IntArray, IntArray]:
        """Where in the sequence each made-up client's samples begin, and how many they are."""
        numbers = clients - self.federation.num_clients
        if self._samples_per_client is None:
            starts, counts = self._bounds[numbers], np.diff(self._bounds)[numbers]
        else:
            starts, counts = numbers * self._samples_per_client, np.full(len(numbers), self._samples_per_client)
        return starts, counts if part in ("train", "all") else np.zeros_like(counts)


def shuffled_places(positions: IntArray, size: int, seed: int) -> AnyArray:
    """The places in the pool of these positions in an endless sequence of shuffles of ``0..size-1``.

    A Feistel network permutes the numbers of a few bits; those that land beyond the pool go through it again until they
    do not. So a place is found without shuffling anything.
    """
    shuffle, places = np.divmod(positions, size)
    bits = max(_LEAST_BITS, (size - 1).bit_length())
    beyond = np.arange(len(positions))
    while len(beyond):
        places[beyond] = _feistel(places[beyond], bits, seed, shuffle[beyond])
        beyond = beyond[places[beyond] >= size]
    return places


def _feistel(numbers: IntArray, bits: int, seed: int, shuffle: IntArray) -> IntArray:
    """A permutation of ``0..2**bits-1``: in turn, each half is changed by a random function of the other."""
    low_bits = bits // 2
    halves = [numbers & ((1 << low_bits) - 1), numbers >> low_bits]
    masks = [(1 << low_bits) - 1, (1 << (bits - low_bits)) - 1]
    for number in range(_FEISTEL_ROUNDS):
        changed, other = number % 2, 1 - number % 2
        random = streams.bits(seed, "pool", shuffle, number, halves[other]) >> np.uint64(1)
        halves[changed] = halves[changed] ^ (random.astype(np.int64) & masks[changed])
    return halves[0] | (halves[1] << low_bits)
