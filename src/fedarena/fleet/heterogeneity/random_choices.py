"""Where the random choices of simulated rounds come from: whom to invite among many, and how fast a transfer is.

By default a choice follows from seed, simulation, round and client alone. For comparison with the published code there
are also its own random numbers, to the last one: every simulation has a generator of NumPy, all with the same seed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.fleet.arrays import IntArray
from fedarena.fleet.heterogeneity.options import HeterogeneityOptions
from fedarena.fleet.heterogeneity.populations import AvailableClients, RoundStarts

# Simulations of a repetition have streams of random numbers from a multiple of this on.
STREAMS_PER_REPETITION = 1_000_000

Bits = npt.NDArray[np.uint64]
_HALF_BITS = np.uint64(32)
_LOWER_HALF = np.uint64(2**32 - 1)


class RandomChoices(Protocol):
    """Makes random choices for rounds of many simulations at once."""

    may_draw: bool  # whether clients may also be drawn before it is known who is available

    def choose_clients(self, rounds: RoundStarts, there: AvailableClients, number: int) -> AvailableClients:
        """At most `number` of the clients that are there, for each round."""

    def choose_speeds(
        self, streams_of: IntArray, rounds: IntArray, clients: IntArray, lists: IntArray
    ) -> tuple[Bits, Bits]:
        """Random bits for the download and the upload of clients, whose lists of measured speeds have these lengths.

        Clients of a simulation come one after the other, in the order in which they were chosen.
        """


class KeyedChoices:
    """Random numbers of `fedarena.core.streams`."""

    may_draw = True

    def __init__(self, seed: int):
        self._seed = seed

    def choose_clients(self, rounds: RoundStarts, there: AvailableClients, number: int) -> AvailableClients:
        """Those with the lowest random numbers."""
        counts = np.bincount(there.rows, minlength=len(rounds))
        crowded = counts > number
        if not crowded.any():
            return there
        numbers = np.zeros(len(there.rows), dtype=np.uint64)
        drawn = np.flatnonzero(crowded[there.rows])
        rows = there.rows[drawn]
        numbers[drawn] = streams.bits(
            self._seed, "heterogeneity/invitation", rounds.streams_of[rows], rounds.rounds[rows], there.clients[drawn]
        )
        return there.take(np.lexsort((numbers, there.rows))[ranks(counts) < number])

    def choose_speeds(
        self, streams_of: IntArray, rounds: IntArray, clients: IntArray, lists: IntArray
    ) -> tuple[Bits, Bits]:
        """Half of the bits of one number each."""
        random = streams.bits(self._seed, "heterogeneity/speeds", streams_of, rounds, clients)
        return random & _LOWER_HALF, random >> _HALF_BITS


class PublishedChoices:
    """Random numbers in the order in which the published code draws them."""

    may_draw = False

    def __init__(self, seed: int):
        self._seed = seed
        self._generators: dict[int, np.random.Generator] = {}

    def choose_clients(self, rounds: RoundStarts, there: AvailableClients, number: int) -> AvailableClients:
        """Chosen by a call of NumPy for every round that has enough clients."""
        counts = np.bincount(there.rows, minlength=len(rounds))
        crowded = np.flatnonzero(counts >= number)
        if not len(crowded):
            return there
        order, kept = np.arange(len(there.rows)), np.ones(len(there.rows), dtype=np.bool_)
        firsts = np.cumsum(counts) - counts
        for row in crowded:
            first, count = firsts[row], counts[row]
            order[first : first + number] += self._generator(rounds.streams_of[row]).choice(
                count, number, replace=False
            ) - np.arange(number)
            kept[first + number : first + count] = False
        return there.take(order[kept])

    def choose_speeds(
        self, streams_of: IntArray, rounds: IntArray, clients: IntArray, lists: IntArray
    ) -> tuple[Bits, Bits]:
        """Two positions in its list for every client, one client after the other."""
        found = np.empty((len(clients), 2), dtype=np.uint64)
        bounds = np.flatnonzero(np.append(True, (streams_of[1:] != streams_of[:-1]) | (rounds[1:] != rounds[:-1])))
        for first, last in zip(bounds, np.append(bounds[1:], len(clients)), strict=True):
            found[first:last] = self._generator(streams_of[first]).integers(0, lists[first:last])
        return found[:, 0], found[:, 1]

    def choose_for_rounds(
        self, stream: int, rounds: int, clients: int, number: int, lists: IntArray
    ) -> tuple[IntArray, Bits, Bits]:
        """`choose_clients` and `choose_speeds` for rounds of a simulation in which all are always there."""
        generator = self._generator(stream)
        chosen = np.empty((rounds, number), dtype=np.int64)
        positions = np.empty((rounds, number, 2), dtype=np.uint64)
        for round in range(rounds):
            chosen[round] = generator.choice(clients, number, replace=False)
            positions[round] = generator.integers(0, lists[chosen[round]])
        return chosen.reshape(-1), positions[..., 0].reshape(-1), positions[..., 1].reshape(-1)

    def _generator(self, stream: int) -> np.random.Generator:
        key = int(stream)
        if key not in self._generators:
            self._generators[key] = np.random.default_rng(self._seed + key // STREAMS_PER_REPETITION)
        return self._generators[key]


def choices_of(options: HeterogeneityOptions) -> RandomChoices:
    """What the option `random_numbers` names."""
    return PublishedChoices(options.seed) if options.random_numbers == "published" else KeyedChoices(options.seed)


def ranks(counts: IntArray) -> IntArray:
    """The numbers from 0 to before each of `counts`, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
