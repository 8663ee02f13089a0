"""What a study is: a configuration, the space of what is searched in it, and what trials are judged by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedarena.core.options import option_names
from fedarena.hpo.space import Configuration, Hyperparameter, Space
from fedarena.hpo.tune.objectives import Constraint, Objective
from fedarena.hpo.tune.options import TuneOptions
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.runs.parts import NAMED_PARTS

_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class TuningPlan:
    """A study that has been checked: everything that a process needs to work on it."""

    name: str
    folder: Path
    settings: dict[str, Any]  # of the runs, nested, as they were given
    space: Space
    options: TuneOptions
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]
    seeds: tuple[int, ...]  # of the runs of a trial
    held_out: dict[str, Any]  # settings of the federation by which samples are held out for validation
    own_source: dict[str, Any]  # fingerprints of what of it is somebody's own
    data: dict[str, str | None]  # fingerprints of federation, fleet and weights; empty in studies of earlier versions
    study_id: str = ""  # of the study on disk, so that no storage is taken for that of another one

    @property
    def first(self) -> Objective:
        """The objective by which one trial is the best, also where there are several."""
        return self.objectives[0]

    def run_settings(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a run with these hyperparameters, evaluated as the user wants it in the end."""
        return merge(merge(self.settings, self.held_out), configuration)

    def trial_config(self, number: int, configuration: Mapping[str, Any], seed: int) -> RunConfig:
        """The configuration of a run of a trial, which is evaluated on what trials are judged by."""
        settings = merge(self.run_settings(configuration), {"evaluation.part": self.options.part})
        return resolve({**settings, "name": self.run_name(number, seed), "seed": seed})

    def with_trials(self, trials: int) -> TuningPlan:
        """The same with so many trials in the end."""
        return replace(self, options=self.options.model_copy(update={"trials": trials}))

    def length(self) -> tuple[int, int]:
        """How many rounds runs have at most, and after how many each they are evaluated."""
        given: dict[str, Any] = {key: self.settings[key] for key in ("rounds", "evaluation") if key in self.settings}
        config = resolve(given)
        searched = [one for one in self.space if one.name == "rounds"]
        rounds = [int(value) for one in searched for value in (one.choices or (one.high,))]
        return max(rounds, default=config.rounds), config.evaluation.every

    def run_name(self, number: int, seed: int) -> str:
        """The name of a run of a trial, which is that of its folder."""
        return f"trial-{number:04d}" + (f"-seed{seed}" if len(self.seeds) > 1 else "")


def in_order(space: Space) -> list[Hyperparameter]:
    """The hyperparameters, parts before their options."""
    return sorted(space, key=lambda one: one.name.removesuffix(".name").count("."))


def applies(name: str, space: Space, settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Whether a hyperparameter means anything beside those that are chosen.

    An option of a part that is searched as well is left out where the chosen part has no such option.
    """
    part, _, option = name.partition(".")
    if part not in NAMED_PARTS or option in ("", "name") or not {part, f"{part}.name"} & set(space.names):
        return True
    given = merge(settings, chosen).get(part)
    chosen_name = given.get("name") if isinstance(given, Mapping) else given
    if not isinstance(chosen_name, str):
        return True
    registry = NAMED_PARTS[part]
    stands_for = registry.stands_for(chosen_name)
    return option.partition(".")[0] in option_names(registry.get(stands_for.get("name", chosen_name)))


def only_applying(space: Space, settings: Mapping[str, Any], configuration: Mapping[str, Any]) -> Configuration:
    """A configuration of the whole space without what means nothing in it."""
    chosen: Configuration = {}
    for one in in_order(space):
        if applies(one.name, space, settings, chosen):
            chosen[one.name] = configuration[one.name]
    return chosen


def as_label(value: Any) -> Any:
    """A value to choose as storages and pictures can show it: itself, or as JSON if it is a list or a mapping."""
    return value if isinstance(value, _PLAIN) else json.dumps(value)


def of_label(hyperparameter: Hyperparameter, label: Any) -> Any:
    """The inverse of `as_label`."""
    for value in hyperparameter.choices:
        if as_label(value) == label and type(as_label(value)) is type(label):
            return value
    return label
