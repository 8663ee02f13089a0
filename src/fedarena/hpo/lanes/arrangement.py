"""Which trials are trained together.

Trials of one seed and cohort size see the same clients in every round, and if batches are as large, the same batches.
What differs is a tensor with a number per trial. Trials that differ in more than numbers are in different blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.models import Task, Tensors
from fedarena.train import Algorithm, LocalTraining

FloatArray = npt.NDArray[np.float64]
_OF_LOCAL_TRAINING = ("lr", "momentum", "weight_decay")


@dataclass(frozen=True)
class Trial:
    """One trial with all that it is made of; several share a task, and one seed and model the first parameters."""

    number: int  # its position among all
    seed: int
    cohort: int  # clients in a round
    local: LocalTraining
    algorithm: Algorithm  # prepared for the run
    task: Task
    start: Tensors  # the untrained model
    dropout: float | None = None  # share that all dropout layers drop, where it is not the task's module that knows it

    @property
    def work(self) -> tuple[int, int]:
        """By which trials are put in order: who has more to do is never before another one's end."""
        return self.local.steps or 0, self.local.epochs or 0


@dataclass(frozen=True)
class Block:
    """Trials that one computation trains: ``[groups, trials]``; those of a group have the same seed and cohort size.

    Within a group, trials with more steps come first, and all groups have as many.
    """

    groups: tuple[tuple[Trial, ...], ...]

    @property
    def first(self) -> Trial:
        """One of them, for what all have in common."""
        return self.groups[0][0]

    @property
    def trials(self) -> list[Trial]:
        """All of them, one group after the other."""
        return [trial for group in self.groups for trial in group]

    @property
    def slots(self) -> int:
        """Clients that train in a round, those of all groups."""
        return sum(group[0].cohort for group in self.groups)

    def hyperparameters(self) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
        """In which numbers trials differ, ``[groups, trials]``: settings of jobs, and attributes of the algorithm."""
        jobs: dict[str, Callable[[Trial], Any]] = {
            f"local.{name}": lambda trial, name=name: getattr(trial.local, name) for name in _OF_LOCAL_TRAINING
        }
        if self.first.dropout is not None:
            jobs["model.dropout"] = lambda trial: trial.dropout
        attributes: dict[str, Callable[[Trial], Any]] = {
            name: lambda trial, name=name: getattr(trial.algorithm, name) for name in _numbers(self.first.algorithm)
        }
        return self._differing(jobs), self._differing(attributes)

    def _differing(self, named: dict[str, Callable[[Trial], Any]]) -> dict[str, FloatArray]:
        found = {
            name: np.array([[read(trial) for trial in group] for group in self.groups], dtype=np.float64)
            for name, read in named.items()
        }
        # Dropout is always a tensor: the module of the task drops something else.
        return {name: values for name, values in found.items() if np.ptp(values) > 0 or name == "model.dropout"}


def arrange(
    trials: Sequence[Trial], most_lanes: Callable[[Trial], int], several_groups: bool
) -> list[Block]:
    """All trials in blocks of at most so many lanes (a trial's client each), where a block can have `several_groups`.

    Else, lanes are counted for one client.
    """
    alike: defaultdict[Any, defaultdict[tuple[int, int], list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        alike[_kind(trial)][trial.seed, trial.cohort].append(trial)
    blocks: list[Block] = []
    for groups in alike.values():
        limit = most_lanes(next(iter(groups.values()))[0])
        pieces = [
            piece
            for (_, cohort), group in groups.items()
            for piece in _dealt(group, limit // cohort if several_groups else limit)
        ]
        blocks += _together(pieces, limit) if several_groups else [Block((piece,)) for piece in pieces]
    return blocks


def _dealt(group: list[Trial], most: int) -> list[tuple[Trial, ...]]:
    """A group in pieces of at most so many, each with about the same work, so that they can share programs."""
    in_order = sorted(group, key=lambda trial: trial.work, reverse=True)
    pieces = -(-len(group) // max(1, most))
    return [tuple(in_order[place::pieces]) for place in range(pieces)]


def _together(pieces: list[tuple[Trial, ...]], limit: int) -> list[Block]:
    """Pieces with the same work side by side."""
    same: defaultdict[Any, list[tuple[Trial, ...]]] = defaultdict(list)
    for piece in pieces:
        same[tuple(trial.work for trial in piece)].append(piece)
    blocks: list[Block] = []
    for some in same.values():
        lanes = 0
        for piece in some:
            size = len(piece) * piece[0].cohort
            if lanes == 0 or lanes + size > limit:
                blocks.append(Block(()))
                lanes = 0
            blocks[-1] = replace(blocks[-1], groups=(*blocks[-1].groups, piece))
            lanes += size
    return blocks


def _numbers(algorithm: Algorithm) -> list[str]:
    """Attributes that may differ within a computation."""
    return [name for name, value in vars(algorithm).items() if isinstance(value, float)]


def _kind(trial: Trial) -> Any:
    """What trials of one computation have in common."""
    algorithm, local = trial.algorithm, trial.local
    others = {name: value for name, value in vars(algorithm).items() if name != "local"}
    fixed = tuple(
        (name, "float" if isinstance(value, float) else repr(value)) for name, value in sorted(others.items())
    )
    form = tuple((name, tuple(p.shape)) for name, p in trial.start.items())
    has_steps = local.steps is not None
    return (
        *(id(trial.task), form, local.batch_size, local.optimizer, has_steps),
        *(trial.dropout is None, type(algorithm), fixed),
    )
