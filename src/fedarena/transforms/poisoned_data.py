"""Samples as corrupted clients have changed them.

What a client trains on may change in the middle of a run, when its attack begins. So its poisoned samples have an index
of their own: that of client c is ``~c``, which is below 0. Whoever keeps samples by index keeps both apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.train.engine import ClientData, ClientSamples, IntArray, Part
from fedarena.train.memories import refusing_memories
from fedarena.train.own_code import has_own_code, seeded_if_own
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
        return _changed(block, people, rows, self._attack, "poison", self._seed)


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
        return _changed(block, np.asarray(clients, dtype=np.int64), rows, self._attack, "trigger", self._seed)


def _changed(
    block: ClientSamples, people: IntArray, rows: IntArray, attack: Attack, method: str, seed: int
) -> ChangedSamples:
    """The block of samples of these people, with what `method` of an attack makes of some rows."""
    owners = np.repeat(np.arange(len(people)), np.diff(block.offsets))[rows]
    columns = dict(block.columns)
    # Who is read together depends on the engine, so somebody's own attack is asked for one client at a time: then it
    # may also draw numbers, which follow from the client.
    starts = np.flatnonzero(np.diff(owners, prepend=-1)) if has_own_code(attack) else np.zeros(min(1, len(rows)), int)
    with refusing_memories(attack, method, 'what is random may come from samples.uniform("purpose")'):
        for start, end in pairwise([*starts.tolist(), len(rows)]):
            chosen, whose = rows[start:end], owners[start:end]
            given = {name: values[chosen] for name, values in block.columns.items()}
            samples = OwnSamples(given, people[whose], chosen - block.offsets[whose], seed)
            with seeded_if_own(attack, seed, f"own {method}", int(people[whose[0]])):
                new = dict(getattr(attack, method)(samples))
            _check_form(new, given, f"{type(attack).__name__}.{method}")
            for name, values in new.items():
                if columns[name] is block.columns[name]:
                    columns[name] = columns[name].copy()
                columns[name][chosen] = values
    return ChangedSamples(columns, block.offsets)


def _check_form(new: dict[str, Array], given: dict[str, Array], who: str) -> None:
    for name, values in new.items():
        if name not in given or np.shape(values) != given[name].shape:
            needed = "is no column of the samples" if name not in given else "must have a row for every sample"
            raise BadInputError(f"{who} gives {name!r}, which {needed}")
