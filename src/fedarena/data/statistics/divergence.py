"""How far apart the labels of two clients are: the Jensen–Shannon distance of pairs of clients.

Fig. 3(b) of FedScale (Lai et al., ICML 2022) shows its density over pairs. The distance is the square root of the
divergence; with logarithms to base 2, which the paper leaves open, it is 0 for clients with the same mix of labels and
1 for clients who have no label in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedarena.core.streams import bits, generator
from fedarena.data.store.schema import IntArray

FloatArray = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], IntArray]

MAX_CLIENTS = 1_000
MAX_PAIRS = 10_000
HISTOGRAM_BINS = 50
FEWEST_DRAWS, MOST_DRAWS = 3, 20  # of every client's labels by chance
# Of very many labels, fewer clients, pairs and draws are looked at: numbers in a table of clients and labels, in all
# tables of pairs and labels together, and in one of them.
TABLE_NUMBERS = 1 << 22
ALL_NUMBERS = 1 << 25
CHUNK_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Spread:
    """How some numbers are spread."""

    mean: float
    quantiles: FloatArray  # at 0 %, 1 %, …, 100 %

    @classmethod
    def of(cls, values: FloatArray) -> Spread:
        """That of `values`."""
        return cls(float(values.mean()), np.quantile(values, np.linspace(0, 1, 101)))


@dataclass(frozen=True)
class PairStatistics:
    """Jensen–Shannon distances between the labels of two clients."""

    clients: int
    pairs: int
    distances: Spread
    distances_by_chance: Spread  # the same, if every client had drawn its labels or samples from those of all clients
    histogram: IntArray  # [HISTOGRAM_BINS], of pairs, from 0 to 1
    histogram_by_chance: FloatArray  # the mean over draws


def table_rows(labels: int) -> int:
    """How many clients to look at, where there are so many labels."""
    return max(2, min(MAX_CLIENTS, TABLE_NUMBERS // labels))


def describe_pairs(counts: IntArray, draw: Draw) -> PairStatistics:
    """Distances of pairs of clients with the labels ``counts[client]``; `draw` gives such counts by chance."""
    first, second = choose_pairs(len(counts), max(1, min(MAX_PAIRS, ALL_NUMBERS // counts.shape[1])))
    real = jensen_shannon_distances(counts, first, second)
    random = generator(0, "statistics/labels by chance")
    draws = max(FEWEST_DRAWS, min(MOST_DRAWS, ALL_NUMBERS // (len(first) * counts.shape[1])))
    by_chance = np.concatenate([jensen_shannon_distances(draw(random), first, second) for _ in range(draws)])
    return PairStatistics(
        clients=len(counts),
        pairs=len(first),
        distances=Spread.of(real),
        distances_by_chance=Spread.of(by_chance),
        histogram=_histogram(real),
        histogram_by_chance=_histogram(by_chance) / draws,
    )


def labels_by_chance(counts: IntArray, overall: FloatArray) -> Draw:
    """As many labels as each client has, drawn one by one from those of all clients."""
    numbers = counts.sum(axis=1)
    return lambda random: random.multinomial(numbers, overall)


def choose_pairs(clients: int, limit: int) -> tuple[IntArray, IntArray]:
    """All pairs of different clients, or `limit` of them that are drawn at random."""
    if clients * (clients - 1) // 2 <= limit:
        return np.triu_indices(clients, 1)
    draws = np.arange(limit)
    first = bits(0, "statistics/first of a pair", draws) % np.uint64(clients)
    further = bits(0, "statistics/second of a pair", draws) % np.uint64(clients - 1)
    second = (first + further + np.uint64(1)) % np.uint64(clients)
    return first.astype(np.int64), second.astype(np.int64)


def jensen_shannon_distances(counts: IntArray, first: IntArray, second: IntArray) -> FloatArray:
    """The distance of the mixes of ``counts[first[i]]`` and ``counts[second[i]]`` for every i."""
    from scipy.special import rel_entr  # takes a moment to import, which no run needs

    totals = counts.sum(axis=1, keepdims=True)
    divergences = np.empty(len(first))
    pairs_per_chunk = max(CHUNK_NUMBERS // counts.shape[1], 1)
    for start in range(0, len(first), pairs_per_chunk):
        chunk = slice(start, start + pairs_per_chunk)
        p = counts[first[chunk]] / totals[first[chunk]]
        q = counts[second[chunk]] / totals[second[chunk]]
        middle = (p + q) / 2
        divergences[chunk] = (rel_entr(p, middle) + rel_entr(q, middle)).sum(axis=1) / (2 * np.log(2))
    return np.sqrt(np.clip(divergences, 0, 1))  # rounding may leave the range


def _histogram(distances: FloatArray) -> IntArray:
    return np.histogram(distances, bins=HISTOGRAM_BINS, range=(0, 1))[0].astype(np.int64)
