"""A search as a user sees it: with bars on the screen while it goes on, and with files and a report when it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedarena.core.console import Screen
from fedarena.core.errors import FedArenaError
from fedarena.display.tuning.page import write_tuning_report
from fedarena.display.tuning.progress import TuneBars
from fedarena.hpo.tune.observer import TuneObserver
from fedarena.hpo.tune.outcome import TunedStudy
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.hpo.tune.searching import search
from fedarena.runs.hosts.hosting import joined
from fedarena.runs.observer import Observer

MakePlan = Callable[[Observer], TuningPlan]


@dataclass(frozen=True)
class TuneOutcome:
    """What a search came to, and where that is written."""

    tuned: TunedStudy
    best: Path
    report: Path


class _Passing(Observer):
    """Passes on what happens while a study is checked."""

    def __init__(self, observer: TuneObserver):
        self._observer = observer

    def preparing(self, fraction: float, message: str) -> None:
        self._observer.preparing(fraction, message)

    def warned(self, message: str) -> None:
        self._observer.warned(message)


def tune_with_report(make_plan: MakePlan, console: Screen | None = None, cluster: str | None = None) -> TuneOutcome:
    """Makes a study and does all trials that are left of it; without a console nothing is shown.

    Ends with an error if no trial came to anything. What was found is also written when the user stops it.
    """
    observer = TuneObserver()
    if console is None:
        plan = make_plan(_Passing(observer))
        _warn_about(plan, observer)
        return _with_files(_searched(plan, observer, cluster))
    with TuneBars(console) as bars:
        plan = make_plan(_Passing(bars))
        bars.begin(plan)
        _warn_about(plan, bars)
        tuned = _searched(plan, bars, cluster)
    return _with_files(tuned)


def _searched(plan: TuningPlan, observer: TuneObserver, cluster: str | None) -> TunedStudy:
    try:
        with joined(cluster):
            return search(plan, observer, cluster)
    except KeyboardInterrupt:
        with suppress(FedArenaError, OSError):
            _with_files(TunedStudy.load(plan.folder))
        raise


def _with_files(tuned: TunedStudy) -> TuneOutcome:
    best = tuned.write_best()
    return TuneOutcome(tuned, best, write_tuning_report(tuned))


def _warn_about(plan: TuningPlan, observer: TuneObserver) -> None:
    if plan.held_out:
        settings = " ".join(f"{key}={value:g}" for key, value in plan.held_out.items())
        observer.warned(
            f"There are no validation samples, so {plan.options.hold_out:.0%} of all samples, taken from those for "
            f"training, are held out to judge trials by ({settings}); test samples stay unseen"
        )
    if plan.options.part == "test":
        observer.warned("Trials are judged by test samples: the best score will be better than on new data")
    if plan.options.part == "train":
        observer.warned("Trials are judged by training samples: settings that overfit look best")
