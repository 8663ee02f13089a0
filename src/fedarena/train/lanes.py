"""The local training of some clients in lanes: the state of all lanes while a schedule is worked off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ClientData, IntArray, Job, JobResults, steps_of
from fedarena.train.optimizers import LocalTraining, optimizer_init
from fedarena.train.schedule import Schedule, batch_table, make_schedule
from fedarena.train.tensors import Groups, map_groups

# When fewer lanes are at work, the others are dropped a few at a time: every width has to be traced.
_NARROWING = 4


class Stepper(Protocol):
    """What lanes need from their engine."""

    algorithm: Algorithm
    local: LocalTraining
    data: ClientData
    seed: int
    lanes: int

    def step(
        self,
        params: Tensors,
        optimizer_state: Groups,
        numbers: Tensor,
        columns: Tensors,
        mask: Tensor,
        memory: Groups,
        broadcast: Groups,
    ) -> tuple[Tensors, Groups, Tensor]:
        """One gradient step in every lane: new parameters and optimizer states, and losses."""

    def start_params(self, broadcast: Groups, memory: Groups, clients: int) -> Tensors:
        """What so many clients with these memories start from, in tensors that may be changed."""

    def updates(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and their new memories."""


class LaneTraining:
    """The local training of some clients, which are numbered by their position among the jobs."""

    def __init__(
        self,
        engine: Stepper,
        jobs: Sequence[Job],
        broadcast: Groups,
        memories: Mapping[int, Groups],
        start_losses: npt.NDArray[np.float64] | None,
    ):
        self.engine, self.broadcast = engine, broadcast
        self.clients = np.array([job.client for job in jobs])
        self.samples = engine.data.counts(self.clients, "train")
        steps = steps_of(jobs, self.samples, engine.algorithm, engine.local)
        self.schedule = make_schedule(steps, engine.lanes)
        block = engine.data.samples(self.clients, "train")
        self.columns = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in block.columns.items()}
        rows, mask = batch_table(
            self.schedule,
            self.clients,
            self.samples,
            block.offsets[:-1],
            engine.local.batch_size,
            engine.seed,
            jobs[0].round,
        )
        self.rows, self.mask = torch.from_numpy(rows), torch.from_numpy(mask)
        self.batch_sizes = self.mask.sum(-1)
        self.processed = _processed_samples(self.schedule, self.batch_sizes.numpy())
        self.memory = _stack_memories(engine.algorithm, broadcast, memories, self.clients)
        self.start_losses = start_losses
        # The lanes: parameters, optimizer state, number of the next step, sum of losses, memory of the present client.
        self.params: Tensors = {}
        self.state: Groups = {}
        self.numbers = self.loss_sums = torch.empty(0)
        self.lane_memory: Groups = {}
        self.finished: list[tuple[IntArray, Tensors, Tensor]] = []

    def run(self) -> Iterator[JobResults]:
        """Works off the schedule; yields finished clients, about as many at a time as there are lanes."""
        schedule = self.schedule
        idle = np.flatnonzero(schedule.steps == 0)
        if len(idle):
            self.finished.append((idle, self._start_params(idle), torch.full((len(idle),), torch.nan)))
        starting = _clients_at(schedule.start, schedule)
        ending = _clients_at(schedule.start + schedule.steps - 1, schedule)
        active = schedule.active_lanes()
        waiting = len(idle)
        for step in range(schedule.length):
            self._start(starting[step], first=step == 0)
            self._narrow(int(active[step]))
            self._step(step)
            if len(ending[step]):
                self._finish(ending[step])
                waiting += len(ending[step])
            if waiting >= schedule.lanes:
                yield self._flush()
                waiting = 0
        if waiting:
            yield self._flush()

    def _memories(self, clients: IntArray) -> Groups:
        rows = torch.from_numpy(clients)
        return map_groups(lambda t: t[rows], self.memory)

    def _start_params(self, clients: IntArray) -> Tensors:
        return self.engine.start_params(self.broadcast, self._memories(clients), len(clients))

    def _start(self, clients: IntArray, first: bool) -> None:
        """Puts clients into their lanes."""
        if first:
            by_lane = clients[np.argsort(self.schedule.lane[clients])]
            self.params = self._start_params(by_lane)
            self.state = optimizer_init(self.engine.local, self.params)
            dtype = next(iter(self.params.values())).dtype
            self.numbers, self.loss_sums = torch.ones(len(by_lane), dtype=dtype), torch.zeros(len(by_lane), dtype=dtype)
            self.lane_memory = self._memories(by_lane)
        elif len(clients):
            lanes = torch.from_numpy(self.schedule.lane[clients])
            memory = self._memories(clients)
            for name, p in self._start_params(clients).items():
                self.params[name][lanes] = p
            for group in self.state.values():
                for t in group.values():
                    t[lanes] = 0
            self.numbers[lanes], self.loss_sums[lanes] = 1, 0
            for name, group in self.lane_memory.items():
                for key, t in group.items():
                    t[lanes] = memory[name][key]

    def _narrow(self, active: int) -> None:
        """Drops lanes that are done."""
        width = len(self.numbers)
        while width > 1 and -(-width // _NARROWING) >= active:
            width = -(-width // _NARROWING)
        if width < len(self.numbers):
            self.params = {name: p[:width] for name, p in self.params.items()}
            self.state = map_groups(lambda t: t[:width], self.state)
            self.lane_memory = map_groups(lambda t: t[:width], self.lane_memory)
            self.numbers, self.loss_sums = self.numbers[:width], self.loss_sums[:width]

    def _step(self, step: int) -> None:
        width = len(self.numbers)
        rows = self.rows[step, :width]
        columns = {name: values[rows] for name, values in self.columns.items()}
        self.params, self.state, losses = self.engine.step(
            self.params,
            self.state,
            self.numbers,
            columns,
            self.mask[step, :width],
            self.lane_memory,
            self.broadcast,
        )
        self.numbers = self.numbers + 1
        self.loss_sums = self.loss_sums + losses * self.batch_sizes[step, :width]

    def _finish(self, clients: IntArray) -> None:
        lanes = torch.from_numpy(self.schedule.lane[clients])
        params = {name: p[lanes] for name, p in self.params.items()}
        self.finished.append((clients, params, self.loss_sums[lanes]))

    def _flush(self) -> JobResults:
        """The results of the clients that have finished since the last time."""
        clients = np.concatenate([clients for clients, _, _ in self.finished])
        names = list(self.finished[0][1])
        params = {name: torch.cat([params[name] for _, params, _ in self.finished]) for name in names}
        loss_sums = torch.cat([sums.double() for _, _, sums in self.finished]).numpy()
        self.finished = []
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.schedule.steps[clients], self.processed[clients], start_losses)
        update, new_memory = self.engine.updates(params, self.broadcast, self._memories(clients), work)
        losses = loss_sums / np.maximum(work.processed_samples, 1)
        return JobResults(self.clients[clients], update, new_memory, work, losses)


def _clients_at(steps: IntArray, schedule: Schedule) -> list[IntArray]:
    """For every step of the schedule, the clients whose entry it is."""
    working = np.flatnonzero(schedule.steps)
    ordered = working[np.argsort(steps[working], kind="stable")]
    bounds = np.searchsorted(steps[ordered], np.arange(1, schedule.length))
    return np.split(ordered, bounds) if schedule.length else []


def _processed_samples(schedule: Schedule, batch_sizes: IntArray) -> IntArray:
    """How many samples each client processes over all its steps."""
    until = np.zeros((schedule.length + 1, schedule.lanes), dtype=np.int64)
    np.cumsum(batch_sizes, axis=0, out=until[1:])
    processed = np.zeros(len(schedule.steps), dtype=np.int64)
    working = np.flatnonzero(schedule.steps)
    lane, start = schedule.lane[working], schedule.start[working]
    processed[working] = until[start + schedule.steps[working], lane] - until[start, lane]
    return processed


def _stack_memories(
    algorithm: Algorithm, broadcast: Groups, memories: Mapping[int, Groups], clients: IntArray
) -> Groups:
    """The memories of a cohort as rows; new for those who never took part."""
    new = algorithm.memory_init(broadcast)
    if not new:
        return {}
    each = [memories.get(int(client), new) for client in clients]
    return {
        group: {name: torch.stack([memory[group][name] for memory in each]) for name in tensors}
        for group, tensors in new.items()
    }
