"""Shards: parts of a cohort that are trained independently, wherever there is a core or a machine for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedarena.train.jobs import JobArrays
from fedarena.train.tensors import Groups

T = TypeVar("T")
FloatArray = npt.NDArray[np.float64]


class StateFile(NamedTuple):
    """A file with what some clients keep, which whoever trained them has written for the driver."""

    name: str  # in the folder in which the driver keeps such
    bytes: int
    crc32: int  # of the headers of its records


@dataclass(frozen=True)
class Shard:
    """Jobs with everything that training them takes.

    `broadcasts` and `states` may hold more than these jobs need, as long as all is in one process; `self_contained` is
    what has to travel.
    """

    jobs: JobArrays
    broadcasts: Mapping[int, Groups]  # by the version of the server that sent them
    states: Mapping[int, Groups]  # by client, of those who keep something; whoever is missing is new
    batch_width: int  # samples in the largest batch of the whole cohort: how far batches are padded
    start_losses: FloatArray | None = None  # of what clients downloaded on their samples, if the algorithm needs them
    prepared: Any = None  # what the engine found out already while it divided jobs; it can do so again

    @property
    def versions(self) -> list[int]:
        """The versions that these jobs start from, each once."""
        return list(dict.fromkeys(self.jobs.versions.tolist()))

    def self_contained(self) -> Shard:
        """The same shard with no more than its jobs need."""
        states = {client: self.states.get(client) for client in self.jobs.clients.tolist()}
        return replace(
            self,
            broadcasts={version: self.broadcasts[version] for version in self.versions},
            states={client: state for client, state in states.items() if state is not None},
            prepared=None,
        )
