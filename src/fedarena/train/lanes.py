"""The local training of some clients in lanes: the state of all lanes while a schedule is worked off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.clients_at_work import ClientsAtWork
from fedarena.train.engine import JobResults
from fedarena.train.execution import SMALL_OPERATIONS
from fedarena.train.jobs import IntArray
from fedarena.train.lane_pool import LaneEngine, LanePool, Lanes
from fedarena.train.placing import PlacedWork, PlannedWork, SamplesFor, place_work, usual_widths
from fedarena.train.program import Batch, Changing
from fedarena.train.resident import rows_of
from fedarena.train.schedule import Schedule
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import Groups, sent_to

# Where so many steps of a width are taken, they are compiled though it is not the widest; and a GPU, which has done
# small ones before it is told of the next, takes several at once.
_MANY_STEPS = 64
_AT_ONCE = (64, 16, 4, 1)
_LARGE_STEP_BYTES = 1 << 22  # of all lanes' samples
_AT_ONCE_BYTES = 1 << 26  # the same, of steps that are taken at once
# Batches of several steps are gathered at once: on a CPU as long as they stay in a cache.
_BLOCK_BYTES = {"cpu": 1 << 20, "cuda": 1 << 28}


class LaneTraining(ClientsAtWork):
    """The local training of some clients, which are numbered by their position in the planned work."""

    def __init__(
        self,
        engine: LaneEngine,
        work: PlannedWork,
        broadcasts: Mapping[int, Groups],
        states: Mapping[int, Groups],
    ):
        super().__init__(engine, work, broadcasts, states)
        placed = work.placed or self.place(engine, work, self._samples)
        self.schedule, self.widths, self.columns = placed.schedule, placed.widths, placed.columns
        self.begins, self.client_in_lane = placed.begins, placed.client_in_lane
        self.batch_samples = placed.batch_samples
        self.rows, self.mask, self.keys = placed.rows, placed.mask, placed.keys
        self._steps_of = Counter(self.widths.tolist())
        self.taken = 0  # steps

    @classmethod
    def place(cls, engine: LaneEngine, work: PlannedWork, samples_for: SamplesFor | None = None) -> PlacedWork:
        """Puts such work into lanes, as many as the engine has."""
        return place_work(engine, work, engine.lanes, usual_widths(engine), samples_for)

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
            count = int(self.widths[0])
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
        starting, ending = clients_at(schedule.start, schedule), self._last_steps(lanes)
        changes = {int(step) for step in np.flatnonzero(np.diff(self.widths)) + 1}
        changes |= {*starting, *(last + 1 for last in ending), schedule.length} - {0}
        first = until = waiting = self.taken = 0
        for change in sorted(changes):  # until then, everybody goes on
            if self.taken in starting:
                self._start(lanes, starting[self.taken])
            while self.taken < change:
                step = self.taken
                if step == until:
                    batches = self._gather(step)
                    first, until = step, step + len(batches.mask)
                taken = self._taken_at_once(step, min(change, until) - step)
                if batches.packed is not None or self._takes_any_number:
                    some = slice(step - first, step - first + taken)
                    width, frequent = int(self.widths[step]), self._is_frequent(step)
                    with SMALL_OPERATIONS.given_up():
                        lanes.steps(width, batches, some, frequent)
                else:
                    batch = batches.at(step - first)
                    with SMALL_OPERATIONS.given_up():
                        self._take_step(lanes, step, batch)
                self.taken += taken
                yield None
            ended = ending.get(self.taken - 1)
            if ended is not None:
                waiting += len(ended)
                flush = waiting >= schedule.lanes
                self._finish(lanes.changing, ended, keep=not flush)
                if flush:
                    yield self._flush()
                    waiting = 0

    def _last_steps(self, lanes: Lanes) -> dict[int, IntArray]:
        """The clients whose last step a step is, where something is to be done for them."""
        return clients_at(self.schedule.start + self.schedule.steps - 1, self.schedule)

    def _take_step(self, lanes: Lanes, step: int, batch: Batch) -> None:
        width, samples = int(self.widths[step]), self.batch_samples[self.begins[step] : self.begins[step + 1]]
        if self.engine.exact_batches:
            lanes.step_exactly(width, batch, samples, self._is_frequent(step))
        else:
            lanes.step(width, batch, self._is_frequent(step))

    def _taken_at_once(self, step: int, most: int) -> int:
        """How many steps are taken at once, if nothing comes between so many."""
        if self._takes_any_number:
            return most
        if self.engine.device.type != "cuda" or self.engine.exact_batches or not self._is_often_taken(step):
            return 1
        step_bytes = self._sample_bytes(int(self.widths[step]))
        if step_bytes > _LARGE_STEP_BYTES:
            return 1
        return next(number for number in _AT_ONCE if number <= most and number * step_bytes <= _AT_ONCE_BYTES)

    @property
    def _takes_any_number(self) -> bool:
        """Whether programs are not made for a number of steps."""
        return self.engine.device.type == "cpu" and not self.engine.exact_batches

    def _is_often_taken(self, step: int) -> bool:
        """Whether many steps are as wide as this one."""
        return self._steps_of[int(self.widths[step])] >= _MANY_STEPS

    def _is_frequent(self, step: int) -> bool:
        """Whether steps of that many lanes are the widest, or many."""
        return bool(self.widths[step] == self.widths[0]) or self._is_often_taken(step)

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
        return sent_to(self.engine.device, lanes)

    def _gather(self, first: int) -> Batch:
        """The batches of some steps of the same width, as many as are gathered at once."""
        width = int(self.widths[first])
        most = max(1, _BLOCK_BYTES[self.engine.device.type] // max(1, self._sample_bytes(width)))
        last = min(first + most, int(np.searchsorted(-self.widths, -width, side="right")))
        steps, places = last - first, slice(int(self.begins[first]), int(self.begins[last]))
        rows = self.rows[places].view(steps, width, -1)
        columns = {
            name: values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])
            for name, values in self.columns.items()
        }
        batches = Batch(columns, *(t[places].view(steps, width, *t.shape[1:]) for t in (self.mask, self.keys)))
        at_once = not self._takes_any_number and self._taken_at_once(first, steps) > 1
        return batches.with_packed() if at_once else batches

    def _sample_bytes(self, width: int) -> int:
        """What the samples of a step of so many lanes take."""
        return self._bytes_of_a_lane * width

    @cached_property
    def _bytes_of_a_lane(self) -> int:
        return sum(values[:1].nbytes for values in self.columns.values()) * self.rows.shape[1]

    def _flush(self) -> JobResults | None:
        """The results of the clients that have finished since the last time, if they are asked for here."""
        return self.results()

    def _finish(self, changing: Changing, clients: IntArray, keep: bool) -> None:
        """Takes out the parameters of clients; they must be copied if they are to be kept for longer."""
        clients = clients[np.argsort(self.schedule.lane[clients])]
        place = self._place(clients)
        params = {name: p[place] for name, p in changing.params.items()}
        if keep and isinstance(place, slice):
            params = {name: p.clone() for name, p in params.items()}
        self.finished.append((clients, params, changing.loss_sums[place].clone()))


def clients_at(steps: IntArray, schedule: Schedule) -> dict[int, IntArray]:
    """The clients whose entry a step of the schedule is, where there are any."""
    working = np.flatnonzero(schedule.steps)
    of_working = steps[working]
    if len(working) and (of_working == of_working[0]).all():  # as in most rounds of clients who are alike
        return {int(of_working[0]): working}
    ordered = working[np.argsort(of_working, kind="stable")]
    found, begins = np.unique(steps[ordered], return_index=True)
    return dict(zip(found.tolist(), np.split(ordered, begins[1:]), strict=False))


def copy_rows(into: Groups, groups: Groups, place: Any) -> None:
    """Writes rows to their places."""
    for group, tensors in into.items():
        for name, t in tensors.items():
            t[place] = groups[group][name]
