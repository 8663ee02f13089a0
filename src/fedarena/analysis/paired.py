"""Paired differences: how large they are, how sure that is, and whether chance alone would explain them.

Two methods are compared on the same seeds, and on the same clients. Over *seeds*, which are few, the mean difference
has an interval and a p-value of Student's t: a bootstrap of a handful of values draws the same ones again and again and
is far too sure of itself, so it begins where there are enough. Over *clients* there are Wilcoxon's signed-rank test and
the sign test, which ask for no distribution (Demšar 2006). Holm's correction keeps many pairs from finding by luck what
is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.later import later

if TYPE_CHECKING:
    from scipy import stats
else:
    stats = later("scipy.stats")

FloatArray = npt.NDArray[np.float64]

SIGNIFICANT: Final = 0.05  # a p-value below it, after Holm's correction, counts as a difference
CONFIDENCE: Final = 0.95
FEWEST_FOR_BOOTSTRAP: Final = 8
MOST_FOR_BOOTSTRAP: Final = 200  # of more, means are so close to a normal distribution that both intervals agree
_RESAMPLES: Final = 4_000
_RELATIVE_ROUNDING: Final = 1e-9
_MOST_FOR_EXACT_TEST: Final = 50
_SMALLEST: Final = 1e-280  # below which scores are taken for zeros
_DIGITS: Final = 12  # of scores, to which they count as equal, so that ranks do not hang on the order of additions


@dataclass(frozen=True)
class SeedDifference:
    """The difference of two methods over the seeds that both have."""

    seeds: int
    mean: float
    interval: tuple[float, float] | None  # None with a single seed, which says nothing about others
    p_value: float | None


@dataclass(frozen=True)
class ClientDifference:
    """The difference of two methods over the clients on whom both were evaluated."""

    clients: int
    mean: float
    interval: tuple[float, float] | None
    median: float
    higher: int  # at so many clients the first method scores higher
    lower: int
    wilcoxon_p_value: float
    sign_p_value: float

    @property
    def smallest_p_value(self) -> float:
        """What the tests come to if all clients agree: with few of them, not even that is significant."""
        return float(min(1.0, 2.0 ** (1 - self.clients)))


def over_seeds(differences: FloatArray) -> SeedDifference:
    """What differences say that were found with one seed each.

    >>> found = over_seeds(np.array([0.02, 0.03, 0.025]))
    >>> round(found.mean, 3), [round(end, 3) for end in found.interval], round(found.p_value, 3)
    (0.025, [0.013, 0.037], 0.013)
    """
    mean = float(differences.mean())
    return SeedDifference(len(differences), mean, mean_interval(differences), _t_p_value(differences))


def over_clients(differences: FloatArray) -> ClientDifference:
    """What the differences at single clients say."""
    higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
    return ClientDifference(
        clients=len(differences),
        mean=float(differences.mean()),
        interval=mean_interval(differences),
        median=float(np.median(differences)),
        higher=higher,
        lower=lower,
        wilcoxon_p_value=wilcoxon_p_value(differences),
        sign_p_value=float(stats.binomtest(higher, higher + lower).pvalue) if higher + lower else 1.0,
    )


def without_rounding(values: FloatArray, scale: FloatArray) -> FloatArray:
    """Values that were computed from scores of this size, of which equal ones are equal to the last bit.

    Every client has its own size: one whose score is enormous makes no others equal.

    >>> without_rounding(np.array([0.3 - 0.2, 0.2 - 0.1, 1e14]), np.array([0.3, 0.2, 1e14])).tolist()
    [0.1, 0.1, 100000000000000.0]
    """
    places = _DIGITS - np.ceil(np.log10(np.maximum(scale, _SMALLEST)))
    power = 10.0 ** np.abs(places)  # a whole number, which is exact
    rounded: FloatArray = np.where(places >= 0, np.rint(values * power) / power, np.rint(values / power) * power)
    return rounded


def mean_interval(values: FloatArray) -> tuple[float, float] | None:
    """Where the mean lies with the confidence of 95%; None for a single value.

    Student's t for few values and for very many. Between, percentiles of a bootstrap, taken as much further out as t is
    wider than a normal distribution with so many values ("expanded percentiles", Hesterberg 2015): plain ones are
    too narrow.
    """
    number = len(values)
    if number < 2:
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / np.sqrt(number)
    tail = float(stats.t.isf((1 - CONFIDENCE) / 2, number - 1))
    if not FEWEST_FOR_BOOTSTRAP <= number <= MOST_FOR_BOOTSTRAP or error == 0:
        return float(mean - tail * error), float(mean + tail * error)
    outside = stats.norm.sf(np.sqrt(number / (number - 1)) * tail)
    # In a fixed order and with a fixed sign: which seed, client or method is called the first decides nothing.
    rising, falling = np.sort(values), np.sort(-values)
    differing = np.flatnonzero(rising != falling)
    turned = bool(len(differing)) and bool(rising[differing[0]] < falling[differing[0]])
    drawn = streams.generator(0, "bootstrap").integers(0, number, (_RESAMPLES, number))
    low, high = np.quantile((falling if turned else rising)[drawn].mean(axis=1), [outside, 1 - outside]).tolist()
    return (-high, -low) if turned else (low, high)


def wilcoxon_p_value(differences: FloatArray) -> float:
    """The two-sided signed-rank test; clients without a difference are left out, and where all are, it is 1."""
    there = np.sort(differences[differences != 0])
    if len(there) > _MOST_FOR_EXACT_TEST:
        return float(stats.wilcoxon(there, method="asymptotic").pvalue)
    # SciPy tries all signs one by one where differences are equal, which takes seconds. Twice the ranks are whole
    # numbers, so it can be counted how many choices of signs come to each sum of ranks.
    ranks = (2 * stats.rankdata(np.abs(there))).astype(np.int64)
    choices = np.zeros(int(ranks.sum()) + 1)
    choices[0] = 1
    for rank in ranks:
        choices[rank:] = choices[rank:] + choices[:-rank]
    total = int(ranks[there > 0].sum())
    as_extreme = min(choices[: total + 1].sum(), choices[total:].sum()) / choices.sum()
    return float(min(1.0, 2 * as_extreme))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values that hold for all tests together (Holm 1979), in the order given; what is None was not tested.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    tested = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (value, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * value))
        adjusted[place] = largest
    return adjusted


def _t_p_value(differences: FloatArray) -> float | None:
    """The paired t-test; None for a single value."""
    number = len(differences)
    if number < 2:
        return None
    if np.ptp(differences) <= _RELATIVE_ROUNDING * np.abs(differences).max():
        # The same difference each time (a few test samples, say) tells nothing of the noise: it is as likely as so many
        # coins that fall on the same side.
        return float(2.0 ** (1 - number)) if differences[0] else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)
