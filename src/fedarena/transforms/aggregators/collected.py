"""The update of every single client at the server, for aggregators that need them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Groups, JobArrays, Work
from fedarena.transforms.aggregators.base import Partial, named, unnamed
from fedarena.transforms.rows import FloatArray, IntArray, Rows

_JOB, _WORK = "job:", "work:"


def collect_rows(rows: Rows) -> Partial:
    """The rows as they are, in the form of a partial result: one piece."""
    jobs = {name: torch.from_numpy(np.array(values)) for name, values in vars(rows.jobs).items() if values is not None}
    work = {name: torch.as_tensor(np.array(values)) for name, values in vars(rows.work).items() if values is not None}
    facts = {"weights": {"": torch.from_numpy(rows.weights.copy())}, _JOB: jobs, _WORK: work}
    return Partial(named("0|", rows.update | facts), {"pieces": 1.0, "seed": float(rows.seed)})


def merge_rows(total: Partial, more: Partial) -> Partial:
    """The pieces of both, one after the other; nothing is copied."""
    before = int(total.numbers["pieces"])
    for group, tensors in more.tensors.items():
        piece, _, name = group.partition("|")
        total.tensors[f"{int(piece) + before}|{name}"] = tensors
    total.numbers["pieces"] += more.numbers["pieces"]
    return total


@dataclass(frozen=True)
class Collected:
    """Updates of all clients of a step of the server. They stay in the pieces in which they came."""

    pieces: Sequence[Groups]
    change_groups: tuple[str, ...]  # the groups of an update that move the model
    seed: int  # of the run

    @classmethod
    def of(cls, total: Partial, change_groups: tuple[str, ...]) -> Collected:
        """What was collected by `collect_rows` and `merge_rows`."""
        pieces = [unnamed(f"{piece}|", total.tensors) for piece in range(int(total.numbers["pieces"]))]
        return cls(pieces, change_groups, int(total.numbers["seed"]))

    @cached_property
    def clients(self) -> IntArray:
        """Who they are of; a client may occur twice."""
        return torch.cat([piece[_JOB]["clients"] for piece in self.pieces]).numpy()

    @cached_property
    def weights(self) -> FloatArray:
        """How much each counts, by the algorithm."""
        return torch.cat([piece["weights"][""] for piece in self.pieces]).numpy()

    def __len__(self) -> int:
        return len(self.clients)

    def tensors(self) -> Iterator[tuple[str, str, list[Tensor]]]:
        """Group, name and the rows of every piece, of every tensor that clients send."""
        for group, tensors in self.pieces[0].items():
            if group not in ("weights", _JOB, _WORK):
                for name in tensors:
                    yield group, name, [piece[group][name] for piece in self.pieces]


def collected_rows(total: Partial, change_groups: tuple[str, ...]) -> Rows:
    """All rows together, in memory of their own."""
    collected = Collected.of(total, change_groups)
    update: Groups = {}
    for group, name, parts in collected.tensors():
        update.setdefault(group, {})[name] = torch.cat(parts)

    def joined(kind: str) -> dict[str, Any]:
        first, *_ = collected.pieces
        return {name: torch.cat([piece[kind][name] for piece in collected.pieces]).numpy() for name in first[kind]}

    jobs, work = JobArrays(**joined(_JOB)), Work(**joined(_WORK))
    return Rows(update, jobs, work, collected.weights, change_groups, collected.seed)
