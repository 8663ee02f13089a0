"""Trials from settings that are complete; it needs torch and numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedarena.algorithms import ALGORITHMS
from fedarena.hpo.lanes.arrangement import Trial
from fedarena.hpo.lanes.models import Build, TrialModels
from fedarena.train import LocalTraining


@dataclass(frozen=True)
class TrialSettings:
    """In what trials may differ."""

    seed: int
    cohort: int  # clients in a round
    local: LocalTraining
    model: Mapping[str, Any]  # its name and options
    algorithm: Mapping[str, Any]  # its name and options


def make_trials(settings: Sequence[TrialSettings], build: Build, clients: int, horizon: int) -> list[Trial]:
    """The trials of a federation of so many training clients, for so many rounds; `build` makes their models."""
    models = TrialModels(build, [one.model for one in settings])
    made = []
    for number, one in enumerate(settings):
        options = dict(one.algorithm)
        algorithm = ALGORITHMS.get(options.pop("name"))(**options)
        algorithm.prepare(clients, one.local, horizon)
        model = models.of(one.model, one.seed)
        made.append(Trial(number, one.seed, one.cohort, one.local, algorithm, model.task, model.start, model.dropout))
    return made
