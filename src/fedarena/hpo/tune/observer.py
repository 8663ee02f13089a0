"""Who is told what happens during a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedarena.core.user_warnings import warn_user

State = Literal["complete", "pruned", "failed", "paused"]


@dataclass(frozen=True)
class Incumbent:
    """The best trial so far."""

    trial: int
    value: float  # of the first objective


@dataclass(frozen=True)
class Ended:
    """How a trial ended, or that it is paused."""

    trial: int
    state: State
    values: tuple[float, ...] = ()  # of a complete trial
    rounds: int = 0
    sentence: str | None = None  # why it failed or was pruned
    incumbent: Incumbent | None = None  # the best trial with it
    done: int = 0  # trials of the study that have ended


class TuneObserver:
    """Is told what happens during a search; maybe from several threads."""

    def preparing(self, fraction: float, message: str) -> None:
        """The federation is being built."""

    def warned(self, message: str) -> None:
        """Something the user should know: one of Python's warnings, unless it is shown else."""
        warn_user(message)

    def resumed(self, done: int, incumbent: Incumbent | None) -> None:
        """So many trials have ended before, and this one is the best of them."""

    def began(self, trial: int, configuration: Mapping[str, Any], rounds: int, done: int) -> None:
        """A trial begins, or goes on after rounds that are done."""

    def finished_round(self, trial: int, round: int, score: str | None) -> None:
        """A round of a trial is done; with its score if the model was evaluated."""

    def ended(self, ended: Ended) -> None:
        """A trial has ended or is paused."""

    def stopped(self) -> None:
        """The user stopped the search; everything that is finished is on disk."""
