"""More clients in a round or more rounds in the same time? (Figure 7 of FedHPO-Bench)

With few clients a round is cheap, since nobody has to wait for many; with many, it moves the model further. The same
optimizer searches with every client sample rate under every condition of the system, with the same budget of simulated
seconds. Where connections are bad, few clients and many rounds are expected to do better, and where they are good, many
clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.hpo.analysis.ranks import best_over_time
from fedarena.hpo.problem import Problem
from fedarena.hpo.search import run_search

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RateOutcome:
    """What searches with one sample rate under one condition came to."""

    condition: str  # such as "bad network"
    client_sample_rate: float
    best: FloatArray  # [moments]: mean over repetitions of the incumbent's value; infinite while one has none
    final: float


def study_sample_rates(
    conditions: Mapping[str, Problem],
    shares: Sequence[float] | FloatArray,
    *,
    rates: Sequence[float] | None = None,
    optimizer: str | Mapping[str, Any] = "hyperband",
    budget_s: float | None = None,
    repetitions: int = 5,
) -> list[RateOutcome]:
    """Searches the same problem under several `conditions`, with each of its sample rates.

    `shares` of the budget are the moments at which the best is told. By default all rates that a problem knows.
    """
    outcomes = []
    for condition, problem in conditions.items():
        for rate in rates or problem.sample_rates:
            found = [
                run_search(problem, optimizer, budget_s, seed=seed, client_sample_rate=rate)
                for seed in range(repetitions)
            ]
            best = np.mean([best_over_time(one, shares) for one in found], axis=0)
            final = float(np.mean([best_over_time(one, [1.0])[0] for one in found]))
            outcomes.append(RateOutcome(condition, rate, best, final))
    return outcomes


def best_rates(outcomes: Sequence[RateOutcome]) -> dict[str, float]:
    """The sample rate that did best in the end, under each condition."""
    best: dict[str, RateOutcome] = {}
    for one in outcomes:
        if one.condition not in best or one.final < best[one.condition].final:
            best[one.condition] = one
    return {condition: one.client_sample_rate for condition, one in best.items()}
