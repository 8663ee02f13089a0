"""Sign tests: does one optimizer end better than another on more problems than chance explains?

Problems are counted, not losses: the one whose mean over repetitions is better wins. Ties say nothing and are left out
of the test, which is the exact binomial one, one-sided, because the question is whether an advanced method surpasses
its baseline (Tables 2 and 3 of FedHPO-Bench).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from scipy import stats

_NEAR: Final = 1e-12  # relative; means over the same values in another order are no win

# The comparisons of the paper: black-box optimizers with random search, multi-fidelity ones with Hyperband, and
# multi-fidelity ones with those of a single fidelity that they are made of.
AGAINST_BASELINES: Final = (
    *((name, "random") for name in ("bo_gp", "bo_rf", "bo_kde", "de")),
    *((name, "hyperband") for name in ("bohb", "dehb", "tpe_md", "tpe_hb")),
)
AGAINST_SINGLE_FIDELITY: Final = (("hyperband", "random"), ("dehb", "de"), ("bohb", "bo_kde"))


@dataclass(frozen=True)
class SignTest:
    """On how many problems the first optimizer ends better than the second, and how likely as many are by chance."""

    first: str
    second: str
    wins: int
    ties: int
    losses: int
    p_value: float  # of as many wins or more if both were equally good

    @property
    def counts(self) -> str:
        """As the paper writes it: "13/0/7"."""
        return f"{self.wins}/{self.ties}/{self.losses}"


def sign_test(first: str, second: str, finals: Mapping[str, Mapping[str, float]]) -> SignTest:
    """Compares two optimizers by ``finals[problem][optimizer]``, of which smaller ones are better.

    Problems that one of them has not finished are left out; one that found nothing finite loses.

    >>> finals = {f"problem {n}": {"a": 0.1, "b": 0.2} for n in range(4)} | {"tie": {"a": 0.5, "b": 0.5}}
    >>> sign_test("a", "b", finals)
    SignTest(first='a', second='b', wins=4, ties=1, losses=0, p_value=0.0625)
    """
    wins = ties = losses = 0
    for found in finals.values():
        if first not in found or second not in found:
            continue
        one, other = found[first], found[second]
        if one == other or math.isclose(one, other, rel_tol=_NEAR):
            ties += 1
        elif one < other:
            wins += 1
        else:
            losses += 1
    decided = wins + losses
    p_value = float(stats.binomtest(wins, decided, alternative="greater").pvalue) if decided else 1.0
    return SignTest(first, second, wins, ties, losses, p_value)
