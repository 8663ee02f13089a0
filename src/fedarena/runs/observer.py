"""Who is told what happens during a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedarena.core.user_warnings import warn_user
from fedarena.simulate import RoundOutcome

if TYPE_CHECKING:
    from fedarena.runs.building import Experiment


class Observer:
    """Is told what happens during a run; a progress bar overrides what it wants to show."""

    def preparing(self, fraction: float, message: str) -> None:
        """The federation is being built."""

    def warned(self, message: str) -> None:
        """Something the user should know, though the run goes on: one of Python's warnings, unless it is shown else."""
        warn_user(message)

    folder: Path | None = None  # of the run that was started last

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        """Rounds begin, or go on after those that are done."""
        self.folder = folder

    def finished_round(self, outcome: RoundOutcome) -> None:
        """A round is done and recorded."""

    def report(self, folder: Path) -> Path | None:
        """A report of a run that ended, for its trackers; None where nobody writes reports."""
        return None

    def stopped(self, folder: Path) -> None:
        """The user stopped the run; all finished rounds are on disk."""


class SuiteObserver:
    """Is told what happens while several runs of a suite go on at once; maybe from several threads."""

    def began(self, name: str, rounds: int, done: int) -> None:
        """Rounds of a run begin, or go on after those that are done."""

    def finished_round(self, name: str, round: int, score: str | None) -> None:
        """A round of a run is done; with its score if the model was evaluated."""

    def warned(self, name: str, message: str) -> None:
        """Something the user should know about a run: one of Python's warnings, unless it is shown else."""
        warn_user(f"{name}: {message}")

    def raised(self, name: str, trace: str) -> None:
        """Somebody's own method raised an exception, which is about to end its run; with the traceback."""
        self.warned(name, trace)

    def ended(self, name: str, failure: str | None) -> None:
        """A run is over; `failure` says what went wrong, if anything did."""

    def stopped(self) -> None:
        """The user stopped the suite; all finished rounds are on disk."""
