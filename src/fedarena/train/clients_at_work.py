"""Clients at work: what they read while they train, and what is left of those who have finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Work
from fedarena.train.engine import JobResults
from fedarena.train.jobs import IntArray
from fedarena.train.lane_pool import LaneEngine
from fedarena.train.late import late_array
from fedarena.train.placing import PlannedWork
from fedarena.train.program import Given
from fedarena.train.tensors import Groups, map_groups, of_algorithm, sent_to, stack_groups

# Clients, their parameters, and sums of their losses.
Finished = tuple[IntArray, Tensors, Tensor]


class ClientsAtWork:
    """Some clients, who are numbered by their position in the planned work."""

    def __init__(
        self,
        engine: LaneEngine,
        work: PlannedWork,
        broadcasts: Mapping[int, Groups],
        states: Mapping[int, Groups],
    ):
        self.engine, self.jobs = engine, work.jobs
        self.samples, self.steps, self.start_losses = work.samples, work.steps, work.start_losses
        self.processed = work.batches.processed(work.steps)
        versions, self._version_of = self.jobs.versions[:1], np.zeros(len(self.jobs), dtype=np.int64)
        if (self.jobs.versions != versions).any():
            versions, self._version_of = np.unique(self.jobs.versions, return_inverse=True)
        self._downloads = [broadcasts[version] for version in versions.tolist()]
        self._stacked_downloads = stack_groups(self._downloads) if len(versions) > 1 else {}
        self._states = _stack_states(engine, self._downloads, self._version_of, states, self.jobs.clients)
        self._job_rows: Tensors = {}
        jobs_differ = self.jobs.lr_scales is not None or self.jobs.hyperparameters is not None
        if engine.asks_about_jobs or jobs_differ:
            self._job_rows = self.jobs.tensors(next(iter(self._downloads[0]["params"].values())), engine.seed)
        self.finished: list[Finished] = []

    def _given(self, clients: IntArray) -> Given:
        """What these clients read while they train."""
        if len(self._downloads) == 1 and not self._states and not self._job_rows:
            return Given({}, self._downloads[0], {})
        rows = sent_to(self.engine.device, clients)
        shared = len(self._downloads) == 1
        downloaded = self._downloads[0]
        if not shared:
            versions = sent_to(self.engine.device, self._version_of[clients])
            downloaded = map_groups(lambda t: t[versions], self._stacked_downloads)
        jobs = {name: t[rows] for name, t in self._job_rows.items()}
        return Given(map_groups(lambda t: t[rows], self._states), downloaded, jobs, shared)

    def _start_params(self, clients: IntArray) -> Tensors:
        return self.engine.start_params(self._given(clients), len(clients))

    def results(self) -> JobResults:
        """The results of the clients that have finished since the last time."""
        clients = np.concatenate([clients for clients, _, _ in self.finished])
        names = list(self.finished[0][1])
        params = {name: concatenate([params[name] for _, params, _ in self.finished]) for name in names}
        loss_sums = concatenate([sums.double() for _, _, sums in self.finished])
        self.finished = []
        self.engine.meanwhile()  # all that a GPU has to do for them is under way
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.steps[clients], self.processed[clients], start_losses)
        given = self._given(clients)
        update, kept = self.engine.updates(params, given, work)
        losses = late_array(loss_sums, lambda sums: sums / np.maximum(work.processed_samples, 1))
        jobs = self.jobs.take(clients)
        validated = self.engine.validated(params, given, jobs.clients)
        return JobResults(jobs, _apart(update, params), _apart(kept, params), work, losses, validated)


def concatenate(tensors: list[Tensor]) -> Tensor:
    """All rows; a single tensor stays where it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _apart(groups: Groups, params: Tensors) -> Groups:
    """The groups in memory of their own, because the parameters are those of lanes that are used again."""
    shared = {p.untyped_storage().data_ptr() for p in params.values()}
    return map_groups(lambda t: t.clone() if t.untyped_storage().data_ptr() in shared else t, groups)


def _stack_states(
    engine: LaneEngine,
    downloads: Sequence[Groups],
    download_of: IntArray,
    states: Mapping[int, Groups],
    clients: IntArray,
) -> Groups:
    """What the clients of a shard keep as rows; new for those who never took part."""
    new = [engine.algorithm.client_init(broadcast) for broadcast in downloads]
    if not new[0]:
        return {}
    found = [of_algorithm(states.get(int(client))) for client in clients]
    return stack_groups(
        [
            new[download] if state is None else engine.place(state)
            for state, download in zip(found, download_of.tolist(), strict=True)
        ]
    )
