"""What is shown on the screen while runs go on."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedarena.core.console import Screen
from fedarena.core.words import counted
from fedarena.display.drawing.units import SECONDS, quantity
from fedarena.display.reporting import Reporting
from fedarena.metrics.info import FORMER_METRICS
from fedarena.runs.attacked import attack_sentence
from fedarena.runs.building import Experiment
from fedarena.runs.round_text import round_text
from fedarena.simulate import RoundOutcome
from fedarena.train import Engine


class Bars:
    """Bars with what is done, a score, and the time left, within a ``with`` block; none where there is no terminal.

    Sentences go above them, maybe from several threads.
    """

    def __init__(self, console: Screen):
        self._console, self._live = console, console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not self._live,
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _say(self, text: str, style: str | None = None) -> None:
        with self._lock:
            self._console.say(text, style)


class ProgressBars(Bars, Reporting):
    """A bar for every run, with time left and the current score; plain lines where the output is not a terminal."""

    def __init__(self, console: Screen):
        Bars.__init__(self, console)
        Reporting.__init__(self)
        self._label = ""
        self._task: TaskID | None = None
        self._rounds = 0
        self._metric = FORMER_METRICS[-1]
        self._config: dict[str, Any] = {}
        self._begin_hour = 0.0
        self._hours: float | None = None  # of virtual time, after which the run ends
        self._engine: Engine | None = None

    def announce(self, label: str) -> None:
        """Names the run that comes next."""
        self._label = label
        self._task = None

    def preparing(self, fraction: float, message: str) -> None:
        """Shows how far the building of the federation is."""
        if not self._live:
            return
        if self._task is None:
            self._task = self._progress.add_task(message, total=100, score="", count="")
        self._progress.update(self._task, description=message, completed=round(100 * fraction))
        if fraction >= 1:
            self._progress.remove_task(self._task)
            self._task = None

    def warned(self, message: str) -> None:
        """Prints a warning above the bars."""
        self._say(f"Warning: {message}", style="yellow")

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        """Starts the bar of a run."""
        super().started(run, folder, rounds_done)
        if self._task is not None:  # the building of the federation
            self._progress.remove_task(self._task)
        self._metric = run.simulation.leading_metric
        self._config = run.config.to_dict()
        self._engine = run.simulation.engine
        self._rounds = run.config.rounds
        self._begin_hour, self._hours = run.config.clock.start_hour, run.config.clock.hours
        label = self._label or str(run.config.name)
        if (sentence := attack_sentence(run.simulation)) is not None:
            self._say(sentence)
        if self._live:
            count = f"{rounds_done}/{self._rounds}"
            self._task = self._progress.add_task(
                label, total=self._rounds, completed=rounds_done, score="", count=count
            )
        else:
            limit = "" if self._hours is None else f" or {self._hours:g} hours of virtual time"
            self._say(f"{label}: {counted(self._rounds, 'round')}{limit}, {rounds_done} done, in {folder}")

    def finished_round(self, outcome: RoundOutcome) -> None:
        """Moves the bar on."""
        round, metric = outcome.snapshot.round, self._metric
        score = round_text(outcome.row, metric, self._config)
        workers = getattr(self._engine, "crew", None)
        crew = "" if workers is None else f", {workers.describe()}"
        hours = outcome.row["end_seconds"] / 3600 - self._begin_hour
        if score is not None and hours > 0:
            score = f"{score} after {quantity(3600 * hours, SECONDS)}"
        if self._live and self._task is not None:
            fields = {} if score is None else {"score": score}
            # A run that ends by the clock is as far as the clock is, if that is further.
            done = max(round, 0 if self._hours is None else min(1.0, hours / self._hours) * self._rounds)
            count = f"{round}/{self._rounds}{crew}"
            self._progress.update(self._task, completed=done, count=count, **fields)  # type: ignore[arg-type]
        elif score is not None:
            prefix = f"{self._label}: " if self._label else ""
            self._say(f"{prefix}round {round} of {self._rounds}, {score}{crew}")

    def stopped(self, folder: Path) -> None:
        """Says how to go on."""
        self._progress.stop()
        self._say(f"Stopped; all finished rounds are saved. Go on with: fedarena resume {folder}")
