"""The models of trials: one task for all of the same architecture, and the untrained parameters of every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedarena.models import Task, Tensors, constant_tensors, trainable_parameters
from fedarena.models.dropout import KeyedDropout

_DROPOUT = "dropout"
ModelSettings = Mapping[str, Any]  # its name and options
Build = Callable[[ModelSettings, int], Task]  # of these settings, drawn with this seed


@dataclass(frozen=True)
class TrialModel:
    """What a trial trains."""

    task: Task
    start: Tensors
    dropout: float | None = None  # that it drops, where the task's module drops another share


class TrialModels:
    """Builds models as `fedarena.run` does, each once; `settings` are those of all trials' models.

    Trials that differ in dropout share a task, whose layers are told what to drop.
    """

    def __init__(self, build: Build, settings: Sequence[ModelSettings]):
        self._build = build
        self._dropouts: dict[str, set[float]] = {}
        for one in settings:
            if isinstance(one.get(_DROPOUT), float):
                self._dropouts.setdefault(_architecture(one), set()).add(one[_DROPOUT])
        self._made: dict[tuple[str, int], TrialModel] = {}
        self._tasks: dict[str, list[Task]] = {}

    def of(self, settings: ModelSettings, seed: int) -> TrialModel:
        """The model of a trial."""
        shares = self._dropouts.get(_architecture(settings), set())
        if len(shares) < 2:
            return self._built(settings, seed)
        most = max(shares)
        built = self._built({**settings, _DROPOUT: most}, seed)
        layers = [layer for layer in built.task.module.modules() if isinstance(layer, KeyedDropout)]
        if any(layer.p != most for layer in layers):  # some have a share of their own
            return self._built(settings, seed)
        return TrialModel(built.task, built.start, settings[_DROPOUT])

    def _built(self, settings: ModelSettings, seed: int) -> TrialModel:
        key = (repr(sorted(settings.items(), key=str)), seed)
        if key not in self._made:
            task = self._build(settings, seed)
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


def _architecture(settings: ModelSettings) -> str:
    options: dict[str, Any] = {name: value for name, value in settings.items() if name != _DROPOUT}
    return repr(sorted(options.items(), key=str))
