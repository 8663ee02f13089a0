"""Shards: parts of a cohort that are trained independently, wherever there is a core or a machine for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedarena.train.jobs import Job
from fedarena.train.tensors import Groups

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """Jobs with everything that training them takes.

    `broadcasts` and `states` may hold more than these jobs need, as long as all is in one process; `self_contained` is
    what has to travel.
    """

    jobs: tuple[Job, ...]
    broadcasts: Mapping[int, Groups]  # by the version of the server that sent them
    states: Mapping[int, Groups]  # by client, of those who keep something; whoever is missing is new
    batch_width: int  # samples in the largest batch of the whole cohort: how far batches are padded

    @property
    def versions(self) -> list[int]:
        """The versions that these jobs start from, each once."""
        return list(dict.fromkeys(job.version for job in self.jobs))

    def self_contained(self) -> Shard:
        """The same shard with no more than its jobs need."""
        states = {job.client: self.states.get(job.client) for job in self.jobs}
        return Shard(
            self.jobs,
            {version: self.broadcasts[version] for version in self.versions},
            {client: state for client, state in states.items() if state is not None},
            self.batch_width,
        )
