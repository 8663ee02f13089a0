"""Working on a study: take a trial, run it, say how it went, until there are as many as wanted.

Several processes may do this at once; each takes trials that nobody works on, those first whose process is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import optuna
from filelock import FileLock

from fedarena.hpo.space import Configuration
from fedarena.hpo.tune.observer import Ended, Incumbent, TuneObserver
from fedarena.hpo.tune.plan import TuningPlan, applies, as_label, in_order, of_label
from fedarena.hpo.tune.samplers import EXCESSES, make_pruner, make_sampler
from fedarena.hpo.tune.storage import claiming, lock_of_trial, open_study, tell
from fedarena.hpo.tune.trial import AnyTrialRuns, TrialFailedError, TrialRuns
from fedarena.runs.cluster import staying

_STATE = optuna.trial.TrialState
FAILURE, RUNS, ROUNDS, SAME_AS, PRUNED_BECAUSE = (
    "failure",
    "runs",
    "rounds",
    "same_as",
    "pruned",
)  # attributes of trials
_DEATHS = "deaths"
# So often a trial may be found without its process before it has got any further; then it is it that kills processes.
_MOST_DEATHS = 3


@dataclass(frozen=True)
class _Claimed:
    """A trial that this process has in its hands."""

    trial: Any
    configuration: Configuration  # the hyperparameters that apply
    lock: FileLock


class Worker:
    """A process, or a part of one, that works on a study."""

    def __init__(
        self,
        plan: TuningPlan,
        observer: TuneObserver,
        deadline: float | None = None,
        runs_of: Callable[[TuningPlan, int, Configuration, TuneObserver], AnyTrialRuns] = TrialRuns,
    ):
        self._plan, self._observer, self._deadline, self._runs_of = plan, observer, deadline, runs_of
        self.study = open_study(plan)
        self.study.pruner = make_pruner(plan, *plan.length())

    def work(self) -> None:
        """Does trials until the study has as many as wanted, or the time is over."""
        with staying():  # on a cluster, trial after trial has the same workers
            while not self._is_late():
                claimed = self._claim()
                if claimed is None:
                    return
                try:
                    self._observer.ended(self._told(self._do(claimed)))
                finally:
                    claimed.lock.release()

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _claim(self) -> _Claimed | None:
        with claiming(self._plan):
            trials = self.study.get_trials(deepcopy=False)
            for trial in trials:
                if trial.state == _STATE.RUNNING and (lock := lock_of_trial(self._plan, trial.number)) is not None:
                    if self.study._storage.get_trial(trial._trial_id).state == _STATE.RUNNING:
                        return self._continued(trial, lock)
                    lock.release()  # it has ended since the trials were listed
            if sum(trial.state != _STATE.WAITING for trial in trials) >= self._plan.options.trials:
                return None
            self.study.sampler = self._sampler(len(trials))
            return self._with_values(self.study.ask(), None)

    def _continued(self, trial: Any, lock: FileLock) -> _Claimed:
        """A trial whose process is gone: with the same sampler, so that it gets the values it would have got."""
        self.study.sampler = self._sampler(trial.number)
        open_trial = optuna.trial.Trial(self.study, trial._trial_id)
        open_trial.set_user_attr(_DEATHS, trial.user_attrs.get(_DEATHS, 0) + 1)
        return self._with_values(open_trial, lock)

    def _sampler(self, number: int) -> Any:
        return make_sampler(self._plan, number, self._plan.options.population)

    def _with_values(self, trial: Any, lock: FileLock | None) -> _Claimed:
        lock = lock or lock_of_trial(self._plan, trial.number)
        assert lock is not None, "nobody else knows of the trial"
        chosen: Configuration = {}
        space = self._plan.space
        for one in in_order(space):
            if not applies(one.name, space, self._plan.settings, chosen):
                continue
            if one.kind == "choice":
                label = trial.suggest_categorical(one.name, [as_label(value) for value in one.choices])
                chosen[one.name] = of_label(one, label)
            elif one.kind == "int":
                chosen[one.name] = trial.suggest_int(one.name, int(one.low), int(one.high), log=one.log)
            else:
                chosen[one.name] = trial.suggest_float(one.name, one.low, one.high, log=one.log)
        return _Claimed(trial, chosen, lock)

    def _do(self, claimed: _Claimed) -> Ended:
        trial, number = claimed.trial, claimed.trial.number
        if (before := self._same_as(trial)) is not None:
            trial.set_user_attr(SAME_AS, before.number)
            for key in (EXCESSES, ROUNDS, RUNS):
                if key in before.user_attrs:
                    trial.set_user_attr(key, before.user_attrs[key])
            tell(self.study, trial, before.values)
            sentence = f"the same as trial {before.number}"
            return Ended(number, "complete", tuple(before.values), before.user_attrs.get(ROUNDS, 0), sentence)
        trial.set_user_attr(RUNS, [self._plan.run_name(number, seed) for seed in self._plan.seeds])
        try:
            if trial.user_attrs.get(_DEATHS, 0) > _MOST_DEATHS:
                raise TrialFailedError(f"its process died {_MOST_DEATHS} times without getting any further")
            return self._run(claimed)
        except TrialFailedError as error:
            trial.set_user_attr(FAILURE, str(error))
            self.study.tell(trial, state=_STATE.FAIL)
            return Ended(number, "failed", sentence=str(error))
        except (KeyboardInterrupt, SystemExit):
            trial.set_user_attr(_DEATHS, -1)  # it was stopped, and is found without its process
            raise

    def _run(self, claimed: _Claimed) -> Ended:
        trial, number = claimed.trial, claimed.trial.number
        runs = self._runs_of(self._plan, number, claimed.configuration, self._observer)
        try:
            told = self.study._storage.get_trial(trial._trial_id).intermediate_values
            last_told, stage = max(told, default=0), 0
            while True:
                stage = runs.stage_after(stage)
                runs.advance_to(stage)
                if self._should_end(trial, runs, stage, told, last_told):
                    why = f"pruned by {self._plan.options.pruner}"
                    trial.set_user_attr(ROUNDS, runs.rounds)
                    trial.set_user_attr(PRUNED_BECAUSE, f"{why} after round {runs.rounds}")
                    runs.close(why)
                    self.study.tell(trial, state=_STATE.PRUNED)
                    return Ended(number, "pruned", rounds=runs.rounds, sentence=f"{why} after round {runs.rounds}")
                if runs.is_over and stage >= runs.rounds:  # what was finished before is told from its beginning, too
                    break
                if trial.user_attrs.get(_DEATHS, 0):
                    trial.set_user_attr(_DEATHS, 0)
                if self._is_late():
                    trial.set_user_attr(_DEATHS, -1)
                    runs.close("paused because the hours of the search were over")
                    return Ended(number, "paused", rounds=runs.rounds)
            judged = runs.judged()
        except BaseException:
            runs.close("closed")
            raise
        runs.close("closed")
        trial.set_user_attr(ROUNDS, judged.rounds)
        if self._plan.constraints:
            trial.set_user_attr(EXCESSES, list(judged.excesses))
        tell(self.study, trial, list(judged.values))
        return Ended(number, "complete", judged.values, judged.rounds)

    def _should_end(
        self, trial: Any, runs: AnyTrialRuns, stage: int, told: Mapping[int, float], last_told: int
    ) -> bool:
        """Reports what the trial came to after a round, and whether the pruner ends it there."""
        if self._plan.options.several or stage < last_told:  # a trial that goes on has been asked before
            return False
        value = runs.value(stage)
        if value is None:
            return False
        if stage not in told:
            trial.report(value, stage)
        return not runs.is_over and bool(trial.should_prune())

    def _same_as(self, trial: Any) -> Any | None:
        """A complete trial with the same hyperparameters, of which this one would be a repetition, bit for bit."""
        for other in self.study.get_trials(deepcopy=False, states=(_STATE.COMPLETE,)):
            if other.params == trial.params and other.number != trial.number:
                return other
        return None

    def _told(self, ended: Ended) -> Ended:
        """With what it means for the study."""
        done = sum(trial.state.is_finished() for trial in self.study.get_trials(deepcopy=False))
        return replace(ended, incumbent=incumbent(self._plan, self.study), done=done)


def incumbent(plan: TuningPlan, study: Any) -> Incumbent | None:
    """The best trial so far: complete, and within all constraints; the first of equal ones.

    It is the best by the first objective; where several are equally good, the others decide in their order.
    """
    signs = [-1.0 if one.maximize else 1.0 for one in plan.objectives]
    best: tuple[list[float], int, float] | None = None
    for trial in study.get_trials(deepcopy=False, states=(_STATE.COMPLETE,)):
        costs = [sign * value for sign, value in zip(signs, trial.values, strict=True)]
        if is_feasible(trial) and (best is None or costs < best[0]):
            best = costs, trial.number, trial.values[0]
    return None if best is None else Incumbent(best[1], best[2])


def is_feasible(trial: Any) -> bool:
    """Whether a complete trial keeps all constraints."""
    return all(excess <= 0 for excess in trial.user_attrs.get(EXCESSES, ()))
