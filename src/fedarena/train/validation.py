"""How good clients' own models are right after local training, on samples that they did not train on.

Where clients train with different hyperparameters, this is what tells the good ones from the bad.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedarena.models import Task, Tensors
from fedarena.models.copying import copy_of
from fedarena.train.engine import ClientData, IntArray, Part
from fedarena.train.evaluation import OwnTask
from fedarena.train.personal import score_each, score_stacked

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Validated:
    """The losses of some clients' models, an entry each; NaN for those who have no sample to tell by."""

    samples: IntArray
    after: FloatArray  # local training
    before: FloatArray  # of what they downloaded; NaN unless it was asked for

    def take(self, positions: Any) -> Validated:
        """Those at these positions."""
        return Validated(self.samples[positions], self.after[positions], self.before[positions])


def join_validated(parts: Sequence[Validated | None]) -> Validated | None:
    """All of them in one; None if nobody asked."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return Validated(*(np.concatenate([getattr(part, name) for part in known]) for name in vars(known[0])))


class Validation:
    """Scores models, a row per client, on a `part` of their samples: all at once, or one after the other."""

    def __init__(self, task: Task, data: ClientData, part: Part, compares: bool, stacked: bool):
        # Threads copy the module when they first need it, maybe while others train with it: from one that nobody uses.
        unused = copy.copy(task)
        unused.module = copy_of(task.module)
        self._own, self._data, self._part = OwnTask(unused), data, part
        self.compares = compares  # whether the loss before training is wanted, too
        self._score = score_stacked if stacked else score_each

    def of(self, trained: Tensors, downloaded: Tensors | None, clients: IntArray) -> Validated:
        """The losses of what these clients trained, and of what they had downloaded; both have a row per client."""
        samples = self._data.counts(clients, self._part)
        after = self._losses(trained, clients)
        before = np.full(len(clients), np.nan)
        if downloaded is not None:
            before = self._losses(downloaded, clients)
        return Validated(samples, after, before)

    def _losses(self, models: Tensors, clients: IntArray) -> FloatArray:
        task = self._own.task
        loss = task.metrics[0]
        with torch.no_grad():
            found = self._score(task, models, self._data.samples(clients, self._part), [loss])
        losses = np.full(len(clients), np.nan)
        scored = found.counts > 0
        if scored.any():
            losses[scored] = loss.value(found.states[loss.name], np.maximum(found.counts, 1))[scored]
        return losses
