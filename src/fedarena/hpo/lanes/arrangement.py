"""Which trials are trained together.

Trials of one seed and cohort size see the same clients in every round, and if batches are as large, the same batches.
What differs is a tensor with a number per trial. Trials that differ in more than numbers are in different blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.own import is_own
from fedarena.models import Task, Tensors
from fedarena.train import Algorithm, LocalTraining

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_OF_LOCAL_TRAINING = ("lr", "momentum", "weight_decay")
_ATTRIBUTE = "attribute "  # begins the names of an algorithm's numbers


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


@dataclass(frozen=True)
class Block:
    """Trials that one computation trains: ``[groups, trials]``; those of a group have the same seed and cohort size.

    Within a group, trials with more steps come first, and all groups have as many.
    """

    groups: tuple[tuple[Trial, ...], ...]
    varying: frozenset[str]  # names of numbers in which trials of this kind differ, in this block or in others

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
        """Numbers in which trials differ, ``[groups, trials]``: settings of jobs, and attributes of the algorithm."""
        found = {
            name: np.array([[_numbers(trial)[name] for trial in group] for group in self.groups])
            for name in sorted(self.varying)
        }
        jobs = {name: values for name, values in found.items() if not name.startswith(_ATTRIBUTE)}
        return jobs, {name.removeprefix(_ATTRIBUTE): found[name] for name in found if name not in jobs}


Steps = Mapping[int, IntArray]  # by the number of a trial: the local steps of every client


def arrange(
    trials: Sequence[Trial], steps: Steps, most_lanes: Callable[[Trial], int], several_groups: bool
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
        varying = _varying([trial for group in groups.values() for trial in group])
        pieces = [
            piece
            for (_, cohort), group in groups.items()
            for piece in _dealt(group, steps, limit // cohort if several_groups else limit)
        ]
        blocks += (
            _together(pieces, varying, steps, limit)
            if several_groups
            else [Block((piece,), varying) for piece in pieces]
        )
    return blocks


def _dealt(group: list[Trial], steps: Steps, most: int) -> list[tuple[Trial, ...]]:
    """A group in pieces of at most so many, each with about the same work, so that they can share programs."""
    in_order = sorted(group, key=lambda trial: int(steps[trial.number].sum()), reverse=True)
    each = np.stack([steps[trial.number] for trial in in_order])
    if (np.diff(each, axis=0) > 0).any():  # no order in which everybody is done before those who come earlier
        return [(trial,) for trial in in_order]
    pieces = -(-len(group) // max(1, most))
    return [tuple(in_order[place::pieces]) for place in range(pieces)]


def _together(pieces: list[tuple[Trial, ...]], varying: frozenset[str], steps: Steps, limit: int) -> list[Block]:
    """Pieces with the same work side by side."""
    same: defaultdict[Any, list[tuple[Trial, ...]]] = defaultdict(list)
    for piece in pieces:
        same[tuple(steps[trial.number].tobytes() for trial in piece)].append(piece)
    blocks: list[Block] = []
    for some in same.values():
        lanes = 0
        for piece in some:
            size = len(piece) * piece[0].cohort
            if lanes == 0 or lanes + size > limit:
                blocks.append(Block((), varying))
                lanes = 0
            blocks[-1] = replace(blocks[-1], groups=(*blocks[-1].groups, piece))
            lanes += size
    return blocks


def _numbers(trial: Trial) -> dict[str, float]:
    """What may differ within a computation."""
    found = {f"local.{name}": float(getattr(trial.local, name)) for name in _OF_LOCAL_TRAINING}
    if trial.dropout is not None:
        found["model.dropout"] = trial.dropout
    attributes = vars(trial.algorithm).items()
    return found | {_ATTRIBUTE + name: value for name, value in attributes if isinstance(value, float)}


def _varying(trials: Sequence[Trial]) -> frozenset[str]:
    """In which of these numbers trials do differ."""
    each = [_numbers(trial) for trial in trials]
    # Dropout always counts: the module of the task drops another share.
    return frozenset(name for name in each[0] if len({one[name] for one in each}) > 1 or name == "model.dropout")


def _kind(trial: Trial) -> Any:
    """What trials of one computation have in common."""
    algorithm, local = trial.algorithm, trial.local
    others = {name: value for name, value in vars(algorithm).items() if name != "local"}
    fixed = tuple(
        (name, "float" if isinstance(value, float) else repr(value)) for name, value in sorted(others.items())
    )
    form = tuple((name, tuple(p.shape)) for name, p in trial.start.items())
    # A method of somebody's own might ask how many steps or epochs there are.
    amount = (local.steps, local.epochs) if is_own(type(algorithm)) else None
    return (
        id(trial.task),
        form,
        local.batch_size,
        local.optimizer,
        local.clip_norm,
        amount,
        trial.dropout is None,
        type(algorithm),
        fixed,
    )
