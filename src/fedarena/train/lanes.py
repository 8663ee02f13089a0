"""The local training of some clients in lanes: the state of all lanes while a schedule is worked off."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Work
from fedarena.train.batches import dropout_keys
from fedarena.train.engine import JobResults
from fedarena.train.jobs import IntArray, JobArrays
from fedarena.train.lane_pool import LaneEngine, LanePool, Lanes
from fedarena.train.late import late_array
from fedarena.train.program import Batch, Changing, Given
from fedarena.train.resident import rows_of
from fedarena.train.schedule import Batches, Schedule, make_schedule, place_steps
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import Groups, map_groups, of_algorithm, stack_groups

# When fewer lanes are at work, the others are dropped a few at a time: every width needs a program of its own.
_NARROWING = 2
# Where so many steps of a width are taken, they are compiled though it is not the widest; and a GPU, which has done
# small ones before it is told of the next, takes several at once.
_MANY_STEPS = 64
_AT_ONCE = 16
# Batches of several steps are gathered at once: on a CPU as long as they stay in a cache.
_BLOCK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 28}


@dataclass(frozen=True)
class PlacedWork:
    """Who is in which lane when, and the batches of all steps and lanes on the device.

    Tensors and arrays of batches have a row for each lane of the first step, then of the second, and so on.
    """

    schedule: Schedule
    widths: IntArray
    columns: Tensors  # in which the samples are
    begins: IntArray  # where the rows of every step begin, and where the last ones end
    client_in_lane: IntArray  # nobody: -1
    batch_samples: IntArray
    rows: Tensor  # [rows, batch] samples
    mask: Tensor  # the same
    keys: Tensor


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
        placed = placed or place_work(engine, work, lanes or engine.lanes, widths_per_octave, self._samples)
        self.schedule, self.widths, self.columns = placed.schedule, placed.widths, placed.columns
        self.begins, self.client_in_lane = placed.begins, placed.client_in_lane
        self.batch_samples = placed.batch_samples
        self.rows, self.mask, self.keys = placed.rows, placed.mask, placed.keys
        self._steps_of = Counter(self.widths.tolist())
        versions, self._version_of = np.unique(self.jobs.versions, return_inverse=True)
        self._downloads = [broadcasts[version] for version in versions.tolist()]
        self._stacked_downloads = stack_groups(self._downloads) if len(versions) > 1 else {}
        self._states = _stack_states(engine, self._downloads, self._version_of, states, self.jobs.clients)
        self._job_rows: Tensors = {}
        jobs_differ = self.jobs.lr_scales is not None or self.jobs.hyperparameters is not None
        if engine.asks_about_jobs or jobs_differ:
            self._job_rows = self.jobs.tensors(next(iter(self._downloads[0]["params"].values())), engine.seed)
        self.taken = 0  # steps
        self.finished: list[tuple[IntArray, Tensors, Tensor]] = []  # clients, their parameters, sums of their losses

    def _samples(self, schedule: Schedule) -> tuple[Tensors, IntArray]:
        """Columns with the clients' samples, and where each client's begin."""
        return rows_of(self.engine.training_samples, self.jobs.holders)

    def run(self, pool: LanePool) -> Iterator[JobResults]:
        """Works off the schedule; yields finished clients, about as many at a time as there are lanes."""
        return (results for results in self.course(pool) if results is not None)

    def course(self, pool: LanePool, stream: LaneStream | None = None) -> Iterator[JobResults | None]:
        """The same, perhaps on a stream of its own, and None whenever steps are under way."""
        idle = np.flatnonzero(self.schedule.steps == 0)
        if len(idle):
            nothing = torch.full((len(idle),), torch.nan, device=self.engine.device)
            self.finished.append((idle, self._start_params(idle), nothing))
        if self.schedule.length:
            count = max(int(self.widths[0]), self.engine.fewest_lanes)
            kind = (len(self._downloads) == 1, tuple(self._job_rows))
            with pool.borrow(kind, count, lambda: self._make_lanes(count, stream)) as lanes:
                yield from self._work_off(lanes)
        if self.finished:
            yield self._flush()

    def _make_lanes(self, width: int, stream: LaneStream | None) -> Any:
        return Lanes(self.engine, width, self._given(np.arange(1)), stream)

    def _work_off(self, lanes: Lanes) -> Iterator[JobResults | None]:
        schedule = self.schedule
        if lanes.given.shared:
            copy_rows(lanes.given.broadcast, self._downloads[0], ...)
        starting = clients_at(schedule.start, schedule)
        ending = clients_at(schedule.start + schedule.steps - 1, schedule)
        changes = {int(step) for step in np.flatnonzero(np.diff(self.widths)) + 1} | {schedule.length}
        changes |= {step for step in range(1, schedule.length) if len(starting[step]) or len(ending[step - 1])}
        batches: deque[Batch] = deque()
        waiting = self.taken = 0
        for change in sorted(changes):  # until then, everybody goes on
            if len(starting[self.taken]):
                self._start(lanes, starting[self.taken])
            while self.taken < change:
                step, taken = self.taken, 1
                if not batches:
                    first, (stacked, gathered) = step, self._gather(step)
                    batches.extend(gathered)
                if self._takes_several(step) and min(change - step, len(batches)) >= _AT_ONCE:
                    taken = _AT_ONCE
                    some = stacked.at(slice(step - first, step - first + taken))
                    lanes.steps(int(self.widths[step]), batches[0], some, frequent=True)
                else:
                    self._take_step(lanes, step, batches[0])
                for _ in range(taken):
                    batches.popleft()
                self.taken += taken
                yield None
            ended = ending[self.taken - 1]
            if len(ended):
                waiting += len(ended)
                flush = waiting >= schedule.lanes
                self._finish(lanes.changing, ended, keep=not flush)
                if flush:
                    yield self._flush()
                    waiting = 0

    def _take_step(self, lanes: Lanes, step: int, batch: Batch) -> None:
        width, samples = int(self.widths[step]), self.batch_samples[self.begins[step] : self.begins[step + 1]]
        if self.engine.exact_batches:
            lanes.step_exactly(width, batch, samples, self._is_frequent(step))
        else:
            lanes.step(width, batch, self._is_frequent(step))

    def _takes_several(self, step: int) -> bool:
        """Whether a GPU is told to take several steps at once, if nothing comes between them."""
        exact = self.engine.exact_batches
        return self.engine.device.type == "cuda" and not exact and self._steps_of[int(self.widths[step])] >= _MANY_STEPS

    def _is_frequent(self, step: int) -> bool:
        """Whether steps of that many lanes are the widest, those of most cohorts, or many."""
        width = int(self.widths[step])
        return width == (self.engine.usual_width or self.widths[0]) or self._steps_of[width] >= _MANY_STEPS

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
        copy_rows(lanes.given.states, given.states, place)
        copy_rows({"jobs": lanes.given.jobs}, {"jobs": given.jobs}, place)
        if not given.shared:
            copy_rows(lanes.given.broadcast, given.broadcast, place)

    def _place(self, clients: IntArray) -> slice | Tensor:
        """The lanes of clients that are sorted by lane."""
        lanes = self.schedule.lane[clients]
        if lanes[-1] - lanes[0] == len(lanes) - 1:
            return slice(int(lanes[0]), int(lanes[-1]) + 1)
        return torch.from_numpy(lanes).to(self.engine.device)

    def _gather(self, first: int) -> tuple[Batch, list[Batch]]:
        """The batches of some steps of the same width, as many as are gathered at once: as one, and one by one."""
        width = int(self.widths[first])
        row_bytes = sum(values[:1].nbytes for values in self.columns.values())
        most = max(1, _BLOCK_BYTES[self.engine.device.type] // max(1, row_bytes * width * self.rows.shape[1]))
        last = min(first + most, int(np.searchsorted(-self.widths, -width, side="right")))
        steps, places = last - first, slice(int(self.begins[first]), int(self.begins[last]))
        rows = self.rows[places].view(steps, width, -1)
        columns = {
            name: values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])
            for name, values in self.columns.items()
        }
        stacked = Batch(columns, *(t[places].view(steps, width, *t.shape[1:]) for t in (self.mask, self.keys)))
        *each, masks, keys = (t.unbind(0) for t in stacked.tensors())
        rows_of = [dict(zip(columns, of_step, strict=True)) for of_step in zip(*each, strict=True)]
        return stacked, [Batch(*of_step) for of_step in zip(rows_of, masks, keys, strict=True)]

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
        losses = late_array(loss_sums, lambda sums: sums / np.maximum(work.processed_samples, 1))
        jobs = self.jobs.take(clients)
        validated = self.engine.validated(params, given, jobs.clients)
        return JobResults(jobs, _apart(update, params), _apart(kept, params), work, losses, validated)


def place_work(
    engine: LaneEngine,
    work: PlannedWork,
    lanes: int,
    widths_per_octave: int | None = None,
    samples_for: Callable[[Schedule], tuple[Tensors, IntArray]] | None = None,
) -> PlacedWork:
    """Puts planned work into so many lanes.

    `samples_for` gives columns with the samples of clients who are scheduled so, and where each client's begin.
    """
    schedule = make_schedule(work.steps, lanes)
    widths = _widths(schedule, widths_per_octave or engine.widths_per_octave, engine.usual_width or 1)
    columns, first_row = (
        rows_of(engine.training_samples, work.jobs.holders) if samples_for is None else samples_for(schedule)
    )
    client, number, begins = place_steps(schedule, widths)
    step = work.batches.first[client] + number
    mask = work.batches.mask[step] & (client >= 0)[..., None]
    rows = np.where(mask, work.batches.rows[step] + first_row[client][..., None], 0)
    keys = number
    if engine.draws:
        keys = dropout_keys(engine.seed, work.jobs.rounds[client], work.jobs.clients[client], number + 1)
    # Not blocking: what is not pinned is copied at once, and nobody waits for the GPU.
    on_device = (torch.from_numpy(t).to(engine.device, non_blocking=True) for t in (rows, mask, keys))
    return PlacedWork(schedule, widths, columns, begins, client, mask.sum(-1), *on_device)


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


def copy_rows(into: Groups, groups: Groups, place: Any) -> None:
    """Writes rows to their places."""
    for group, tensors in into.items():
        for name, t in tensors.items():
            t[place] = groups[group][name]
