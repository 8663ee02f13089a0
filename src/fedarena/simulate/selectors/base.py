"""What a selector is: it decides whom to invite, and learns from what became of those it invited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedarena.core.registry import Registry
from fedarena.simulate.selectors.candidates import BoolArray, Candidates, FloatArray, Weights
from fedarena.train.engine import IntArray

__all__ = ["SELECTORS", "BoolArray", "Candidates", "Feedback", "FloatArray", "IntArray", "Selector", "Weights"]


@dataclass(frozen=True)
class Feedback:
    """What became of the jobs that ended in a round, one entry per job."""

    clients: IntArray
    used: BoolArray  # whether the update was used
    losses: FloatArray  # mean training loss; NaN unless used
    seconds: FloatArray  # how long the job took, or ran until it failed
    samples: IntArray  # processed
    held_versions: IntArray | None = None  # of the model, that each client has downloaded; -1: not completely


class Selector:
    """Decides whom to invite. Keyword-only constructor arguments are its settings.

    A resumed run builds a new selector and shows it all feedback again, so what it has learned is never saved. That
    works because `observe` alone may change anything, and because random numbers come from the candidates.
    """

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Called once, before the first round.

        `clients` are all who could ever be invited, sorted, `samples` says how many training samples clients have, and
        `cohort` how many updates a round wants.
        """

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """Up to `number` different candidates, sorted. Changes nothing."""
        raise NotImplementedError

    def observe(self, round: int, feedback: Feedback) -> None:
        """Learns from the jobs that ended in this round; called after every round."""


SELECTORS: Registry[type[Selector]] = Registry("selector", base=Selector, takes=())
