"""What came of trials, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
GUIDE = "validation_loss"


@dataclass(frozen=True)
class TrialCurves:
    """The scores of trials after some rounds, and what their rounds take; every array has a row per trial.

    After a trial has diverged, its scores are NaN; the loss with which it did is kept as it is. With `of_best`, scores
    are those after the best round so far: the one, from the first on, in which the validation loss was smallest.
    """

    trials: tuple[Mapping[str, Any], ...]  # what each of them overrides
    note_rounds: IntArray  # after which scores are noted, ascending; 0 is the untrained model
    metrics: dict[str, FloatArray]  # ``[trials, noted rounds]``, by names such as ``test_accuracy``
    of_best: bool
    losses: FloatArray  # ``[trials, rounds]`` on validation samples after the rounds 1, 2, …; no rounds without such
    model_bytes: IntArray  # ``[trials]`` that a client downloads
    upload_bytes: IntArray  # ``[trials]`` that a client uploads
    cohorts: IntArray  # ``[trials]`` clients in a round
    steps: IntArray  # ``[trials, rounds]`` gradient steps of all clients of a round
    processed_samples: IntArray  # ``[trials, rounds]`` that they computed gradients on

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def best_rounds(self) -> IntArray:
        """``[trials, noted rounds]``: the best round so far; 0 where none had a finite validation loss yet."""
        if not self.losses.shape[1]:
            raise BadInputError("There are no validation samples to tell the best round by")
        return best_rounds(self.losses)[:, self.note_rounds]

    def best_so_far(self) -> TrialCurves:
        """The same with scores after the best round so far, for which every round must be noted."""
        if self.of_best:
            return self
        wanted = self.best_rounds
        places = np.minimum(np.searchsorted(self.note_rounds, wanted), len(self.note_rounds) - 1)
        if (self.note_rounds[places] != wanted)[wanted > 0].any():
            raise BadInputError(
                "The best round so far is not among those that were noted; note every round, or train with best=True"
            )
        metrics = {
            name: np.where((wanted > 0) | (self.note_rounds == 0), np.take_along_axis(values, places, 1), np.nan)
            for name, values in self.metrics.items()
        }
        return replace(self, metrics=metrics, of_best=True)

    def take(self, positions: Sequence[int] | IntArray) -> TrialCurves:
        """Some of the trials, in this order."""
        rows = np.asarray(positions, dtype=np.int64)
        return replace(
            self,
            trials=tuple(self.trials[row] for row in rows.tolist()),
            metrics={name: values[rows] for name, values in self.metrics.items()},
            **{name: getattr(self, name)[rows] for name in _ROWS},
        )

    @classmethod
    def join(cls, parts: Sequence[TrialCurves]) -> TrialCurves:
        """The trials of several after each other; they are of the same rounds and scores."""
        first = parts[0]
        arrays: Any = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROWS}
        return replace(
            first,
            trials=tuple(trial for part in parts for trial in part.trials),
            metrics={name: np.concatenate([part.metrics[name] for part in parts]) for name in first.metrics},
            **arrays,
        )


_ROWS = ("losses", "model_bytes", "upload_bytes", "cohorts", "steps", "processed_samples")


def best_rounds(losses: FloatArray) -> IntArray:
    """For the rounds 0, 1, … the one so far with the smallest loss, of ``[trials, rounds 1, 2, …]``.

    The first of equal ones; 0 as long as there is none. What is not finite ends a trial.

    >>> best_rounds(np.array([[2.0, 3.0, 1.0, np.inf, 0.5]])).tolist()
    [[0, 1, 1, 3, 3, 3]]
    """
    alive = np.logical_and.accumulate(np.isfinite(losses), axis=1)
    finite = np.where(alive, losses, np.inf)
    smallest = np.minimum.accumulate(finite, axis=1)
    before = np.concatenate([np.full((len(losses), 1), np.inf), smallest], axis=1)
    rounds = np.arange(losses.shape[1] + 1)
    found = np.concatenate([np.zeros((len(losses), 1), dtype=bool), finite < before[:, :-1]], axis=1)
    best: IntArray = np.maximum.accumulate(np.where(found, rounds, 0), axis=1)
    return best
