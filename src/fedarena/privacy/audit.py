"""The empirical audit: how much of a client canaries show to be in the model, beside what is proved about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import accounting
from fedarena.privacy.audit_bound import audit
from fedarena.privacy.mechanism import Mechanism, RunFacts
from fedarena.simulate.selectors import Cyclic
from fedarena.simulate.selectors.shuffled import rounds_per_pass
from fedarena.train import Groups
from fedarena.transforms.canaries import Canaries

CONFIDENCE = 0.95
_TIMES_THE_NORM = 100.0  # what canaries send, so that clipping is audited as well
BoolArray = npt.NDArray[np.bool_]


def plant_canaries(mechanism: Mechanism, facts: RunFacts, seed: int) -> Canaries | None:
    """The canaries that a run's mechanism asks for, if any."""
    if mechanism.audit is None:
        return None
    if "params" not in facts.update:
        raise BadInputError(
            "privacy.audit needs clients who send changes of the model, which those of "
            f"{type(facts.algorithm).__name__} do not; leave it out, or choose another algorithm"
        )
    length = _TIMES_THE_NORM * mechanism.audited_norm
    return Canaries(mechanism.audit, length, seed, turns_of(mechanism.audit, facts, seed))


def turns_of(canaries: int, facts: RunFacts, seed: int) -> Callable[[int], BoolArray]:
    """Whose turn it is in a round, with the chances that clients have."""
    everybody, selector = np.arange(canaries), facts.selector
    if facts.selector.sampling == "shuffled":
        rounds = rounds_per_pass(facts.population, facts.cohort)

        def once_in_a_pass(round: int) -> BoolArray:
            which, place = divmod(round - 1, rounds)
            turn = streams.uniform(seed, "turn of a canary", which, everybody) * rounds
            return np.asarray(turn.astype(np.int64) == place)

        return once_in_a_pass
    groups = selector.groups if isinstance(selector, Cyclic) else 1
    drawn_from = selector.smallest_group(facts.population) if isinstance(selector, Cyclic) else facts.population

    def by_chance(round: int) -> BoolArray:
        drawn = streams.uniform(seed, "canary is drawn", round, everybody) < facts.cohort / drawn_from
        return np.asarray(drawn & (everybody % groups == (round - 1) % groups))

    return by_chance


def audit_result(canaries: Canaries, kept: Groups, epsilon: float | None, delta: float | None) -> dict[str, Any]:
    """What canaries prove after a run, and whether the proved `epsilon` stands beside it.

    The estimate is that of Andrew et al.: the ε of a Gaussian mechanism that would tell canaries that are in apart from
    others as well as their scores do. It is no bound.
    """
    scores, included = canaries.scores(kept), canaries.included
    found = audit(scores, included, delta or 0.0, CONFIDENCE)
    return {
        "canaries": canaries.number,
        "included": int(included.sum()),
        "epsilon_lower": found["epsilon"],
        "confidence": CONFIDENCE,
        "guesses": int(found["guesses"]),
        "correct": int(found["correct"]),
        "epsilon_upper": epsilon,
        "epsilon_estimate": _estimate(scores, included, delta),
        "holds": None if epsilon is None else bool(found["epsilon"] <= epsilon),
    }


def _estimate(scores: npt.NDArray[np.float64], included: BoolArray, delta: float | None) -> float | None:
    ins, outs = scores[included], scores[~included]
    if not delta or len(ins) < 2 or len(outs) < 2:
        return None
    apart, deviation = ins.mean() - outs.mean(), np.sqrt((ins.var(ddof=1) + outs.var(ddof=1)) / 2)
    if apart <= 0:
        return 0.0
    return float(accounting().get_epsilon_gaussian(deviation / apart, delta)) if deviation > 0 else None
