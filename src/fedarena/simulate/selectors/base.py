"""What a selector is: it decides whom to invite, and learns from what became of those it invited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedarena.core.registry import Registry
from fedarena.simulate.selectors.candidates import BoolArray, Candidates, FloatArray, Weights
from fedarena.train.engine import IntArray

__all__ = [
    "SELECTORS",
    "BoolArray",
    "Candidates",
    "Feedback",
    "FloatArray",
    "IntArray",
    "Sampling",
    "Selector",
    "Weights",
]


# How a client comes into a cohort, as accountants of privacy know it: independently of all others with the same
# probability; in a set of a fixed size, all of which are equally likely; or exactly once in every pass over everybody.
Sampling = Literal["poisson", "uniform", "shuffled"]


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

    sampling: Sampling | None = None  # how clients are drawn, if that is all that decides; None: something else does
    varies = False  # whether it may invite more clients than wanted, or nobody, by chance

    def __init_subclass__(cls, **options: object) -> None:
        """Who chooses in another way than the class it inherits from must say anew how that can be accounted for."""
        super().__init_subclass__(**options)
        if "select" in cls.__dict__ and "sampling" not in cls.__dict__:
            cls.sampling = None

    def chooses_as(self, *kinds: type[Selector]) -> bool:
        """Whether it is one of these kinds, and chooses as they do, not in a way of its own."""
        return any(isinstance(self, kind) and type(self).select is kind.select for kind in kinds)

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
