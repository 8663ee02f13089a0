"""Arms: the few configurations among which a policy chooses.

Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to Weight-Sharing", NeurIPS
2021: the first arm is the configuration of the run, which a wrapper may have chosen, and the others are perturbations
of it, uniform within `spread` of a hyperparameter's range (by its logarithm, where it is on a log scale). For a
learning rate with a range of four decades that is their 10^(log10 lr + U(±4 spread)). Values that are listed are not
perturbed: all of them are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.core.space import Space
from fedarena.simulate.policies.base import PolicyFacts

FloatArray = npt.NDArray[np.float64]
# One table of whole configurations, or one of values for every hyperparameter, which are chosen independently.
Tables = Literal["joint", "separate"]
MOST_ARMS = 1000


@dataclass(frozen=True)
class Arms:
    """One table of arms: values of some hyperparameters, by name, with an entry per arm."""

    values: dict[str, FloatArray]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def label(self) -> str:
        """What it is about, for the names of columns."""
        return next(iter(self.values)) if len(self.values) == 1 else ""

    def arm(self, number: int) -> dict[str, Any]:
        """One of them, as settings of a run."""
        return {name: plain(name, values[number]) for name, values in self.values.items()}


def plain(name: str, value: float) -> int | float:
    """A value as it would be set."""
    whole = name in ("local.steps", "local.epochs", "local.batch_size")
    return round(float(value)) if whole else float(value)


def check_arms(arms: int, spread: float) -> None:
    """Refuses numbers that make no arms."""
    if not 2 <= arms <= MOST_ARMS:
        raise BadInputError(f"policy.arms must be from 2 to {MOST_ARMS}, not {arms}")
    if not 0 < spread <= 1:
        raise BadInputError(f"policy.spread must be above 0 and at most 1, the whole range, not {spread}")


def make_arms(space: Space, facts: PolicyFacts, arms: int, spread: float, tables: Tables) -> list[Arms]:
    """The tables of a policy."""
    if tables == "separate":
        return [_table(Space([one]), facts, arms, spread, f"arms of {one.name}") for one in space]
    return [_table(space, facts, arms, spread, "arms")]


def _table(space: Space, facts: PolicyFacts, arms: int, spread: float, purpose: str) -> Arms:
    generator = streams.generator(facts.seed, purpose)
    if all(one.kind == "choice" for one in space):
        every = list(space.grid())
        if len(every) > arms:
            every = [every[place] for place in sorted(generator.permutation(len(every))[:arms].tolist())]
        return _named(space, every)
    own = {one.name: _centre(one.name, space, facts) for one in space if one.kind != "choice"}
    centre = np.array([one.place_of(own[one.name]) if one.name in own else 0.5 for one in space])
    reach = np.array([1.0 if one.kind == "choice" else spread for one in space])
    low, high = np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)
    places = low + (high - low) * generator.random((arms, len(space)))
    every = [space.at(row) for row in places]
    every[0] |= own
    return _named(space, every)


def _centre(name: str, space: Space, facts: PolicyFacts) -> Any:
    """What the run itself has for a setting."""
    value = facts.setting(name)
    if value is None:
        raise BadInputError(
            f"policy.search: the arms lie around the settings of the run, which has no {name}; give {name}=…, or list "
            f"values for it instead of a range"
        )
    try:
        return space[name].check(value)
    except BadInputError as error:
        raise BadInputError(f"policy.search: the arms lie around the settings of the run, and {error}") from None


def _named(space: Space, configurations: Sequence[dict[str, Any]]) -> Arms:
    return Arms({name: np.array([float(one[name]) for one in configurations]) for name in space.names})
