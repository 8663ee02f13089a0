"""An optimizer whose proposals are checked: what makes no sense is refused in one sentence, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.hpo.optimizers.optimizer import Optimizer, Proposal


class Checked(Optimizer):
    """Asks another optimizer, called `name` in sentences, and refuses what it must not answer.

    That is anything but a `Proposal`; a configuration outside of the space; rounds that are out of range or no whole
    number; a course that goes on with another configuration, or with no more rounds than it had. Values that are not
    numbers are told as infinity.
    """

    def __init__(self, optimizer: Optimizer, name: str | None = None):
        super().__init__(optimizer.space, optimizer.max_rounds, optimizer.seed, optimizer.min_rounds)
        self.optimizer = optimizer
        self._name = name or type(optimizer).__qualname__
        self._courses_so_far: dict[int, Proposal] = {}

    @property
    def is_multi_fidelity(self) -> bool:
        """Whether the optimizer asks for fewer than all rounds."""
        return self.optimizer.multi_fidelity

    def ask(self) -> Proposal:
        """What the optimizer proposes, with the values of the space's own types."""
        proposal = self._checked(self.optimizer.ask())
        self._courses_so_far[proposal.course] = proposal
        return proposal

    def tell(self, proposal: Proposal, value: float) -> None:
        """Tells it."""
        self.optimizer.tell(proposal, math.inf if math.isnan(value) else float(value))

    def _checked(self, proposal: Any) -> Proposal:
        if not isinstance(proposal, Proposal):
            raise BadInputError(f"The optimizer {self._name} must propose a Proposal, not {quoted(proposal)}")
        course = self._whole("course", proposal.course)
        if course < 0:
            raise BadInputError(f"The optimizer {self._name} proposes course {course}; courses are numbered from 0")
        rounds = self._whole("number of rounds", proposal.rounds)
        if not self.min_rounds <= rounds <= self.max_rounds:
            raise BadInputError(
                f"The optimizer {self._name} asks for {rounds} rounds, but only {self.min_rounds} to "
                f"{self.max_rounds} can be asked for"
            )
        if not isinstance(proposal.configuration, Mapping):
            raise BadInputError(
                f"The optimizer {self._name} must propose a mapping of hyperparameters to values, not "
                f"{quoted(proposal.configuration)}"
            )
        try:
            configuration = self.space.check(proposal.configuration)
        except BadInputError as error:
            raise BadInputError(f"The optimizer {self._name} proposes what the space does not have: {error}") from error
        before = self._courses_so_far.get(course)
        if before is not None and before.configuration != configuration:
            raise BadInputError(
                f"The optimizer {self._name} goes on with course {course}, but with another configuration"
            )
        if before is not None and before.rounds >= rounds:
            raise BadInputError(
                f"The optimizer {self._name} asks for {rounds} rounds of course {course}, which has had "
                f"{before.rounds} already"
            )
        return Proposal(course, configuration, rounds)

    def _whole(self, what: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise BadInputError(f"The optimizer {self._name} proposes the {what} {quoted(value)}, no whole number")
        return int(value)
