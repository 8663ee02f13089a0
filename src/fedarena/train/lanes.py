"""The local training of some clients in lanes: the state of all lanes while a schedule is worked off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.batches import dropout_keys
from fedarena.train.engine import IntArray, JobResults
from fedarena.train.optimizers import LocalTraining, optimizer_init
from fedarena.train.program import Changing, Given, StepPrograms
from fedarena.train.resident import SampleSource
from fedarena.train.schedule import Schedule, batch_table, make_schedule
from fedarena.train.tensors import Groups, map_groups, stack_groups

# When fewer lanes are at work, the others are dropped a few at a time: every width needs a program of its own.
_NARROWING = 4
_WIDTHS_PER_OCTAVE = 8


class LaneEngine(Protocol):
    """What lanes need from their engine."""

    algorithm: Algorithm
    local: LocalTraining
    seed: int
    lanes: int
    device: torch.device
    compile: bool
    draws: bool  # whether the model draws random numbers while it is trained
    programs: StepPrograms
    training_samples: SampleSource

    def place(self, groups: Groups) -> Groups:
        """The same groups where this engine computes."""

    def start_params(self, broadcast: Groups, memory: Groups, clients: int) -> Tensors:
        """What so many clients with these memories start from, in tensors of their own."""

    def updates(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and their new memories."""


class Lanes:
    """The tensors of a number of lanes; they stay where they are, so that programs can be bound to them."""

    def __init__(self, engine: LaneEngine, count: int, columns: Tensors, memory: Groups, broadcast: Groups):
        self.count = count
        self._programs, self._compile = engine.programs, engine.compile
        device, batch = engine.device, engine.local.batch_size

        def room(like: Tensor, *rows: int) -> Tensor:
            return torch.zeros(*rows, *like.shape[1:], dtype=like.dtype, device=device)

        params = engine.start_params(broadcast, map_groups(lambda t: room(t, count), memory), count)
        one_each = next(iter(params.values())).reshape(count, -1)[:, 0]
        self.changing = Changing(
            params, optimizer_init(engine.local, params), torch.ones_like(one_each), torch.zeros_like(one_each)
        )
        self.given = Given(
            {name: room(t, count, batch) for name, t in columns.items()},
            torch.zeros(count, batch, dtype=torch.bool, device=device),
            torch.zeros(count, dtype=torch.int64, device=device),
            map_groups(lambda t: room(t, count), memory),
            map_groups(torch.clone, broadcast),
        )
        self._steps: dict[tuple[int, bool], Callable[[], None]] = {}

    def step(self, width: int, widest: bool) -> None:
        """One gradient step in each of the first `width` lanes; the widest steps are worth being compiled."""
        if (width, widest) not in self._steps:
            changing, given = self.changing.first(width), self.given.first(width)
            self._steps[width, widest] = self._programs.bind(changing, given, compile=widest and self._compile)
        self._steps[width, widest]()


class LanePool:
    """Lanes that are not in use at the moment; a worker borrows some and gives them back."""

    def __init__(self) -> None:
        self._free: list[Lanes] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, count: int, make: Callable[[], Lanes]) -> Iterator[Lanes]:
        """At least `count` lanes; what is in them is left over from before."""
        with self._lock:
            lanes = self._free.pop() if self._free else None
        if lanes is None or lanes.count < count:
            lanes = make()
        yield lanes
        with self._lock:
            self._free.append(lanes)


@dataclass(frozen=True)
class PlannedWork:
    """What some clients are to do; every array has an entry per client."""

    clients: IntArray
    samples: IntArray
    steps: IntArray
    start_losses: npt.NDArray[np.float64] | None

    def of(self, positions: IntArray) -> PlannedWork:
        """The work of those at these positions."""
        losses = None if self.start_losses is None else self.start_losses[positions]
        return PlannedWork(self.clients[positions], self.samples[positions], self.steps[positions], losses)


class LaneTraining:
    """The local training of some clients, which are numbered by their position in the planned work."""

    def __init__(
        self,
        engine: LaneEngine,
        round: int,
        work: PlannedWork,
        broadcast: Groups,
        memories: Mapping[int, Groups],
    ):
        self.engine, self.broadcast = engine, broadcast
        self.clients, self.samples, self.start_losses = work.clients, work.samples, work.start_losses
        self.schedule = make_schedule(work.steps, engine.lanes)
        self.widths = _widths(self.schedule)
        self.columns, first_row = engine.training_samples.rows(self.clients)
        rows, mask = batch_table(
            self.schedule,
            int(self.widths[0]) if len(self.widths) else 0,
            self.clients,
            self.samples,
            first_row,
            engine.local.batch_size,
            engine.seed,
            round,
        )
        self.processed = _processed_samples(self.schedule, mask.sum(-1))
        self.rows, self.mask = (torch.from_numpy(table).to(engine.device) for table in (rows, mask))
        self.keys: Tensor | None = None
        if engine.draws:
            keys = _key_table(self.schedule, rows.shape[1], self.clients, engine.seed, round)
            self.keys = torch.from_numpy(keys).to(engine.device)
        self.memory = _stack_memories(engine, broadcast, memories, self.clients)
        self.finished: list[tuple[IntArray, Tensors, Tensor]] = []  # clients, their parameters, sums of their losses

    def run(self, pool: LanePool) -> Iterator[JobResults]:
        """Works off the schedule; yields finished clients, about as many at a time as there are lanes."""
        idle = np.flatnonzero(self.schedule.steps == 0)
        if len(idle):
            nothing = torch.full((len(idle),), torch.nan, device=self.engine.device)
            self.finished.append((idle, self._start_params(idle), nothing))
        if self.schedule.length:
            width = int(self.widths[0])
            with pool.borrow(width, lambda: self._make_lanes(width)) as lanes:
                yield from self._work_off(lanes)
        if self.finished:
            yield self._flush()

    def _work_off(self, lanes: Lanes) -> Iterator[JobResults]:
        schedule = self.schedule
        for group, tensors in lanes.given.broadcast.items():
            for name, t in tensors.items():
                t.copy_(self.broadcast[group][name])
        starting = _clients_at(schedule.start, schedule)
        ending = _clients_at(schedule.start + schedule.steps - 1, schedule)
        waiting = 0
        for step, width in enumerate(self.widths.tolist()):
            if len(starting[step]):
                self._start(lanes, starting[step])
            self._fill_batch(lanes, step, width)
            lanes.step(width, widest=width == self.widths[0])
            if len(ending[step]):
                waiting += len(ending[step])
                flush = waiting >= schedule.lanes
                self._finish(lanes, ending[step], keep=not flush)
                if flush:
                    yield self._flush()
                    waiting = 0

    def _make_lanes(self, count: int) -> Lanes:
        return Lanes(self.engine, count, self.columns, self.memory, self.broadcast)

    def _memories(self, clients: IntArray) -> Groups:
        rows = torch.from_numpy(clients).to(self.engine.device)
        return map_groups(lambda t: t[rows], self.memory)

    def _start_params(self, clients: IntArray) -> Tensors:
        return self.engine.start_params(self.broadcast, self._memories(clients), len(clients))

    def _start(self, lanes: Lanes, clients: IntArray) -> None:
        """Puts clients into their lanes."""
        clients = clients[np.argsort(self.schedule.lane[clients])]
        place = self._place(clients)
        memory = self._memories(clients)
        for name, p in self.engine.start_params(self.broadcast, memory, len(clients)).items():
            lanes.changing.params[name][place] = p
        for group in lanes.changing.optimizer.values():
            for t in group.values():
                t[place] = 0
        lanes.changing.numbers[place], lanes.changing.loss_sums[place] = 1, 0
        for name, group in lanes.given.memory.items():
            for key, t in group.items():
                t[place] = memory[name][key]

    def _place(self, clients: IntArray) -> slice | Tensor:
        """The lanes of clients that are sorted by lane."""
        lanes = self.schedule.lane[clients]
        if lanes[-1] - lanes[0] == len(lanes) - 1:
            return slice(int(lanes[0]), int(lanes[-1]) + 1)
        return torch.from_numpy(lanes).to(self.engine.device)

    def _fill_batch(self, lanes: Lanes, step: int, width: int) -> None:
        rows = self.rows[step, :width].flatten()
        for name, values in self.columns.items():
            batch = lanes.given.columns[name][:width].flatten(0, 1)
            torch.index_select(values, 0, rows, out=batch)
        lanes.given.mask[:width] = self.mask[step, :width]
        if self.keys is not None:
            lanes.given.keys[:width] = self.keys[step, :width]

    def _finish(self, lanes: Lanes, clients: IntArray, keep: bool) -> None:
        """Takes out the parameters of clients; they must be copied if they are to be kept for longer."""
        clients = clients[np.argsort(self.schedule.lane[clients])]
        place = self._place(clients)
        params = {name: p[place] for name, p in lanes.changing.params.items()}
        if keep and isinstance(place, slice):
            params = {name: p.clone() for name, p in params.items()}
        self.finished.append((clients, params, lanes.changing.loss_sums[place].clone()))

    def _flush(self) -> JobResults:
        """The results of the clients that have finished since the last time."""
        clients = np.concatenate([clients for clients, _, _ in self.finished])
        names = list(self.finished[0][1])
        params = {name: _concatenate([params[name] for _, params, _ in self.finished]) for name in names}
        loss_sums = _concatenate([sums.double() for _, _, sums in self.finished]).cpu().numpy()
        self.finished = []
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.schedule.steps[clients], self.processed[clients], start_losses)
        memory = self._memories(clients)
        update, new_memory = self.engine.updates(params, self.broadcast, memory, work)
        losses = loss_sums / np.maximum(work.processed_samples, 1)
        return JobResults(self.clients[clients], _apart(update, params), _apart(new_memory, params), work, losses)


def _concatenate(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _apart(groups: Groups, params: Tensors) -> Groups:
    """The groups in memory of their own, because the parameters are those of lanes that are used again."""
    shared = {p.untyped_storage().data_ptr() for p in params.values()}
    return map_groups(lambda t: t.clone() if t.untyped_storage().data_ptr() in shared else t, groups)


def _widths(schedule: Schedule) -> IntArray:
    """How many lanes take each step: those at work, and some more so that there are few different numbers."""
    active = schedule.active_lanes()
    widths = np.empty_like(active)
    width = _round_up(schedule.lanes)
    for step, at_work in enumerate(active.tolist()):
        while width > 1 and -(-width // _NARROWING) >= at_work:
            width = -(-width // _NARROWING)
        widths[step] = width
    return widths


def _round_up(width: int) -> int:
    """To one of a few widths between a power of two and the next."""
    unit = max(1, 2 ** ((width - 1).bit_length() - 1) // _WIDTHS_PER_OCTAVE) if width > 1 else 1
    return -(-width // unit) * unit


def _clients_at(steps: IntArray, schedule: Schedule) -> list[IntArray]:
    """For every step of the schedule, the clients whose entry it is."""
    working = np.flatnonzero(schedule.steps)
    ordered = working[np.argsort(steps[working], kind="stable")]
    bounds = np.searchsorted(steps[ordered], np.arange(1, schedule.length))
    return np.split(ordered, bounds) if schedule.length else []


def _key_table(schedule: Schedule, width: int, clients: IntArray, seed: int, round: int) -> IntArray:
    """The keys of what the model draws in every step and lane."""
    keys = np.zeros((schedule.length, width), dtype=np.int64)
    client = np.repeat(np.arange(len(clients)), schedule.steps)
    step = np.arange(len(client)) - np.repeat(np.cumsum(schedule.steps) - schedule.steps, schedule.steps)
    keys[schedule.start[client] + step, schedule.lane[client]] = dropout_keys(seed, round, clients[client], step + 1)
    return keys


def _processed_samples(schedule: Schedule, batch_sizes: IntArray) -> IntArray:
    """How many samples each client processes over all its steps."""
    until = np.zeros((schedule.length + 1, batch_sizes.shape[1]), dtype=np.int64)
    np.cumsum(batch_sizes, axis=0, out=until[1:])
    processed = np.zeros(len(schedule.steps), dtype=np.int64)
    working = np.flatnonzero(schedule.steps)
    lane, start = schedule.lane[working], schedule.start[working]
    processed[working] = until[start + schedule.steps[working], lane] - until[start, lane]
    return processed


def _stack_memories(engine: LaneEngine, broadcast: Groups, memories: Mapping[int, Groups], clients: IntArray) -> Groups:
    """The memories of a cohort as rows; new for those who never took part."""
    new = engine.algorithm.memory_init(broadcast)
    if not new:
        return {}
    found = [memories.get(int(client)) for client in clients]
    return stack_groups([new if memory is None else engine.place(memory) for memory in found])
