"""Is the difference real? Every pair of methods over the seeds and the clients that both have, and all of them ranked.

Seeds and clients answer different questions. Over seeds: would the difference be there again if everything random were
drawn anew? Over clients: is it there for clients in general, or for a few of them? With one seed only the second can be
asked, and the answer is about the two models that were trained, not about the methods that trained them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedarena.analysis.paired import (
    SIGNIFICANT,
    ClientDifference,
    FloatArray,
    SeedDifference,
    holm,
    over_clients,
    over_seeds,
    without_rounding,
)
from fedarena.analysis.ranks import Ranking, rank_methods

MOST_METHODS: Final = 30  # of more, each is compared with the best alone
MOST_CLIENTS: Final = 10_000  # of more, every second, third, … is looked at: tests are sure of themselves long before
FEWEST_CLIENTS: Final = 6  # of fewer, tests over clients can never be significant, whatever is found
FEWEST_RANKED: Final = 3


@dataclass(frozen=True)
class MethodScores:
    """What a method scored with each of its seeds: over all samples, and at single clients."""

    label: str
    by_seed: Mapping[int, float]
    by_client: Mapping[int, Mapping[str, float]]  # by seed

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(list(self.by_seed.values())))


@dataclass(frozen=True)
class Pair:
    """Two methods: the first minus the second. P-values are corrected for all pairs that were tested with it."""

    first: str
    second: str
    seeds: SeedDifference | None  # None where the methods have no seed in common
    clients: ClientDifference | None
    p_seeds: float | None
    p_wilcoxon: float | None
    p_sign: float | None

    @property
    def differs_over_seeds(self) -> bool:
        """Whether chance between seeds does not explain the difference."""
        return self.p_seeds is not None and self.p_seeds < SIGNIFICANT

    def better_over_seeds(self, higher_is_better: bool) -> str | None:
        """Who is better with the seeds that both have, whoever has the better mean of all; None if none is told to be.

        >>> seeds = over_seeds(np.array([-0.02, -0.03, -0.025]))
        >>> Pair("a", "b", seeds, None, seeds.p_value, None, None).better_over_seeds(higher_is_better=True)
        'b'
        """
        if self.seeds is None or not self.differs_over_seeds:
            return None
        return self.first if (self.seeds.mean > 0) == higher_is_better else self.second

    @property
    def differs_over_clients(self) -> bool:
        """Whether chance between clients does not explain the difference."""
        return self.p_wilcoxon is not None and self.p_wilcoxon < SIGNIFICANT


@dataclass(frozen=True)
class Comparison:
    """All methods that can be compared, the best mean first, and every pair of them."""

    labels: tuple[str, ...]
    pairs: tuple[Pair, ...]
    ranking: Ranking | None  # None for fewer than three methods, or too few clients that all have in common
    seeds: int  # the most that a pair has in common
    clients: int
    looked_at_all_clients: bool

    def pair(self, first: str, second: str) -> Pair | None:
        """The comparison of two methods, in whichever order it was made."""
        return next((pair for pair in self.pairs if {pair.first, pair.second} == {first, second}), None)


def compare_methods(methods: Sequence[MethodScores], higher_is_better: bool) -> Comparison:
    """Compares methods that were evaluated on the same federation."""
    sign = -1 if higher_is_better else 1
    methods = sorted(methods, key=lambda method: (sign * method.mean, method.label))
    tables, looked_at_all = _client_tables(methods)
    pairs = pairs_to_compare(len(methods))
    over = [
        (_seed_difference(methods[one], methods[other]), _client_difference(tables[one], tables[other]))
        for one, other in pairs
    ]
    p_seeds = holm([None if seeds is None else seeds.p_value for seeds, _ in over])
    p_wilcoxon = holm([None if clients is None else clients.wilcoxon_p_value for _, clients in over])
    p_sign = holm([None if clients is None else clients.sign_p_value for _, clients in over])
    found = tuple(
        Pair(methods[one].label, methods[other].label, seeds, clients, *p_values)
        for (one, other), (seeds, clients), *p_values in zip(pairs, over, p_seeds, p_wilcoxon, p_sign, strict=True)
    )
    return Comparison(
        labels=tuple(method.label for method in methods),
        pairs=found,
        ranking=_ranking(methods, tables, found, higher_is_better),
        seeds=max((seeds.seeds for seeds, _ in over if seeds is not None), default=0),
        clients=max((clients.clients for _, clients in over if clients is not None), default=0),
        looked_at_all_clients=looked_at_all,
    )


def told_best(scores: Mapping[str, Mapping[int, float]], higher_is_better: bool) -> frozenset[str]:
    """The methods that are told to be better than another, over seeds, and than which no other is told to be better.

    `scores` are those of each method by seed. The best mean is not among them where no test tells it from any other.
    """
    if len(scores) < 2:
        return frozenset()
    found = compare_methods([MethodScores(label, values, {}) for label, values in scores.items()], higher_is_better)
    better, worse = set(), set()
    for pair in found.pairs:
        if (winner := pair.better_over_seeds(higher_is_better)) is not None:
            better.add(winner)
            worse.add(pair.first if winner == pair.second else pair.second)
    return frozenset(better - worse)


def pairs_to_compare(methods: int) -> list[tuple[int, int]]:
    """Places of two methods each, the better one first: all pairs, or those with the best where all are too many."""
    if methods > MOST_METHODS:
        return [(0, other) for other in range(1, methods)]
    return list(itertools.combinations(range(methods), 2))


def _seed_difference(one: MethodScores, other: MethodScores) -> SeedDifference | None:
    common = sorted(one.by_seed.keys() & other.by_seed.keys())
    if not common:
        return None
    return over_seeds(np.array([one.by_seed[seed] - other.by_seed[seed] for seed in common]))


_Table = dict[int, FloatArray]  # by seed, a score of every client that any method knows; NaN where it is not known


def _client_tables(methods: Sequence[MethodScores]) -> tuple[list[_Table], bool]:
    """The scores of clients as arrays in a common order."""
    everybody = sorted({client for method in methods for scores in method.by_client.values() for client in scores})
    step = -(-len(everybody) // MOST_CLIENTS) if everybody else 1
    chosen = everybody[::step]
    tables = [
        {
            seed: np.array([scores.get(client, np.nan) for client in chosen], dtype=np.float64)
            for seed, scores in method.by_client.items()
        }
        for method in methods
    ]
    return tables, step == 1


def _client_difference(one: _Table, other: _Table) -> ClientDifference | None:
    """Differences of the clients, each a mean over the seeds with which both methods were evaluated on it."""
    common = sorted(one.keys() & other.keys())
    if not common:
        return None
    both = np.array([[table[seed] for seed in common] for table in (one, other)])  # [methods, seeds, clients]
    differences = _mean_of_known(both[0] - both[1])
    known = np.isfinite(differences)
    scale = np.where(np.isfinite(both), np.abs(both), 0.0).max(axis=(0, 1))[known]
    return over_clients(without_rounding(differences[known], scale)) if known.sum() > 1 else None


def _ranking(
    methods: Sequence[MethodScores], tables: Sequence[_Table], pairs: Sequence[Pair], higher_is_better: bool
) -> Ranking | None:
    if not FEWEST_RANKED <= len(methods) <= MOST_METHODS:
        return None
    common = sorted(set.intersection(*(set(table) for table in tables)))
    if not common:
        return None
    # A seed counts at a client where all methods have both.
    scores = np.array([[table[seed] for seed in common] for table in tables])  # [methods, seeds, clients]
    scores = _mean_of_known(np.where(np.isfinite(scores).all(axis=0), scores, np.nan).swapaxes(0, 1)).T
    scores = scores[np.isfinite(scores).all(axis=1)]
    if len(scores) < FEWEST_CLIENTS:
        return None
    differing = {frozenset((pair.first, pair.second)) for pair in pairs if pair.differs_over_clients}
    labels = [method.label for method in methods]
    scores = without_rounding(scores, np.abs(scores).max(axis=1, keepdims=True))
    return rank_methods(labels, scores, higher_is_better, lambda a, b: frozenset((a, b)) in differing)


def _mean_of_known(values: FloatArray) -> FloatArray:
    """Means along the first axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    number = known.sum(axis=0)
    sums = np.where(known, values, 0.0).sum(axis=0)
    means: FloatArray = np.divide(sums, number, out=np.full(number.shape, np.nan), where=number > 0)
    return means
