"""Refusing settings that mechanisms share."""

from __future__ import annotations

import math

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import check_delta, check_epsilon
from fedarena.simulate import Selector
from fedarena.simulate.selectors import BySize, Cyclic, InTurn, LeavingSoon


def check_clip_norm(clip_norm: float | None) -> None:
    """There is no privacy without a bound."""
    if clip_norm is None or not 0 < clip_norm < math.inf:
        raise BadInputError(
            f"privacy.clip_norm must be above 0, not {'null' if clip_norm is None else clip_norm}: noise without "
            "clipping protects nobody, because one client could change the model by any amount"
        )


def check_promise(
    mechanism: str,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float | None,
    audit: int | None = None,
) -> None:
    """What these mechanisms promise follows from noise or ε, one of which must be given."""
    if noise_multiplier is None and epsilon is None:
        raise BadInputError(f"privacy={mechanism} needs privacy.epsilon or privacy.noise_multiplier")
    if noise_multiplier is not None and not 0 < noise_multiplier < math.inf:
        raise BadInputError(f"privacy.noise_multiplier must be above 0, not {noise_multiplier}")
    if epsilon is not None:
        check_epsilon(epsilon, "privacy.epsilon")
    if delta is not None:
        check_delta(delta, "privacy.delta")
    check_audit(audit)


def check_selects_without_losses(selector: Selector, sizes_are_public: bool) -> None:
    """Refuses a selector that is told about clients' data without noise."""
    kinds = (Cyclic, InTurn, LeavingSoon, *((BySize,) if sizes_are_public else ()))
    if selector.sampling is None and not selector.chooses_as(*kinds):
        told = "losses" if sizes_are_public else "losses or sizes"
        raise BadInputError(
            f"Privacy would be broken: the selector {type(selector).__name__} is told {told} of clients' data, to "
            "which no noise comes; choose selector=uniform, poisson or shuffled"
        )


def check_first_round(epsilon: float, budget: float | None) -> None:
    """Refuses a budget that one round exceeds."""
    if budget is not None and epsilon > budget:
        raise BadInputError(
            f"One round alone spends ε = {epsilon:.4g}, more than the budget privacy.epsilon={budget:g}; give more "
            "noise, a smaller cohort or a larger budget"
        )


def check_audit(canaries: int | None) -> None:
    """Refuses an audit that can show nothing."""
    if canaries is not None and canaries < 2:
        raise BadInputError(
            f"privacy.audit is how many canaries are planted, at least 2 and best some hundreds, not {canaries}; leave "
            "it out for a run without an audit"
        )
