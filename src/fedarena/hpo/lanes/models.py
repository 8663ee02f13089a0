"""The models of trials: one task for all of the same architecture, and the untrained parameters of every seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedarena.data import Federation
from fedarena.models import Task, Tensors, constant_tensors, trainable_parameters
from fedarena.models.dropout import KeyedDropout
from fedarena.runs.building import build_task
from fedarena.runs.config import RunConfig
from fedarena.runs.weights import start_from

_DROPOUT = "dropout"


@dataclass(frozen=True)
class TrialModel:
    """What a trial trains."""

    task: Task
    start: Tensors
    dropout: float | None = None  # that it drops, where the task's module drops another share


class TrialModels:
    """Builds models as `fedarena.run` does, each once.

    Trials that differ in dropout share a task, whose layers are told what to drop.
    """

    def __init__(self, federation: Federation, first: RunConfig, configs: Sequence[RunConfig]):
        self._federation, self._first = federation, first
        self._dropouts: dict[str, set[float]] = {}
        for config in configs:
            if isinstance(config.model.get(_DROPOUT), float):
                self._dropouts.setdefault(_architecture(config), set()).add(config.model[_DROPOUT])
        self._made: dict[tuple[str, int], TrialModel] = {}
        self._tasks: dict[str, list[Task]] = {}

    def of(self, config: RunConfig) -> TrialModel:
        """The model of a trial."""
        shares = self._dropouts.get(_architecture(config), set())
        if len(shares) < 2:
            return self._built(config)
        most = max(shares)
        built = self._built(config.model_copy(update={"model": config.model | {_DROPOUT: most}}))
        layers = [layer for layer in built.task.module.modules() if isinstance(layer, KeyedDropout)]
        if any(layer.p != most for layer in layers):  # some have a share of their own
            return self._built(config)
        return TrialModel(built.task, built.start, config.model[_DROPOUT])

    def _built(self, config: RunConfig) -> TrialModel:
        key = (repr([sorted(part.items(), key=str) for part in (config.model, config.adaptation)]), config.seed)
        if key not in self._made:
            complete = config.model_copy(update={"task": self._first.task})
            task = build_task(complete, self._federation)
            if config.weights is not None:
                start_from(task.module, Path(config.weights))
            start = {name: p.detach().clone() for name, p in trainable_parameters(task.module).items()}
            self._made[key] = TrialModel(self._shared(key[0], task), start)
        return self._made[key]

    def _shared(self, options: str, task: Task) -> Task:
        """The first task of these options that differs in nothing but what is trained; seeds may draw constants."""
        for known in self._tasks.setdefault(options, []):
            mine, its = constant_tensors(task.module), constant_tensors(known.module)
            if all(torch.equal(its[name].to(t), t) for name, t in mine.items()):
                return known
        self._tasks[options].append(task)
        return task


def _architecture(config: RunConfig) -> str:
    options: dict[str, Any] = {name: value for name, value in config.model.items() if name != _DROPOUT}
    return repr(sorted(options.items(), key=str))
