"""What a search came to: its trials, the best of them, and the settings of that one as a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
import pyarrow as pa

from fedarena.core.errors import RunFailedError
from fedarena.core.files import write_text
from fedarena.core.words import counted
from fedarena.hpo.space import Configuration
from fedarena.hpo.tune.library import quiet_optuna
from fedarena.hpo.tune.objectives import Objective
from fedarena.hpo.tune.plan import TuningPlan, in_order, of_label
from fedarena.hpo.tune.samplers import EXCESSES
from fedarena.hpo.tune.storage import open_study, read_study
from fedarena.hpo.tune.working import FAILURE, PRUNED_BECAUSE, ROUNDS, RUNS, SAME_AS, incumbent
from fedarena.runs.config import resolve, to_yaml
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation

BEST_FILE = "best.yaml"
PARETO_FOLDER = "pareto"
_STATE = optuna.trial.TrialState
TrialState = Literal["complete", "pruned", "failed", "unfinished"]
_STATES: dict[Any, TrialState] = {
    _STATE.COMPLETE: "complete",
    _STATE.PRUNED: "pruned",
    _STATE.FAIL: "failed",
}


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study."""

    number: int
    state: TrialState
    configuration: Configuration  # the hyperparameters that applied
    values: tuple[float, ...] | None  # of the objectives; None if it is not complete
    feasible: bool  # whether it keeps all constraints
    rounds: int | None
    seconds: float | None  # of real time, as long as it was open
    runs: tuple[str, ...]  # names of its runs, which are folders in that of the study
    sentence: str | None  # why it failed or was pruned, or which one it repeats
    curve: dict[int, float] = field(default_factory=dict)  # the first objective after rounds


class TunedStudy:
    """What a search came to.

    `best` are the settings of the best trial, complete and ready for `fedarena.run`; `best_configuration` are its
    hyperparameters alone, and `best_value` what it came to. With several objectives they are of the trial that is best
    in the first one, and `pareto` has all trials that no other one beats in everything. `study` is Optuna's.
    """

    def __init__(self, plan: TuningPlan, study: Any):
        self.plan, self.study = plan, study
        self.path = plan.folder
        self.trials = [_record(plan, trial) for trial in study.get_trials(deepcopy=False)]

    @classmethod
    def load(cls, folder: Path | str) -> TunedStudy:
        """The study in a folder, as far as it is; nothing is searched."""
        plan = read_study(Path(folder))
        with quiet_optuna():
            return cls(plan, open_study(plan))

    @property
    def name(self) -> str:
        """Of the study."""
        return self.plan.name

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What trials are judged by."""
        return self.plan.objectives

    @property
    def complete(self) -> list[TrialRecord]:
        """The trials that came to their end."""
        return [trial for trial in self.trials if trial.state == "complete"]

    @property
    def best_trial(self) -> TrialRecord:
        """The best one; an error if no trial is complete and keeps all constraints."""
        best = incumbent(self.plan, self.study)
        if best is None:
            raise RunFailedError(self._nothing_found())
        return self.trials[best.trial]

    @property
    def best_configuration(self) -> Configuration:
        """The hyperparameters of the best trial."""
        return dict(self.best_trial.configuration)

    @property
    def best_value(self) -> float:
        """The first objective of the best trial."""
        values = self.best_trial.values
        assert values is not None
        return values[0]

    @property
    def best(self) -> dict[str, Any]:
        """Complete settings with the best hyperparameters; as a run they are evaluated as the configuration says."""
        return self.settings(self.best_trial, f"{self.name}-best")

    @property
    def pareto(self) -> list[TrialRecord]:
        """The trials that no other one beats in everything, by the first objective; those that keep all constraints."""
        found = [trial for trial in self.complete if trial.feasible]
        signs = [-1.0 if one.maximize else 1.0 for one in self.objectives]
        costs = {
            trial.number: tuple(sign * value for sign, value in zip(signs, trial.values or (), strict=True))
            for trial in found
        }
        seen: dict[tuple[float, ...], TrialRecord] = {}
        for trial in found:
            mine = costs[trial.number]
            if mine not in seen and not any(_dominates(other, mine) for other in costs.values()):
                seen[mine] = trial
        return [seen[cost] for cost in sorted(seen)]

    def settings(self, trial: TrialRecord, name: str) -> dict[str, Any]:
        """The complete settings of a run with the hyperparameters of a trial."""
        settings = {**self.plan.run_settings(trial.configuration), "name": name, "seed": self.plan.seeds[0]}
        _, complete = open_federation(resolve(settings), Observer())
        return complete.to_dict()

    def table(self) -> pa.Table:
        """A row for every trial: how it ended, the objectives, the hyperparameters, rounds, real seconds, its runs."""
        columns: dict[str, list[Any]] = {
            "trial": [trial.number for trial in self.trials],
            "state": [trial.state for trial in self.trials],
        }
        for place, objective in enumerate(self.objectives):
            columns[objective.name] = [None if one.values is None else one.values[place] for one in self.trials]
        for name in self.plan.space.names:
            columns[name] = _one_kind([trial.configuration.get(name) for trial in self.trials])
        columns["feasible"] = [trial.feasible for trial in self.trials]
        columns["rounds"] = [trial.rounds for trial in self.trials]
        columns["seconds"] = [trial.seconds for trial in self.trials]
        columns["runs"] = [", ".join(trial.runs) for trial in self.trials]
        columns["sentence"] = [trial.sentence for trial in self.trials]
        if not self.plan.constraints:
            del columns["feasible"]
        return pa.table(columns)

    def to_pandas(self) -> Any:
        """The table as a data frame of pandas."""
        return self.table().to_pandas()

    def importances(self) -> dict[str, float]:
        """How much of the first objective's variation each hyperparameter explains (fANOVA), if that can be told."""
        complete = self.study.get_trials(deepcopy=False, states=(_STATE.COMPLETE,))
        if len(complete) < 2 or len({trial.values[0] for trial in complete}) < 2:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            with quiet_optuna():
                found: dict[str, float] = optuna.importance.get_param_importances(
                    self.study, evaluator=evaluator, target=lambda trial: trial.values[0]
                )
        except (ValueError, RuntimeError):  # hyperparameters that never varied, or never applied together
            return {}
        return {name: float(share) for name, share in found.items() if share == share}

    def write_best(self) -> Path:
        """Writes the best settings as a file that ``fedarena run`` accepts, and those of the Pareto front beside."""
        path = self.path / BEST_FILE
        write_text(path, self._yaml(self.best_trial, f"{self.name}-best"))
        if len(self.objectives) > 1:
            folder = self.path / PARETO_FOLDER
            folder.mkdir(exist_ok=True)
            wanted = {f"trial-{trial.number:04d}.yaml": trial for trial in self.pareto}
            for name, trial in wanted.items():
                write_text(folder / name, self._yaml(trial, f"{self.name}-{trial.number:04d}"))
            for old in folder.glob("trial-*.yaml"):
                if old.name not in wanted:
                    old.unlink()
        return path

    def _yaml(self, trial: TrialRecord, name: str) -> str:
        came_to = ", ".join(
            f"{one.info.label} {one.info.text(value)}"
            for one, value in zip(self.objectives, trial.values or (), strict=True)
        )
        about = f"# Trial {trial.number} of {counted(len(self.trials), 'trial')} of {self.name}: {came_to}"
        about += f" ({self.plan.options.part} samples)\n"
        return about + to_yaml(self.settings(trial, name))

    def _nothing_found(self) -> str:
        if any(trial.state == "complete" for trial in self.trials):
            limits = " and ".join(map(str, self.plan.constraints))
            return f"No trial keeps {limits}; search other ranges, or allow more"
        failed = [trial for trial in self.trials if trial.state == "failed"]
        if failed:
            last = failed[-1]
            return f"All {counted(len(failed), 'trial')} that ended failed; trial {last.number}: {last.sentence}"
        return f"No trial of the study {self.path} is complete yet"

    def __repr__(self) -> str:
        best = incumbent(self.plan, self.study)
        first = self.plan.first.info
        told = "nothing found yet" if best is None else f"{first.label} {first.text(best.value)} in trial {best.trial}"
        return f"<TunedStudy {self.name!r} of {counted(len(self.trials), 'trial')}, {told}, {self.path}>"


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _record(plan: TuningPlan, trial: Any) -> TrialRecord:
    attributes = trial.user_attrs
    state = _STATES.get(trial.state, "unfinished")
    configuration = {
        one.name: of_label(one, trial.params[one.name]) for one in in_order(plan.space) if one.name in trial.params
    }
    ended = trial.datetime_complete
    repeats = f"the same as trial {attributes[SAME_AS]}" if SAME_AS in attributes else None
    return TrialRecord(
        trial.number,
        state,
        {name: configuration[name] for name in plan.space.names if name in configuration},
        tuple(trial.values) if state == "complete" else None,
        all(excess <= 0 for excess in attributes.get(EXCESSES, ())),
        attributes.get(ROUNDS),
        None if ended is None or trial.datetime_start is None else (ended - trial.datetime_start).total_seconds(),
        tuple(attributes.get(RUNS, ())),
        attributes.get(FAILURE) or attributes.get(PRUNED_BECAUSE) or repeats,
        {int(step): float(value) for step, value in sorted(trial.intermediate_values.items())},
    )


def _one_kind(values: list[Any]) -> list[Any]:
    """Values of one column: as text where they are of different kinds, or lists and mappings."""
    there = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in there) or all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in there
    ):
        return values
    return [None if value is None else str(value) for value in values]
