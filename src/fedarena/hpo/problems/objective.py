"""What is minimized: a score, in its own direction, and what is added for scores that are not to be bad either."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.hpo.scores import GUIDE, info_of


@dataclass(frozen=True)
class Objective:
    """A score, whose direction comes from its metric, and penalties: weights of further scores, each in its direction.

    ``Objective("validation_loss", {"validation_accuracy_variance": 2.0})`` is the loss plus twice the variance of
    clients' accuracies: FedHPO-Bench's soft constraint for fairness.
    """

    score: str = GUIDE
    penalties: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        info_of(self.score)
        for name, weight in self.penalties.items():
            info_of(name)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise BadInputError(
                    f"The weight of the penalty {name} must be a number from 0 on, not {quoted(weight)}"
                )

    @property
    def maximize(self) -> bool:
        """Whether larger values of the score are better."""
        return info_of(self.score).higher_is_better

    def signs(self) -> dict[str, float]:
        """By how much each score counts in what is minimized."""
        signs = {self.score: -1.0 if self.maximize else 1.0}
        for name, weight in self.penalties.items():
            signs[name] = signs.get(name, 0.0) + (-weight if info_of(name).higher_is_better else weight)
        return signs

    def check_known(self, scores: Mapping[str, object], what: str) -> None:
        """Refuses scores that there are not."""
        for name in self.signs():
            if name not in scores:
                raise BadInputError(f"{what} has no score {quoted(name)}; {nearest(name, scores)}")

    def value(self, scores: Mapping[str, float]) -> float:
        """What is minimized; infinity where a score is not finite."""
        value = sum(sign * scores[name] for name, sign in self.signs().items())
        return float(value) if math.isfinite(value) else math.inf
