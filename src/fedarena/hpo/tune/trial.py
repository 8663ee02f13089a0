"""One trial: a run, or one for every seed, advanced from evaluation to evaluation to its end or until it is pruned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from fedarena.core.errors import BadInputError, DamagedFileError, DivergedError, FedArenaError, TrainingStuckError
from fedarena.hpo.tune.objectives import Objective, evaluated_rounds, measure
from fedarena.hpo.tune.observer import TuneObserver
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.runs.building import Experiment
from fedarena.runs.config import RunConfig
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run
from fedarena.runs.suite import check_unchanged
from fedarena.simulate import RoundOutcome
from fedarena.storage.run_data import RunData, is_finished, load_run


class TrialFailedError(Exception):
    """A trial came to nothing; the others can go on."""


@dataclass(frozen=True)
class Judged:
    """What a trial came to."""

    values: tuple[float, ...]  # of the objectives
    excesses: tuple[float, ...]  # by how much it breaks each constraint
    rounds: int


class _Telling(Observer):
    """Tells of the runs of a trial; of several seeds, of the one that is at work."""

    def __init__(self, trial: int, configuration: Mapping[str, Any], first: Objective, observer: TuneObserver):
        self._trial, self._configuration, self._first, self._observer = trial, configuration, first, observer

    def preparing(self, fraction: float, message: str) -> None:
        self._observer.preparing(fraction, message)

    def warned(self, message: str) -> None:
        self._observer.warned(message)

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        super().started(run, folder, rounds_done)
        self._observer.began(self._trial, self._configuration, run.config.rounds, rounds_done)

    def finished_round(self, outcome: RoundOutcome) -> None:
        info = self._first.info
        value = outcome.row.get(info.name)
        score = None if value is None else f"{info.label} {info.text(value)}"
        self._observer.finished_round(self._trial, outcome.snapshot.round, score)


class _TrialRun:
    """The run of one seed: open, or already finished and only read."""

    def __init__(self, config: RunConfig, runs_folder: Path, observer: Observer, kind: type[Run]):
        folder = runs_folder / str(config.name)
        self._finished: RunData | None = None
        self._run: Run | None = None
        if not folder.exists():
            self._run = kind.create(config, runs_folder, observer)
            return
        try:
            check_unchanged(folder, config, "put back the journal of that trial, or remove that folder")
        except BadInputError as error:  # not a failure of this trial, as all that follow would meet such folders, too
            raise DamagedFileError(f"The study is not as its trials left it: {error}") from error
        if is_finished(folder):
            self._finished = load_run(folder)
        else:
            self._run = Run.reopen(folder, observer)

    @property
    def round(self) -> int:
        return self._run.round if self._run is not None else int(self.rounds["round"][-1].as_py())

    @property
    def is_over(self) -> bool:
        return self._run is None or self._run.is_over

    @property
    def rounds(self) -> pa.Table:
        if self._run is not None:
            return self._run.rounds
        assert self._finished is not None
        return self._finished.rounds

    def clients(self) -> pa.Table:
        return (self._finished or self._run.result()).clients  # type: ignore[union-attr]

    def advance_to(self, round: int) -> None:
        if self._run is not None and not self._run.is_over and self._run.round < round:
            self._run.advance(round - self._run.round)

    def close(self, reason: str) -> None:
        if self._run is not None:
            self._run.close(reason)


class AnyTrialRuns(Protocol):
    """The runs of a trial, wherever they are."""

    @property
    def rounds(self) -> int:
        """How many rounds are done, in the run with the fewest."""

    @property
    def is_over(self) -> bool:
        """Whether no run has anything left to do."""

    def stage_after(self, round: int) -> int:
        """The round after which all runs are evaluated next."""

    def advance_to(self, stage: int) -> None:
        """Has every run play the rounds up to that one."""

    def value(self, stage: int) -> float | None:
        """The first objective after that round, which is the last one that was played."""

    def judged(self) -> Judged:
        """What the trial came to in the end."""

    def close(self, reason: str) -> None:
        """Lets go of all runs."""


class TrialRuns:
    """The runs of a trial, which are advanced together; made anew (of a `kind`) or gone on with, as they are."""

    def __init__(
        self,
        plan: TuningPlan,
        number: int,
        configuration: Mapping[str, Any],
        observer: TuneObserver,
        kind: type[Run] = Run,
    ):
        self._plan = plan
        telling = _Telling(number, configuration, plan.first, observer)
        self._runs: list[_TrialRun] = []
        with self._failing():
            for seed in plan.seeds:
                config = plan.trial_config(number, configuration, seed)
                self.every, self.last = config.evaluation.every, config.rounds
                self._runs.append(_TrialRun(config, plan.folder, telling, kind))

    @property
    def rounds(self) -> int:
        """How many rounds are done, in the run with the fewest."""
        return min(run.round for run in self._runs)

    @property
    def is_over(self) -> bool:
        """Whether no run has anything left to do."""
        return all(run.is_over for run in self._runs)

    def stage_after(self, round: int) -> int:
        """The round after which all runs are evaluated next."""
        return min((round // self.every + 1) * self.every, self.last)

    def advance_to(self, stage: int) -> None:
        """Has every run play the rounds up to that one."""
        with self._failing():
            for run in self._runs:
                run.advance_to(stage)

    def value(self, stage: int) -> float | None:
        """The first objective after that round: the mean over seeds; None where none was evaluated yet."""
        found = [self._measure(self._plan.first, run, stage) for run in self._runs]
        return None if any(value is None for value in found) else _mean(found)

    def judged(self) -> Judged:
        """What the trial came to in the end."""
        measured: dict[str, float] = {}
        for objective in (*self._plan.objectives, *(one.objective for one in self._plan.constraints)):
            found = [self._measure(objective, run, run.round) for run in self._runs]
            value = math.nan if any(one is None for one in found) else _mean(found)
            if not math.isfinite(value):
                raise TrialFailedError(f"{objective.name} is not known of this run, or not a finite number")
            measured[objective.name] = value
        return Judged(
            tuple(measured[one.name] for one in self._plan.objectives),
            tuple(one.excess(measured[one.objective.name]) for one in self._plan.constraints),
            self.rounds,
        )

    def close(self, reason: str) -> None:
        """Lets go of all runs; those that are not over say why."""
        for run in self._runs:
            with suppress(FedArenaError):  # one that failed has said so already
                run.close(reason)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Lets go of all runs if one fails, and tells what makes a trial fail from what would stop the next, too."""
        try:
            yield
        except BaseException as error:
            self.close("stopped with another seed")
            sentence = _failure(error)
            if sentence is None:
                raise
            raise TrialFailedError(sentence) from error

    def _measure(self, objective: Objective, run: _TrialRun, until: int) -> float | None:
        rounds = run.rounds
        evaluated = [number for number in evaluated_rounds(rounds) if number <= until]
        if not evaluated:
            return None
        at_round = evaluated[-1]
        if self._plan.options.score == "best" and self._plan.first.kind != "cost":
            at_round = self._best_round(run, rounds, evaluated)
        return measure(objective, rounds, run.clients, at_round, until)

    def _best_round(self, run: _TrialRun, rounds: pa.Table, evaluated: list[int]) -> int:
        """The evaluation with the best value of the first objective; the first of several that are equally good."""
        best, info = evaluated[-1], self._plan.first.info
        best_value: float | None = None
        for number in evaluated:
            value = measure(self._plan.first, rounds, run.clients, number, number)
            if value is not None and (best_value is None or info.is_better(value, best_value)):
                best, best_value = number, value
        return best


def _mean(values: list[Any]) -> float:
    return math.fsum(values) / len(values)


def _failure(error: BaseException) -> str | None:
    """Why a trial fails; None where it is nothing about the trial, such as a full disk or Ctrl-C."""
    if isinstance(error, DivergedError | TrainingStuckError):
        return str(error)
    if isinstance(error, DamagedFileError) or not isinstance(error, Exception):
        return None
    if isinstance(error, BadInputError):  # hyperparameters that do not fit each other
        return str(error)
    if isinstance(error, FedArenaError | OSError):
        return None
    return f"{type(error).__name__}: {error}"  # a bug in somebody's own method
