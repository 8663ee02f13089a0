"""More clients in a round or more rounds in the same time? (Figure 7 of FedHPO-Bench)

With few clients a round is cheap, since nobody has to wait for many; with many, it moves the model further. The same
optimizer searches with every client sample rate under every condition of the system, with the same budget of simulated
seconds. Where connections are bad, few clients and many rounds are expected to do better, and where they are good, many
clients.

In the paper computing is negligible where the network is bad and significant where it is good. Here, a server with a
bad network sends its model to one client after the other, which takes N times as long for N clients, and with a good
one it is the slowest client's computing that everybody waits for, which grows with the logarithm of N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.hpo.analysis.ranks import best_over_time
from fedarena.hpo.cost import BAD_NETWORK, GOOD_NETWORK, SystemModel
from fedarena.hpo.problem import Fidelity, Problem
from fedarena.hpo.search import run_search

FloatArray = npt.NDArray[np.float64]

NETWORKS: Final[Mapping[str, SystemModel]] = {
    "bad network": replace(BAD_NETWORK, server_bytes_per_second=BAD_NETWORK.download_bytes_per_second, client_s=0.0),
    "good network": replace(GOOD_NETWORK, server_bytes_per_second=GOOD_NETWORK.download_bytes_per_second, client_s=1.0),
}
COURSES: Final = 5  # that a budget is enough for, with all clients and all rounds


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
    courses: float = COURSES,
    repetitions: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> list[RateOutcome]:
    """Searches the same problem under several `conditions`, with each of its sample rates.

    Under each condition all rates have the same budget, the simulated seconds of so many whole `courses` with the
    largest rate. `shares` of it are the moments at which the best is told. By default all rates that a problem knows.
    """
    chosen = {condition: tuple(rates or problem.sample_rates) for condition, problem in conditions.items()}
    for condition, problem in conditions.items():
        if len(chosen[condition]) < 2:
            raise BadInputError(
                f"{problem.name} knows a single client sample rate, so there is nothing to compare; "
                "name several, or make a table with several"
            )
    total = sum(map(len, chosen.values()))
    outcomes: list[RateOutcome] = []
    for condition, problem in conditions.items():
        anything = next(iter(problem.space.grid()))
        budget_s = courses * problem.query(anything, Fidelity(problem.max_rounds, max(chosen[condition]))).cost_s
        for rate in chosen[condition]:
            if progress is not None:
                progress(len(outcomes), total)
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
