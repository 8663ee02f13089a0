"""Samples as corrupted clients have changed them.

What a client trains on may change in the middle of a run, when its attack begins. So its poisoned samples have an index
of their own: that of client c is ``~c``, which is below 0. Whoever keeps samples by index keeps both apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.train.engine import ClientData, ClientSamples, IntArray, Part
from fedarena.transforms.attacks import Attack, OwnSamples

Array = npt.NDArray[Any]


def poisoned(clients: IntArray, corrupted: npt.NDArray[np.bool_]) -> IntArray:
    """The indexes under which these clients find what they train on."""
    return np.where(corrupted, ~clients, clients)


@dataclass(frozen=True)
class ChangedSamples:
    """Samples of several clients, one after the other."""

    columns: dict[str, Array]
    offsets: IntArray


class PoisonedData:
    """Clients' samples, and under other indexes (see `poisoned`) those that an attack makes of them."""

    def __init__(self, data: ClientData, attack: Attack, seed: int):
        self._data, self._attack, self._seed = data, attack, seed

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples these clients have: poison takes none and adds none."""
        chosen = np.asarray(clients, dtype=np.int64)
        return self._data.counts(np.where(chosen < 0, ~chosen, chosen), part)

    def samples(self, clients: IntArray, part: Part) -> ClientSamples:
        """The samples of these clients, in this order."""
        chosen = np.asarray(clients, dtype=np.int64)
        corrupted = chosen < 0
        people = np.where(corrupted, ~chosen, chosen)
        block = self._data.samples(people, part)
        if not corrupted.any():
            return block
        owners = np.repeat(np.arange(len(people)), np.diff(block.offsets))
        rows = np.flatnonzero(corrupted[owners])
        theirs = _own_samples(block, people, self._seed, rows)
        return _changed(block, rows, dict(self._attack.poison(theirs)), f"{type(self._attack).__name__}.poison")


class TriggeredData:
    """The same clients, all of whose samples carry the trigger of an attack."""

    def __init__(self, data: ClientData, attack: Attack, seed: int):
        self._data, self._attack, self._seed = data, attack, seed

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples these clients have."""
        return self._data.counts(clients, part)

    def samples(self, clients: IntArray, part: Part) -> ClientSamples:
        """The samples of these clients, in this order."""
        block = self._data.samples(clients, part)
        rows = np.arange(int(block.offsets[-1]))
        own = _own_samples(block, np.asarray(clients, dtype=np.int64), self._seed, rows)
        return _changed(block, rows, dict(self._attack.trigger(own)), f"{type(self._attack).__name__}.trigger")


def _own_samples(block: ClientSamples, people: IntArray, seed: int, rows: IntArray) -> OwnSamples:
    owners = np.repeat(np.arange(len(people)), np.diff(block.offsets))[rows]
    columns = {name: values[rows] for name, values in block.columns.items()}
    return OwnSamples(columns, people[owners], rows - block.offsets[owners], seed)


def _changed(block: ClientSamples, rows: IntArray, new: dict[str, Array], who: str) -> ChangedSamples:
    columns = dict(block.columns)
    for name, values in new.items():
        if name not in columns or np.shape(values) != columns[name][rows].shape:
            needed = "is no column of the samples" if name not in columns else "must have a row for every sample"
            raise BadInputError(f"{who} gives {name!r}, which {needed}")
        columns[name] = columns[name].copy()
        columns[name][rows] = values
    return ChangedSamples(columns, block.offsets)
