"""Solving for one of ε, δ, noise, rounds, cohort and population from the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import (
    BOUNDS,
    NEIGHBOURS,
    Accountant,
    Sampled,
    check_counts,
    check_delta,
    check_epsilon,
    usual_delta,
)
from fedarena.simulate.selectors.base import Sampling

Unknown = Literal["epsilon", "delta", "noise_multiplier", "rounds", "cohort", "population"]
UNKNOWNS: tuple[Unknown, ...] = ("epsilon", "delta", "noise_multiplier", "rounds", "cohort", "population")
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e6
_MOST_ROUNDS, _MOST_POPULATION = 10**9, 10**12
_PRECISION = 1e-5  # of ε, relative; noise that is found errs to the safe side
_OTHER_ROUNDING = 1e-9  # of ε, relative: by how much less another machine may compute


@dataclass(frozen=True)
class PrivacyPlan:
    """A complete setting of private training: all of it belongs together."""

    epsilon: float
    delta: float
    noise_multiplier: float
    rounds: int
    cohort: int
    population: int
    sampling: Sampling = "poisson"
    accountant: Accountant = "rdp"
    solved: Unknown = "epsilon"  # which of them was asked for

    @property
    def sampled(self) -> Sampled:
        """The steps of this plan, for the accountant."""
        return Sampled(self.population, self.cohort, self.noise_multiplier, self.sampling, self.accountant)

    def epsilon_over_rounds(self, points: int = 60) -> list[tuple[int, float]]:
        """How ε grows: some rounds, the first and the last among them, and what is spent after each."""
        rounds = np.unique(np.linspace(1, self.rounds, min(points, self.rounds)).round().astype(int))
        sampled = self.sampled
        return [(int(round), sampled.epsilon(int(round), self.delta)) for round in rounds]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with which bound and which notion of neighbours they are about."""
        return {
            "solved": self.solved,
            **{name: getattr(self, name) for name in UNKNOWNS},
            "sampling": self.sampling,
            "accountant": self.accountant,
            "bound": BOUNDS[self.accountant],
            "neighbours": NEIGHBOURS[self.sampling],
        }


def plan_privacy(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    cohort: int | None = None,
    population: int | None = None,
    sampling: Sampling = "poisson",
    accountant: Accountant = "rdp",
) -> PrivacyPlan:
    """Solves for the one that is not given; δ, if it is not given either, is population^-1.1.

    What is solved for keeps the promise: the least noise, the fewest clients, the most rounds or the largest cohort
    with which ε is not exceeded. To solve for δ, give all the others.

    >>> round(plan_privacy(epsilon=2, population=10_000, cohort=100, rounds=500).noise_multiplier, 2)
    0.88
    """
    given = {
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "cohort": cohort,
        "population": population,
    }
    missing: list[Any] = [name for name, value in given.items() if value is None]
    if "delta" in missing and len(missing) > 1:
        missing.remove("delta")
    if len(missing) != 1:
        which = ", ".join(missing) or "none"
        raise BadInputError(f"Give all but one of {', '.join(UNKNOWNS)} (δ may be left out as well); missing: {which}")
    _check(given)
    solve = {
        "epsilon": _solve_epsilon,
        "delta": _solve_delta,
        "noise_multiplier": _solve_noise,
        "rounds": _solve_rounds,
        "cohort": _solve_cohort,
        "population": _solve_population,
    }[missing[0]]
    return solve(_Known(**given, sampling=sampling, accountant=accountant))


@dataclass(frozen=True)
class _Known:
    """What is given; the one that is solved for is None, and so may be δ."""

    epsilon: Any
    delta: Any
    noise_multiplier: Any
    rounds: Any
    cohort: Any
    population: Any
    sampling: Sampling
    accountant: Accountant

    def plan(self, solved: Unknown, **found: Any) -> PrivacyPlan:
        """All of it, with the ε that it really comes to."""
        known = replace(self, **found)
        delta = known.spent_for
        sampled = known.sampled()
        epsilon = sampled.epsilon(known.rounds, delta) if solved != "delta" else known.epsilon
        return PrivacyPlan(
            epsilon,
            delta,
            known.noise_multiplier,
            known.rounds,
            known.cohort,
            known.population,
            self.sampling,
            self.accountant,
            solved,
        )

    @property
    def spent_for(self) -> float:
        """The δ that ε is for."""
        return usual_delta(self.population) if self.delta is None else float(self.delta)

    def sampled(self) -> Sampled:
        """The steps."""
        return Sampled(self.population, self.cohort, self.noise_multiplier, self.sampling, self.accountant)

    def spends(self, **other: Any) -> float:
        """The ε of this with something else in it."""
        known = replace(self, **other)
        return known.sampled().epsilon(known.rounds, known.spent_for)


def _check(given: dict[str, Any]) -> None:
    if given["epsilon"] is not None:
        check_epsilon(given["epsilon"])
    if given["delta"] is not None:
        check_delta(given["delta"])
    if given["noise_multiplier"] is not None and not _LEAST_NOISE <= given["noise_multiplier"] <= _MOST_NOISE:
        raise BadInputError(
            f"noise_multiplier must be from {_LEAST_NOISE:g} to {_MOST_NOISE:g}, not {given['noise_multiplier']}"
        )
    if given["rounds"] is not None and not 1 <= given["rounds"] <= _MOST_ROUNDS:
        raise BadInputError(f"rounds must be from 1 to {_MOST_ROUNDS:g}, not {given['rounds']}")
    if given["population"] is not None and given["cohort"] is not None:
        check_counts(given["population"], given["cohort"])
    for name in ("population", "cohort"):
        if given[name] is not None and not 1 <= given[name] <= _MOST_POPULATION:
            raise BadInputError(f"{name} must be from 1 to {_MOST_POPULATION:g}, not {given[name]}")


def _solve_epsilon(known: _Known) -> PrivacyPlan:
    return known.plan("epsilon")


def _solve_delta(known: _Known) -> PrivacyPlan:
    delta = known.sampled().delta(known.rounds, known.epsilon)
    return known.plan("delta", delta=delta)


def _solve_noise(known: _Known) -> PrivacyPlan:
    def spent(noise_multiplier: float, accountant: Accountant) -> float:
        return known.spends(noise_multiplier=noise_multiplier, accountant=accountant)

    noise = solve_noise(known.epsilon, spent, known.accountant)
    return known.plan("noise_multiplier", noise_multiplier=noise)


def _solve_rounds(known: _Known) -> PrivacyPlan:
    sampled, delta = known.sampled(), known.spent_for
    if sampled.epsilon(1, delta) > known.epsilon:
        raise BadInputError(
            f"One round alone spends ε = {sampled.epsilon(1, delta):.4g}, more than {known.epsilon:g}; "
            "give more noise, a smaller cohort or a larger ε"
        )
    rounds = _largest(lambda rounds: sampled.epsilon(rounds, delta) <= known.epsilon, 1, _MOST_ROUNDS)
    return known.plan("rounds", rounds=rounds)


def _solve_cohort(known: _Known) -> PrivacyPlan:
    if known.spends(cohort=1) > known.epsilon:
        raise BadInputError(
            f"Even cohorts of 1 spend ε = {known.spends(cohort=1):.4g}, more than {known.epsilon:g}; "
            "give more noise, fewer rounds or a larger ε"
        )
    cohort = _largest(lambda cohort: known.spends(cohort=cohort) <= known.epsilon, 1, known.population)
    return known.plan("cohort", cohort=cohort)


def _solve_population(known: _Known) -> PrivacyPlan:
    if known.spends(population=_MOST_POPULATION) > known.epsilon:
        raise BadInputError(
            f"No population is large enough for ε = {known.epsilon:g}; give more noise, fewer rounds or a larger ε"
        )

    def is_too_small(population: int) -> bool:
        return bool(known.spends(population=population) > known.epsilon)

    if not is_too_small(known.cohort):
        return known.plan("population", population=known.cohort)
    return known.plan("population", population=_largest(is_too_small, known.cohort, _MOST_POPULATION) + 1)


def solve_noise(epsilon: float, spent: Callable[[float, Accountant], float], accountant: Accountant) -> float:
    """The least noise multiplier that spends at most ε by this accountant, of `spent`, given noise and accountant."""
    start = 1.0
    if accountant == "pld":  # which never finds more than rdp, and takes much longer
        start = least_noise(epsilon, lambda noise: spent(noise, "rdp"))
    return least_noise(epsilon, lambda noise: spent(noise, accountant), start)


def least_noise(epsilon: float, spent: Callable[[float], float], start: float = 1.0) -> float:
    """The least noise multiplier that spends at most ε, to a precision of 1e-5 of it; `spent` falls with noise.

    The search begins at `start` and goes to smaller noise from there only as far as it must: accountants take long
    where there is hardly any.
    """
    spent = lru_cache(maxsize=None)(spent)
    high = start
    while spent(high) > epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise BadInputError(
                f"No noise is enough for ε = {epsilon:g} with this δ and accountant; choose a larger ε or δ"
            )
    low = high / 1.5
    while spent(low) <= epsilon:
        if low < _LEAST_NOISE:
            return low
        high, low = low, low / 1.5
    from scipy.optimize import brentq  # takes a moment to import, which only who asks for noise should wait

    root = brentq(lambda x: math.log(spent(math.exp(x)) / epsilon), math.log(low), math.log(high), xtol=1e-7)
    found = math.exp(root)
    step = _PRECISION / 10
    # To the side of the promise, also on machines that round otherwise: they must not refuse the last round.
    while spent(found) > epsilon * (1 - _OTHER_ROUNDING):
        found, step = found * (1 + step), 2 * step
    return found


def _largest(holds: Callable[[int], bool], least: int, most: int) -> int:
    """The largest whole number up to `most` for which something holds that holds for `least` and ends somewhere."""
    low, step = least, 1
    while low + step <= most and holds(low + step):
        low, step = low + step, 2 * step
    high = min(low + step, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
