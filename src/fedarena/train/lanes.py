"""The local training of some clients in lanes: the state of all lanes while a schedule is worked off."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.batches import dropout_keys
from fedarena.train.engine import JobResults
from fedarena.train.jobs import IntArray, JobArrays, hyperparameters_in
from fedarena.train.optimizers import LocalTraining, optimizer_init
from fedarena.train.program import Batch, Changing, Given, Program, StepPrograms
from fedarena.train.resident import SampleSource
from fedarena.train.schedule import Batches, Schedule, make_schedule, place_steps
from fedarena.train.streams import LaneStream, beside_each_other
from fedarena.train.tensors import Groups, innermost_channels, map_groups, of_algorithm, stack_groups
from fedarena.train.validation import Validated

# When fewer lanes are at work, the others are dropped a few at a time: every width needs a program of its own.
_NARROWING = 2
# Batches of several steps are gathered at once: on a CPU as long as they stay in a cache.
_BLOCK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 28}


# All lanes in one computation, or each in one of its own, which a GPU does beside the others.
Plan = Literal["together", "apart"]


class LaneEngine(Protocol):
    """What lanes need from their engine."""

    algorithm: Algorithm
    local: LocalTraining
    seed: int
    lanes: int
    fewest_lanes: int  # of which programs are made, so that they fit larger cohorts, too
    usual_width: int | None  # that most cohorts are filled up to, the only one worth compiling; None: each has its own
    widths_per_octave: int  # between a power of two and the next
    plan: Plan
    device: torch.device
    compile: bool
    draws: bool  # whether the model draws random numbers while it is trained
    exact_batches: bool  # whether batches must not be filled up with samples that do not count
    asks_about_jobs: bool  # whether the algorithm may want to know something about a job
    programs: StepPrograms
    training_samples: SampleSource

    def meanwhile(self) -> None:
        """Does what there is to do while the device is busy."""

    def place(self, groups: Groups) -> Groups:
        """The same groups where this engine computes."""

    def start_params(self, given: Given, clients: int) -> Tensors:
        """What so many clients start from; to be read only."""

    def updates(self, params: Tensors, given: Given, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and what they keep."""

    def validated(self, params: Tensors, given: Given, clients: IntArray) -> Validated | None:
        """How good the models of finished clients (rows of `params`) are, if somebody asks."""


class Lanes:
    """The tensors of a number of lanes; they stay where they are, so that programs can be bound to them."""

    def __init__(self, engine: LaneEngine, count: int, like: Given):
        self.count = count
        self._programs, self._compile = engine.programs, engine.compile

        def empty(t: Tensor) -> Tensor:
            return torch.zeros_like(t[:1]).repeat(count, *[1] * (t.dim() - 1))

        self.given = Given(
            map_groups(empty, like.states),
            map_groups(torch.clone if like.shared else empty, like.broadcast),
            {name: empty(t) for name, t in like.jobs.items()},
            like.shared,
        )
        params = {name: p.clone() for name, p in engine.start_params(self.given, count).items()}
        if engine.plan == "apart":  # libraries want the weights of convolutions like that, too
            params = {name: innermost_channels(p) for name, p in params.items()}
        one_each = next(iter(params.values())).reshape(count, -1)[:, 0]
        self.changing = Changing(
            params,
            optimizer_init(engine.local, params, hyperparameters_in(like.jobs)),
            torch.ones_like(one_each),
            torch.zeros_like(one_each),
        )
        self._steps: dict[tuple[int, int, bool], Program] = {}
        self._alone: dict[tuple[int, int], Program] = {}  # by lane and size of the batch
        self._streams: dict[int, LaneStream] = {}

    def step(self, width: int, batch: Batch, often: bool) -> None:
        """One gradient step in each of the first `width` lanes; what is done often is worth being compiled."""
        form = (width, batch.mask.shape[1], often)
        if form not in self._steps:
            changing, given = self.changing.first(width), self.given.first(width)
            self._steps[form] = self._programs.bind(changing, given, batch, compile=often and self._compile)
        self._steps[form](batch)

    def step_apart(self, batch: Batch, samples: IntArray, exactly: bool) -> None:
        """One gradient step in each lane that has `samples`, every one in a computation of its own.

        Batches are filled up to a power of two, and not at all if it must be done exactly.
        """
        at_work = np.flatnonzero(samples).tolist()
        with beside_each_other(self._streams, at_work, batch.mask.device) as streams:
            for lane, stream in zip(at_work, streams, strict=True):
                count = int(samples[lane])
                size = count if exactly else min(1 << (count - 1).bit_length(), batch.mask.shape[1])
                own = batch.only(lane, size)
                if (lane, size) not in self._alone:
                    changing, given = self.changing.only(lane), self.given.only(lane)
                    self._alone[lane, size] = self._programs.bind(changing, given, own, stream=stream)
                with stream or nullcontext():
                    self._alone[lane, size](own)

    def step_exactly(self, width: int, batch: Batch, samples: IntArray, often: bool) -> None:
        """The same for batches without padding, of so many `samples` each (0: the lane is idle).

        Full batches are one computation; smaller ones, such as the last of an epoch, another one for every size.
        """
        full = batch.mask.shape[1]
        smaller = [size for size in np.unique(samples).tolist() if 0 < size < full]
        lanes = [torch.from_numpy(np.flatnonzero(samples == size)).to(batch.mask.device) for size in smaller]
        before = [self.changing.of(some) for some in lanes]
        if (samples == full).any():
            self.step(width, batch, often)  # also where a batch is smaller, which is put right below
        for some, size, changing in zip(lanes, smaller, before, strict=True):
            changed = self._programs.take(changing, self.given.of(some), batch.of(some, size))
            self.changing.put(some, changed)


class Counted(Protocol):
    """A number of lanes of some kind."""

    count: int


L = TypeVar("L", bound=Counted)


class LanePool:
    """Lanes that are not in use at the moment; a worker borrows some and gives them back."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, kind: Any, count: int, make: Callable[[], L]) -> Iterator[L]:
        """At least `count` lanes of a kind; what is in them is left over from before."""
        with self._lock:
            free = self._free.setdefault(kind, [])
            lanes = free.pop() if free else None
        if lanes is None or lanes.count < count:
            lanes = make()
        yield lanes
        with self._lock:
            free.append(lanes)


@dataclass(frozen=True)
class PlacedWork:
    """Who is in which lane when, and the batches of all steps and lanes on the device."""

    schedule: Schedule
    widths: IntArray
    columns: Tensors  # in which the samples are
    batch_samples: IntArray  # [steps, lanes]
    rows: Tensor  # [steps, lanes, batch]
    mask: Tensor  # the same
    keys: Tensor  # [steps, lanes]


@dataclass(frozen=True)
class PlannedWork:
    """What some clients are to do; every array has an entry per client."""

    jobs: JobArrays
    samples: IntArray
    steps: IntArray
    batches: Batches
    start_losses: npt.NDArray[np.float64] | None
    placed: PlacedWork | None = None  # for the engine's lanes, if there was time for it before

    def is_about(self, jobs: JobArrays) -> bool:
        """Whether it is the work of these jobs."""
        own, names = self.jobs, ("clients", "rounds", "shares", "holders")
        alike = all(np.array_equal(getattr(own, name), getattr(jobs, name)) for name in names)
        return alike and own.hyperparameters is None and jobs.hyperparameters is None

    def of(self, positions: IntArray) -> PlannedWork:
        """The work of those at these positions."""
        if np.array_equal(positions, np.arange(len(self.steps))):
            return self
        batches = replace(self.batches, first=self.batches.first[positions])
        losses = None if self.start_losses is None else self.start_losses[positions]
        return PlannedWork(self.jobs.take(positions), self.samples[positions], self.steps[positions], batches, losses)


class LaneTraining:
    """The local training of some clients, which are numbered by their position in the planned work."""

    def __init__(
        self,
        engine: LaneEngine,
        work: PlannedWork,
        broadcasts: Mapping[int, Groups],
        states: Mapping[int, Groups],
        lanes: int | None = None,
        widths_per_octave: int | None = None,
    ):
        """With so many `lanes` and widths, by default those of the engine."""
        self.engine, self.jobs = engine, work.jobs
        self.samples, self.start_losses = work.samples, work.start_losses
        self.processed = work.batches.processed(work.steps)
        placed = work.placed if lanes is None and widths_per_octave is None else None
        placed = placed or place_work(engine, work, lanes or engine.lanes, widths_per_octave)
        self.schedule, self.widths, self.columns = placed.schedule, placed.widths, placed.columns
        self.batch_samples = placed.batch_samples
        self.rows, self.mask, self.keys = placed.rows, placed.mask, placed.keys
        versions, self._version_of = np.unique(self.jobs.versions, return_inverse=True)
        self._downloads = [broadcasts[version] for version in versions.tolist()]
        self._stacked_downloads = stack_groups(self._downloads) if len(versions) > 1 else {}
        self._states = _stack_states(engine, self._downloads, self._version_of, states, self.jobs.clients)
        self._job_rows: Tensors = {}
        jobs_differ = self.jobs.lr_scales is not None or self.jobs.hyperparameters is not None
        if engine.asks_about_jobs or jobs_differ:
            self._job_rows = self.jobs.tensors(next(iter(self._downloads[0]["params"].values())), engine.seed)
        self.finished: list[tuple[IntArray, Tensors, Tensor]] = []  # clients, their parameters, sums of their losses

    def run(self, pool: LanePool) -> Iterator[JobResults]:
        """Works off the schedule; yields finished clients, about as many at a time as there are lanes."""
        idle = np.flatnonzero(self.schedule.steps == 0)
        if len(idle):
            nothing = torch.full((len(idle),), torch.nan, device=self.engine.device)
            self.finished.append((idle, self._start_params(idle), nothing))
        if self.schedule.length:
            count = max(int(self.widths[0]), self.engine.fewest_lanes)
            kind = (len(self._downloads) == 1, tuple(self._job_rows))
            with pool.borrow(kind, count, lambda: Lanes(self.engine, count, self._given(np.arange(1)))) as lanes:
                yield from self._work_off(lanes)
        if self.finished:
            yield self._flush()

    def _work_off(self, lanes: Lanes) -> Iterator[JobResults]:
        schedule = self.schedule
        if lanes.given.shared:
            _copy(lanes.given.broadcast, self._downloads[0], ...)
        starting = clients_at(schedule.start, schedule)
        ending = clients_at(schedule.start + schedule.steps - 1, schedule)
        batches: deque[Batch] = deque()
        waiting = 0
        for step, width in enumerate(self.widths.tolist()):
            if len(starting[step]):
                self._start(lanes, starting[step])
            if not batches:
                batches.extend(self._gather(step))
            batch, often = batches.popleft(), width == (self.engine.usual_width or self.widths[0])
            if self.engine.plan == "apart":
                lanes.step_apart(batch, self.batch_samples[step, :width], self.engine.exact_batches)
            elif self.engine.exact_batches:
                lanes.step_exactly(width, batch, self.batch_samples[step, :width], often)
            else:
                lanes.step(width, batch, often)
            if len(ending[step]):
                waiting += len(ending[step])
                flush = waiting >= schedule.lanes
                self._finish(lanes.changing, ending[step], keep=not flush)
                if flush:
                    yield self._flush()
                    waiting = 0

    def _given(self, clients: IntArray) -> Given:
        """What these clients read while they train."""
        if len(self._downloads) == 1 and not self._states and not self._job_rows:
            return Given({}, self._downloads[0], {})
        rows = torch.from_numpy(clients).to(self.engine.device)
        shared = len(self._downloads) == 1
        downloaded = self._downloads[0]
        if not shared:
            versions = torch.from_numpy(self._version_of[clients]).to(self.engine.device)
            downloaded = map_groups(lambda t: t[versions], self._stacked_downloads)
        jobs = {name: t[rows] for name, t in self._job_rows.items()}
        return Given(map_groups(lambda t: t[rows], self._states), downloaded, jobs, shared)

    def _start_params(self, clients: IntArray) -> Tensors:
        return self.engine.start_params(self._given(clients), len(clients))

    def _start(self, lanes: Lanes, clients: IntArray) -> None:
        """Puts clients into their lanes."""
        clients = clients[np.argsort(self.schedule.lane[clients])]
        place = self._place(clients)
        given = self._given(clients)
        for name, p in self.engine.start_params(given, len(clients)).items():
            lanes.changing.params[name][place] = p
        for group in lanes.changing.optimizer.values():
            for t in group.values():
                t[place] = 0
        lanes.changing.numbers[place], lanes.changing.loss_sums[place] = 1, 0
        _copy(lanes.given.states, given.states, place)
        _copy({"jobs": lanes.given.jobs}, {"jobs": given.jobs}, place)
        if not given.shared:
            _copy(lanes.given.broadcast, given.broadcast, place)

    def _place(self, clients: IntArray) -> slice | Tensor:
        """The lanes of clients that are sorted by lane."""
        lanes = self.schedule.lane[clients]
        if lanes[-1] - lanes[0] == len(lanes) - 1:
            return slice(int(lanes[0]), int(lanes[-1]) + 1)
        return torch.from_numpy(lanes).to(self.engine.device)

    def _gather(self, first: int) -> list[Batch]:
        """The batches of some steps of the same width, as many as are gathered at once."""
        width = int(self.widths[first])
        row_bytes = sum(values[:1].nbytes for values in self.columns.values())
        most = max(1, _BLOCK_BYTES[self.engine.device.type] // max(1, row_bytes * width * self.rows.shape[2]))
        last = min(first + most, int(np.searchsorted(-self.widths, -width, side="right")))
        rows = self.rows[first:last, :width]
        columns = {
            name: values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:]).unbind(0)
            for name, values in self.columns.items()
        }
        masks, keys = self.mask[first:last, :width].unbind(0), self.keys[first:last, :width].unbind(0)
        steps = range(last - first)
        return [Batch({name: c[i] for name, c in columns.items()}, masks[i], keys[i]) for i in steps]

    def _finish(self, changing: Changing, clients: IntArray, keep: bool) -> None:
        """Takes out the parameters of clients; they must be copied if they are to be kept for longer."""
        clients = clients[np.argsort(self.schedule.lane[clients])]
        place = self._place(clients)
        params = {name: p[place] for name, p in changing.params.items()}
        if keep and isinstance(place, slice):
            params = {name: p.clone() for name, p in params.items()}
        self.finished.append((clients, params, changing.loss_sums[place].clone()))

    def _flush(self) -> JobResults:
        """The results of the clients that have finished since the last time."""
        clients = np.concatenate([clients for clients, _, _ in self.finished])
        names = list(self.finished[0][1])
        params = {name: concatenate([params[name] for _, params, _ in self.finished]) for name in names}
        loss_sums = concatenate([sums.double() for _, _, sums in self.finished])
        self.finished = []
        self.engine.meanwhile()  # all that a GPU has to do for them is under way
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.schedule.steps[clients], self.processed[clients], start_losses)
        given = self._given(clients)
        update, kept = self.engine.updates(params, given, work)
        losses = loss_sums.cpu().numpy() / np.maximum(work.processed_samples, 1)
        jobs = self.jobs.take(clients)
        validated = self.engine.validated(params, given, jobs.clients)
        return JobResults(jobs, _apart(update, params), _apart(kept, params), work, losses, validated)


def place_work(engine: LaneEngine, work: PlannedWork, lanes: int, widths_per_octave: int | None = None) -> PlacedWork:
    """Puts planned work into so many lanes."""
    schedule = make_schedule(work.steps, lanes)
    widths = _widths(schedule, widths_per_octave or engine.widths_per_octave, engine.usual_width or 1)
    columns, first_row = engine.training_samples.rows(work.jobs.holders)
    client, number = place_steps(schedule, int(widths[0]) if schedule.length else 0)
    step = work.batches.first[client] + number
    mask = work.batches.mask[step] & (client >= 0)[..., None]
    rows = np.where(mask, work.batches.rows[step] + first_row[client][..., None], 0)
    keys = number
    if engine.draws:
        keys = dropout_keys(engine.seed, work.jobs.rounds[client], work.jobs.clients[client], number + 1)
    # Not blocking: what is not pinned is copied at once, and nobody waits for the GPU.
    on_device = (torch.from_numpy(t).to(engine.device, non_blocking=True) for t in (rows, mask, keys))
    return PlacedWork(schedule, widths, columns, mask.sum(-1), *on_device)


def concatenate(tensors: list[Tensor]) -> Tensor:
    """All rows; a single tensor stays where it is."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _apart(groups: Groups, params: Tensors) -> Groups:
    """The groups in memory of their own, because the parameters are those of lanes that are used again."""
    shared = {p.untyped_storage().data_ptr() for p in params.values()}
    return map_groups(lambda t: t.clone() if t.untyped_storage().data_ptr() in shared else t, groups)


def _widths(schedule: Schedule, per_octave: int, least: int) -> IntArray:
    """How many lanes take each step: those at work, and some more so that there are few different numbers."""
    active = schedule.active_lanes()
    widths = np.empty_like(active)
    width = max(least, rounded_width(schedule.lanes, per_octave))
    for step, at_work in enumerate(active.tolist()):
        while width > 1 and -(-width // _NARROWING) >= at_work:
            width = -(-width // _NARROWING)
        widths[step] = width
    return widths


def rounded_width(width: int, per_octave: int) -> int:
    """Rounded up to one of a few widths between a power of two and the next."""
    unit = max(1, 2 ** ((width - 1).bit_length() - 1) // per_octave) if width > 1 else 1
    return -(-width // unit) * unit


def clients_at(steps: IntArray, schedule: Schedule) -> list[IntArray]:
    """For every step of the schedule, the clients whose entry it is."""
    working = np.flatnonzero(schedule.steps)
    ordered = working[np.argsort(steps[working], kind="stable")]
    bounds = np.searchsorted(steps[ordered], np.arange(1, schedule.length))
    return np.split(ordered, bounds) if schedule.length else []


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


def _copy(into: Groups, groups: Groups, place: Any) -> None:
    """Writes rows to their places."""
    for group, tensors in into.items():
        for name, t in tensors.items():
            t[place] = groups[group][name]
