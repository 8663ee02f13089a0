"""What is shown on the screen while a search goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.progress import TaskID

from fedarena.core.console import Screen
from fedarena.display.progress import Bars
from fedarena.display.tuning.page import value_text
from fedarena.hpo.tune.observer import Ended, Incumbent, TuneObserver
from fedarena.hpo.tune.plan import TuningPlan


class TuneBars(Bars, TuneObserver):
    """A bar for the search with the best trial so far, and one for every trial at work; plain lines elsewhere."""

    def __init__(self, console: Screen):
        super().__init__(console)
        self._trials = 0
        self._all: TaskID | None = None
        self._bars: dict[int, tuple[TaskID, int]] = {}
        self._preparing: TaskID | None = None
        self._said: set[str] = set()  # warnings are the same for most trials
        self._plan: TuningPlan | None = None

    def begin(self, plan: TuningPlan) -> None:
        """The study that the bars are about, once it is known."""
        self._plan, self._trials = plan, plan.options.trials

    def preparing(self, fraction: float, message: str) -> None:
        """Shows how far the building of the federation is."""
        if not self._live:
            return
        if self._preparing is None:
            self._preparing = self._progress.add_task(message, total=100, score="", count="")
        self._progress.update(self._preparing, description=message, completed=round(100 * fraction))
        if fraction >= 1:
            self._progress.remove_task(self._preparing)
            self._preparing = None

    def warned(self, message: str) -> None:
        """Prints a warning above the bars, once."""
        if message not in self._said:
            self._said.add(message)
            self._say(f"Warning: {message}", "yellow")

    def resumed(self, done: int, incumbent: Incumbent | None) -> None:
        """Starts the bar of the search."""
        self._all = self._progress.add_task(
            "all trials",
            total=self._trials,
            completed=done,
            count=f"{done}/{self._trials}",
            score=self._best(incumbent),
        )
        if done:
            best = f", {self._best(incumbent)}" if incumbent else ""
            self._say(f"{done} of {self._trials} trials are done{best}")

    def began(self, trial: int, configuration: Mapping[str, Any], rounds: int, done: int) -> None:
        """Starts the bar of a trial."""
        with self._lock:
            if trial in self._bars:  # another seed of it
                return
            task = self._progress.add_task(
                f"trial {trial}", total=rounds, completed=done, count=f"{done}/{rounds}", score=""
            )
            self._bars[trial] = (task, rounds)
        if not self._live:
            shown = ", ".join(f"{name}={value_text(value)}" for name, value in configuration.items())
            self._say(f"trial {trial}: {shown}" + (f", {done} of {rounds} rounds done" if done else ""))

    def finished_round(self, trial: int, round: int, score: str | None) -> None:
        """Moves the bar of a trial on."""
        if trial in self._bars:
            task, rounds = self._bars[trial]
            fields = {} if score is None else {"score": score}
            self._progress.update(task, completed=round, count=f"{round}/{rounds}", **fields)  # type: ignore[arg-type]

    def ended(self, ended: Ended) -> None:
        """Takes the bar of a trial away, and says what it came to."""
        with self._lock:
            if ended.trial in self._bars:
                self._progress.remove_task(self._bars.pop(ended.trial)[0])
            if self._all is not None:
                self._progress.update(
                    self._all,
                    completed=ended.done,
                    count=f"{ended.done}/{self._trials}",
                    score=self._best(ended.incumbent),
                )
        if ended.state == "failed":
            self._say(f"trial {ended.trial}: failed: {ended.sentence}", "red")
        elif ended.state == "pruned":
            self._say(f"trial {ended.trial}: {ended.sentence}", "dim")
        elif ended.state == "paused":
            self._say(f"trial {ended.trial}: paused after round {ended.rounds}; the same command goes on")
        else:
            is_best = ended.incumbent is not None and ended.incumbent.trial == ended.trial
            best = "the best so far" if is_best else self._best(ended.incumbent)
            about = ", ".join(part for part in (ended.sentence, best) if part)
            self._say(f"trial {ended.trial}: {self._values(ended.values)}" + (f" ({about})" if about else ""))

    def stopped(self) -> None:
        """Says how to go on."""
        self._progress.stop()
        self._say("Stopped; all finished trials and rounds are saved. The same command goes on")

    def _values(self, values: tuple[float, ...]) -> str:
        objectives = () if self._plan is None else self._plan.objectives
        return ", ".join(
            f"{one.info.label} {one.info.text(value)}" for one, value in zip(objectives, values, strict=False)
        )

    def _best(self, incumbent: Incumbent | None) -> str:
        if incumbent is None or self._plan is None:
            return ""
        info = self._plan.first.info
        return f"best {info.label} {info.text(incumbent.value)}, trial {incumbent.trial}"
