"""Which samples a client adapts its personal model to, and on which that model is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core import streams
from fedarena.train.engine import ClientData, ClientSamples, IntArray, Part

Array = npt.NDArray[Any]
_NOBODYS_SEED = 0  # the same samples are scored whatever the seed of a run, so that runs can be compared


@dataclass(frozen=True)
class Samples:
    """Samples of several clients, one after the other."""

    columns: Mapping[str, Array]
    offsets: IntArray


class PersonalData:
    """A federation as the evaluation of personal models sees it.

    A client adapts to its training samples and is scored on its samples of the evaluated part. A newcomer, who has no
    training samples, adapts to half of the evaluated ones, rounded down, and is scored on the rest; if nothing is
    `adapting`, it is scored on all of them.
    """

    def __init__(self, data: ClientData, evaluated: Part, adapting: bool):
        self.data, self.evaluated, self.adapting = data, evaluated, adapting

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples these clients have for training (adapting) or of the evaluated part (to be scored)."""
        counts = self.data.counts(clients, part)
        newcomers = self._newcomers(clients)
        if part in ("train", self.evaluated) and newcomers.any():
            halves = self.data.counts(clients[newcomers], self.evaluated) // 2
            counts = counts.copy()
            counts[newcomers] = halves if part == "train" else counts[newcomers] - halves
        return counts

    def samples(self, clients: IntArray, part: Part) -> ClientSamples:
        """The samples of these clients, in this order."""
        newcomers = self._newcomers(clients)
        if part not in ("train", self.evaluated) or not newcomers.any():
            return self.data.samples(clients, part)
        half = self._half(clients[newcomers], adapting=part == "train")
        pieces: list[tuple[IntArray, ClientSamples]] = [(np.flatnonzero(newcomers), half)]
        if not newcomers.all():
            pieces.append((np.flatnonzero(~newcomers), self.data.samples(clients[~newcomers], part)))
        return _in_order(pieces)

    def for_choosing(self, clients: IntArray) -> ClientSamples:
        """Validation samples, or those a client adapts to where it has none; never what it is scored on."""
        validating = np.zeros(len(clients), dtype=bool)
        if self.evaluated != "validation":
            validating = self.data.counts(clients, "validation") > 0
        pieces: list[tuple[IntArray, ClientSamples]] = []
        if validating.any():
            pieces.append((np.flatnonzero(validating), self.data.samples(clients[validating], "validation")))
        if not validating.all():
            rest = self.samples(clients[~validating], "train")
            if self.evaluated == "train":
                rest = _nothing_of(rest)
            pieces.append((np.flatnonzero(~validating), rest))
        return _in_order(pieces)

    def _newcomers(self, clients: IntArray) -> npt.NDArray[np.bool_]:
        if not self.adapting:
            return np.zeros(len(clients), dtype=bool)
        newcomers: npt.NDArray[np.bool_] = self.data.counts(clients, "train") == 0
        return newcomers

    def _half(self, clients: IntArray, adapting: bool) -> Samples:
        """The evaluated samples that these clients adapt to, or those that are scored."""
        block = self.data.samples(clients, self.evaluated)
        counts = np.diff(block.offsets)
        owner = np.repeat(np.arange(len(clients)), counts)
        place = np.arange(len(owner)) - block.offsets[owner]
        keys = streams.bits(_NOBODYS_SEED, "adapting samples", clients[owner], place)
        rank = np.empty(len(owner), dtype=np.int64)
        rank[np.lexsort((keys, owner))] = place  # rows of a client are consecutive, so places are ranks in key order
        chosen = (rank < counts[owner] // 2) == adapting
        return Samples(
            {name: values[chosen] for name, values in block.columns.items()},
            np.concatenate([[0], np.cumsum(np.bincount(owner[chosen], minlength=len(clients)))]),
        )


def _nothing_of(samples: ClientSamples) -> Samples:
    return Samples({name: values[:0] for name, values in samples.columns.items()}, 0 * samples.offsets)


def _in_order(pieces: list[tuple[IntArray, ClientSamples]]) -> Samples:
    """Samples of clients at several positions as one block, in the order of the positions, which are 0, 1, …"""
    owner = np.concatenate([np.repeat(positions, np.diff(samples.offsets)) for positions, samples in pieces])
    order = np.argsort(owner, kind="stable")
    clients = sum(len(positions) for positions, _ in pieces)
    names = pieces[0][1].columns
    return Samples(
        {name: np.concatenate([samples.columns[name] for _, samples in pieces])[order] for name in names},
        np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))]),
    )
