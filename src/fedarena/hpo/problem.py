"""Problems of hyperparameter search: ask how good a configuration is after so much training, and what that costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.hpo.space import Space

Mode = Literal["raw", "tabular", "surrogate"]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fidelity:
    """How much of the training is done: for so many rounds, with this share of the clients in each."""

    rounds: int
    client_sample_rate: float = 1.0


@dataclass(frozen=True)
class Curve:
    """What a course has come to by every noted round: scores are those of the best round so far, as in a `Result`."""

    rounds: npt.NDArray[np.int64]
    metrics: Mapping[str, FloatArray]  # such as "validation_loss" and "test_accuracy"
    cost_s: FloatArray  # seconds from the start


@dataclass(frozen=True)
class Result:
    """The answer to a query.

    `metrics` are those after the round, up to that of the fidelity, in which the validation loss was smallest. `cost_s`
    is what the course takes from its start, in seconds of the system that is simulated; who goes on with a course that
    it has already paid for pays the difference.
    """

    value: float  # what is minimized
    metrics: Mapping[str, float]
    cost_s: float
    fidelity: Fidelity
    curve: Curve | None = field(default=None, repr=False)


class Problem(ABC):
    """A function of configurations to be minimized.

    ``problem.query({"local.lr": 0.1, …}, Fidelity(rounds=50), seed=1)`` answers with a `Result`.
    """

    name: str
    mode: Mode
    space: Space
    min_rounds: int = 1
    max_rounds: int
    sample_rates: tuple[float, ...] = (1.0,)  # that can be asked for; empty: all from above 0 to 1
    objective: str = "validation_loss"  # the metric that is `value`
    maximize: bool = False  # whether larger values of that metric are better; `value` is its negative then
    fingerprint: str = ""  # of what it answers from, such as a table, and of what costs and values are made of
    budget_s: float | None = None  # simulated seconds that a search is given, unless it says otherwise

    @property
    def full(self) -> Fidelity:
        """The whole training, with all clients that a round may have."""
        return Fidelity(self.max_rounds, max(self.sample_rates, default=1.0))

    def query(self, configuration: Mapping[str, Any], fidelity: Fidelity | None = None, seed: int = 0) -> Result:
        """How good a configuration is after so much training (all of it, unless said otherwise)."""
        return self._answer(*self.check(configuration, fidelity or self.full), seed)

    def check(self, configuration: Mapping[str, Any], fidelity: Fidelity) -> tuple[dict[str, Any], Fidelity]:
        """A question as it is meant; refuses one that cannot be asked."""
        return self.space.check(configuration), self._check_fidelity(fidelity)

    def pause(self) -> None:
        """Lets go of what it holds, such as runs; it can be asked again at any time."""
        return

    @abstractmethod
    def _answer(self, configuration: dict[str, Any], fidelity: Fidelity, seed: int) -> Result:
        """The same for what has been checked."""

    def _check_fidelity(self, fidelity: Fidelity) -> Fidelity:
        if not isinstance(fidelity, Fidelity):
            raise BadInputError(f"A fidelity must be Fidelity(rounds=…, client_sample_rate=…), not {quoted(fidelity)}")
        rounds, rate = fidelity.rounds, fidelity.client_sample_rate
        if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer):
            raise BadInputError(f"The rounds of a fidelity must be a whole number, not {quoted(rounds)}")
        if not self.min_rounds <= rounds <= self.max_rounds:
            raise BadInputError(
                f"{self.name} can be asked for {self.min_rounds} to {self.max_rounds} rounds, not {rounds}"
            )
        if isinstance(rate, bool) or not isinstance(rate, int | float | np.integer | np.floating):
            raise BadInputError(f"The client sample rate of a fidelity must be a number, not {quoted(rate)}")
        if self.sample_rates:
            near = [one for one in self.sample_rates if math.isclose(one, rate, rel_tol=1e-6)]
            if not near:
                known = ", ".join(f"{one:g}" for one in self.sample_rates)
                raise BadInputError(f"{self.name} knows the client sample rates {known}, not {rate}")
            return Fidelity(int(rounds), near[0])
        if not 0 < rate <= 1:
            raise BadInputError(f"A client sample rate must be above 0 and at most 1, not {rate}")
        return Fidelity(int(rounds), float(rate))
