"""The interface of an optimizer: it is asked what to try next, and told how that went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import Registry
from fedarena.hpo.space import Configuration, Space


@dataclass(frozen=True)
class Proposal:
    """What an optimizer wants to know: how good a configuration is after so many rounds.

    Proposals of one `course` have the same configuration, and more rounds each time: its training goes on where it was.
    """

    course: int
    configuration: Configuration
    rounds: int


class Optimizer(ABC):
    """Looks for the configuration with the smallest value.

    ``ask`` and ``tell`` take turns: every proposal is told before the next one is asked for, with a finite value or,
    for a course that failed or diverged, infinity. All that is random comes from `seed`. Keyword-only arguments of a
    subclass are its options. The values told are those of the problem, of which smaller ones are better.

    A subclass of your own needs two methods:

    >>> class Guess(Optimizer):
    ...     def ask(self):
    ...         return self.new_course(self.space.sample(self.generator))
    ...
    ...     def tell(self, proposal, value):
    ...         pass
    >>> Guess(Space.parse({"local.lr": [0.1, 0.3]}), max_rounds=50, seed=1).ask().rounds
    50
    """

    multi_fidelity: ClassVar[bool] = False  # whether it asks for fewer than all rounds

    def __init__(self, space: Space, max_rounds: int, seed: int, min_rounds: int = 1):
        if not 1 <= min_rounds <= max_rounds:
            raise BadInputError(
                f"An optimizer can ask for 1 or more rounds, the most not below the fewest, not for {min_rounds} to "
                f"{max_rounds}"
            )
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise BadInputError(
                f"The seed of an optimizer must be a whole number that is not negative, not {quoted(seed)}"
            )
        self.space, self.max_rounds, self.min_rounds, self.seed = space, max_rounds, min_rounds, seed
        self.generator = np.random.default_rng(seed)
        self._courses = 0

    @abstractmethod
    def ask(self) -> Proposal:
        """What to try next."""

    @abstractmethod
    def tell(self, proposal: Proposal, value: float) -> None:
        """How that went."""

    def new_course(self, configuration: Configuration, rounds: int | None = None) -> Proposal:
        """Proposes a configuration as a new course, for all rounds unless said otherwise."""
        course, self._courses = self._courses, self._courses + 1
        return Proposal(course, configuration, self.max_rounds if rounds is None else rounds)

    def go_on(self, proposal: Proposal, rounds: int) -> Proposal:
        """Proposes more rounds of the same course."""
        return Proposal(proposal.course, proposal.configuration, rounds)


OPTIMIZERS: Registry[type[Optimizer]] = Registry("optimizer", base=Optimizer, takes=("space", "max_rounds", "seed"))
