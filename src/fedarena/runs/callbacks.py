"""Callbacks: told after every round; they may look at the run, write things down, or end it early."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.core.words import counted
from fedarena.metrics import MetricInfo

if TYPE_CHECKING:
    from fedarena.runs.run import Run


@dataclass(frozen=True)
class Stop:
    """What a callback returns to end a run: why, and whether that was the whole run, or it may go on another time."""

    reason: str
    for_good: bool = True


class Callback:
    """Is told what happens; a callback of one's own overrides what it needs, or is a plain function like `on_round`."""

    def on_round(self, run: Run, row: Mapping[str, Any]) -> Stop | None:
        """A round is done and recorded; `row` is its row of the table of rounds. A `Stop` ends the run."""
        return None


OnRound = Callable[["Run", Mapping[str, Any]], Stop | None]
CALLBACKS: Registry[type[Callback]] = Registry("callback", base=Callback)


@CALLBACKS.register("patience")
class Patience(Callback):
    """Ends a run whose leading metric was not better than before in the last `evaluations`, by more than `at_least`."""

    def __init__(self, *, evaluations: int = 5, at_least: float = 0.0):
        if evaluations < 1:
            raise BadInputError(f"evaluations must be at least 1, not {evaluations}")
        self.evaluations, self.at_least = evaluations, at_least

    def on_round(self, run: Run, row: Mapping[str, Any]) -> Stop | None:
        """Looks at all evaluations so far, so that a run that was resumed stops in the same round."""
        lead = run.leading_metric
        scores = [score if lead.higher_is_better else -score for score in run.scores()]
        if row.get(lead.name) is None or len(scores) <= self.evaluations:
            return None
        before, last = scores[: -self.evaluations], scores[-self.evaluations :]
        if max(last) > max(before) + self.at_least:
            return None
        return Stop(f"{lead.label} has not become better in the last {counted(self.evaluations, 'evaluation')}")


@CALLBACKS.register("target")
class Target(Callback):
    """Ends a run when its leading metric has reached `level`."""

    def __init__(self, *, level: float):
        self.level = level

    def on_round(self, run: Run, row: Mapping[str, Any]) -> Stop | None:
        """Whether the level is reached."""
        lead = run.leading_metric
        score = row.get(lead.name)
        if score is None or lead.is_better(self.level, score):
            return None
        return Stop(f"{lead.label} {lead.text(score)} has reached {self.level:g}")


def check_reachable(callbacks: Sequence[Callback | OnRound], lead: MetricInfo) -> None:
    """Refuses a target that the leading metric never has, such as 90 for an accuracy, which is at most 1."""
    for level in [callback.level for callback in callbacks if isinstance(callback, Target)]:
        if lead.low is not None and level < lead.low:
            raise BadInputError(f"The callback target has level {level:g}, and no {lead.label} is below {lead.low:g}")
        if lead.high is not None and level > lead.high:
            raise BadInputError(f"The callback target has level {level:g}, and no {lead.label} is above {lead.high:g}")


@CALLBACKS.register("wall_time")
class WallTime(Callback):
    """Pauses a run after so many real `seconds`; it can be resumed, and then has as many again."""

    def __init__(self, *, seconds: float):
        if not seconds > 0:
            raise BadInputError(f"seconds must be above 0, not {seconds}")
        self.seconds = seconds
        self._began = time.monotonic()

    def on_round(self, run: Run, row: Mapping[str, Any]) -> Stop | None:
        """Whether the time is over."""
        if time.monotonic() - self._began < self.seconds:
            return None
        self._began = time.monotonic()  # of the next piece, if the run stays open
        return Stop(f"{self.seconds:g} seconds are over", for_good=False)
