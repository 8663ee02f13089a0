"""What is shown on the screen while several runs of a suite go on at once."""

from __future__ import annotations

from rich.progress import TaskID

from fedarena.core.console import Screen
from fedarena.core.words import counted
from fedarena.display.progress import Bars
from fedarena.runs.observer import SuiteObserver


class SuiteBars(Bars, SuiteObserver):
    """A bar for the suite and one for every run at work; plain lines where the output is not a terminal."""

    def __init__(self, console: Screen, runs: int):
        super().__init__(console)
        self._runs = runs
        self._all = self._progress.add_task("all runs", total=runs, count=f"0/{runs}", score="")
        self._bars: dict[str, tuple[TaskID, int]] = {}
        self._ended = 0

    def began(self, name: str, rounds: int, done: int) -> None:
        """Starts the bar of a run."""
        with self._lock:
            if name in self._bars:  # it goes on elsewhere
                self._progress.remove_task(self._bars.pop(name)[0])
            task = self._progress.add_task(name, total=rounds, completed=done, count=f"{done}/{rounds}", score="")
            self._bars[name] = (task, rounds)
        if not self._live:
            self._say(f"{name}: {counted(rounds, 'round')}, {done} done")

    def finished_round(self, name: str, round: int, score: str | None) -> None:
        """Moves the bar of a run on."""
        task, rounds = self._bars[name]
        fields = {} if score is None else {"score": score}
        self._progress.update(task, completed=round, count=f"{round}/{rounds}", **fields)  # type: ignore[arg-type]
        if score is not None and not self._live:
            self._say(f"{name}: round {round} of {rounds}, {score}")

    def warned(self, name: str, message: str) -> None:
        """Prints a warning above the bars."""
        self._say(f"Warning: {name}: {message}", "yellow")

    def raised(self, name: str, trace: str) -> None:
        """Prints a traceback above the bars."""
        self._say(f"{name}: {trace.rstrip()}", "red")

    def ended(self, name: str, failure: str | None) -> None:
        """Takes the bar of a run away."""
        with self._lock:
            self._ended += 1
            if name in self._bars:
                self._progress.remove_task(self._bars.pop(name)[0])
            self._progress.update(self._all, completed=self._ended, count=f"{self._ended}/{self._runs}")
        self._say(f"{name}: done" if failure is None else f"{name}: failed", None if failure is None else "red")

    def stopped(self) -> None:
        """Says how to go on."""
        self._progress.stop()
        self._say("Stopped; all finished rounds are saved. The same command goes on")
