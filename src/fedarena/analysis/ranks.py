"""Many methods at once: mean ranks over clients, and groups of methods that no test tells apart.

J. Demšar, "Statistical Comparisons of Classifiers over Multiple Data Sets" (JMLR 2006), with clients in the place of
data sets. Groups follow from Wilcoxon's tests with Holm's correction, as Benavoli et al. (JMLR 2016) advise: whether
two methods differ must not depend on which others are looked at. Nemenyi's critical difference is there to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedarena.analysis.paired import SIGNIFICANT
from fedarena.core.later import later

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = later("scipy.stats")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over clients, the best first; the best possible rank is 1."""

    labels: tuple[str, ...]
    mean_ranks: tuple[float, ...]
    clients: int
    friedman_p_value: float  # that all methods are alike
    critical_difference: float  # of mean ranks, after Nemenyi
    cliques: tuple[tuple[str, ...], ...]  # neighbours of which no two are told apart


def rank_methods(
    labels: Sequence[str], scores: FloatArray, higher_is_better: bool, told_apart: Callable[[str, str], bool]
) -> Ranking:
    """The ranking of methods by their scores ``[clients, methods]``."""
    ranks = mean_ranks(scores, higher_is_better)
    order = sorted(range(len(labels)), key=lambda place: (ranks[place], labels[place]))
    names = tuple(labels[place] for place in order)
    return Ranking(
        labels=names,
        mean_ranks=tuple(float(ranks[place]) for place in order),
        clients=len(scores),
        friedman_p_value=friedman_p_value(scores),
        critical_difference=critical_difference(len(labels), len(scores)),
        cliques=cliques(names, told_apart),
    )


def mean_ranks(scores: FloatArray, higher_is_better: bool) -> FloatArray:
    """The mean over clients of every method's rank; equal scores share the mean of their ranks.

    >>> mean_ranks(np.array([[0.9, 0.8, 0.8], [0.7, 0.5, 0.6]]), higher_is_better=True).tolist()
    [1.0, 2.75, 2.25]
    """
    ranks = stats.rankdata(-scores if higher_is_better else scores, axis=1)
    return np.asarray(ranks.mean(axis=0), dtype=np.float64)


def friedman_p_value(scores: FloatArray) -> float:
    """Friedman's test that all methods are alike; 1 where no client prefers any."""
    if np.all(scores == scores[:, :1]):
        return 1.0
    return float(stats.friedmanchisquare(*scores.T).pvalue)


def critical_difference(methods: int, clients: int, significance: float = SIGNIFICANT) -> float:
    """By how much mean ranks of two of so many methods must differ for Nemenyi's test to tell them apart."""
    q = float(stats.studentized_range.isf(significance, methods, np.inf)) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * clients)))


def cliques(labels: Sequence[str], told_apart: Callable[[str, str], bool]) -> tuple[tuple[str, ...], ...]:
    """Neighbours in a ranking, two at least and as many as possible, of which no two are told apart."""
    found: list[tuple[int, int]] = []
    for start in range(len(labels)):
        end = start + 1
        while end < len(labels) and not any(told_apart(one, labels[end]) for one in labels[start:end]):
            end += 1
        if end - start > 1 and not (found and found[-1][1] >= end):
            found.append((start, end))
    return tuple(tuple(labels[start:end]) for start, end in found)
