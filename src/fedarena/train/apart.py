"""Clients who train in computations of their own, which a GPU does beside each other.

Lanes do not wait for each other here: whatever a lane does, from a client's start to taking out its parameters, is put
on the stream of the lane. Parameters of finished clients wait in one of two boxes; while one is filled, the other is
worked off, so that nobody waits for the GPU to be done with clients it has just begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm
from fedarena.train.engine import IntArray, JobResults
from fedarena.train.lane_pool import LaneEngine, Lanes
from fedarena.train.lanes import LaneTraining, copy_rows
from fedarena.train.program import BoundStep, Changing, Given, StepPrograms
from fedarena.train.schedule import Schedule, order_of_starts
from fedarena.train.streams import LaneStream, Milestone, beside_each_other
from fedarena.train.tensors import map_groups

# A box has room for so many clients, if they do not take too much memory.
_CLIENTS_PER_LANE = 4
_MOST_BOX_BYTES = 1 << 31


class Lane:
    """One lane: its tensors, its stream if it is on a GPU, and its programs."""

    def __init__(self, programs: StepPrograms, changing: Changing, given: Given):
        self.changing, self.given = changing, given
        self.stream = LaneStream() if changing.numbers.is_cuda else None
        self._programs = programs
        self._steps: dict[int, BoundStep] = {}  # by the size of the batch
        self.params = [p[0] for p in changing.params.values()]  # in the same memory
        self._optimizer = [t for group in changing.optimizer.values() for t in group.values()]

    def current(self) -> AbstractContextManager[None]:
        """Within this context, the lane's stream is the one that computes."""
        return self.stream or nullcontext()

    def take_in(self, start: list[Tensor], given: Given) -> None:
        """Lets a client begin with these parameters."""
        torch._foreach_copy_(self.params, start)
        if self._optimizer:
            torch._foreach_zero_(self._optimizer)
        self.changing.numbers.fill_(1)
        self.changing.loss_sums.zero_()
        copy_rows(self.given.states, given.states, ...)
        copy_rows({"jobs": self.given.jobs}, {"jobs": given.jobs}, ...)
        if not given.shared:
            copy_rows(self.given.broadcast, given.broadcast, ...)

    def step(self, columns: Tensors, rows: Tensor, mask: Tensor, key: Tensor) -> None:
        """One gradient step on the samples in these rows of the columns."""
        size = len(rows)
        if size not in self._steps:
            examples = {name: values.new_zeros(1, size, *values.shape[1:]) for name, values in columns.items()}
            self._steps[size] = self._programs.bind_alone(self.changing, self.given, examples, self.stream)
        bound = self._steps[size]
        for name, values in columns.items():
            torch.index_select(values, 0, rows, out=bound.batch.columns[name][0])
        bound.batch.mask.copy_(mask)
        bound.batch.keys.copy_(key)
        bound.run()


class Box:
    """Room for the parameters of finished clients until they are used."""

    def __init__(self, like: Changing, slots: int):
        device = like.numbers.device
        # Rows lie in memory as those of lanes do.
        self.params = {name: torch.empty_like(p[:1].expand(slots, *p.shape[1:])) for name, p in like.params.items()}
        self.loss_sums = torch.empty(slots, dtype=like.loss_sums.dtype, device=device)
        self.clients: list[int] = []
        self._slots = [[p[slot] for p in self.params.values()] for slot in range(slots)]  # in the same memory
        self._filled, self._emptied = Milestone(device), Milestone(device)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits in."""
        return len(self.clients) == len(self._slots)

    def put(self, client: int, lane: Lane) -> None:
        """Adds what is in a lane, on its stream."""
        slot = len(self.clients)
        self._emptied.wait()
        torch._foreach_copy_(self._slots[slot], lane.params)
        self.loss_sums[slot : slot + 1].copy_(lane.changing.loss_sums)
        self._filled.reach()
        self.clients.append(client)

    def content(self) -> tuple[IntArray, Tensors, Tensor]:
        """Clients, their parameters and sums of their losses, as soon as they are there."""
        self._filled.wait()
        count = len(self.clients)
        return np.array(self.clients), {name: p[:count] for name, p in self.params.items()}, self.loss_sums[:count]

    def empty(self) -> None:
        """Nobody needs the content any more when the current stream has done what it was given."""
        self.clients = []
        self._filled.forget()
        self._emptied.forget()
        self._emptied.reach()


class LanesApart:
    """A number of such lanes, and their boxes."""

    def __init__(self, engine: LaneEngine, count: int, like: Given):
        self.count = count
        room = Lanes(engine, count, like)
        self.given = room.given
        self.lanes = [Lane(engine.programs, room.changing.only(lane), room.given.only(lane)) for lane in range(count)]
        client_bytes = sum(p[0].nbytes for p in room.changing.params.values())
        slots = max(count, min(_CLIENTS_PER_LANE * count, _MOST_BOX_BYTES // client_bytes))
        self.boxes = [Box(room.changing, slots) for _ in range(2)]


class ApartTraining(LaneTraining):
    """The local training of some clients, each in a computation of its own."""

    def _samples(self, schedule: Schedule) -> tuple[Tensors, IntArray]:
        """Those of clients who begin early come first."""
        order = order_of_starts(schedule)
        arrival = self.engine.training_samples.arriving(self.jobs.holders[order])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._arrival, self._place_in_arrival = arrival, place
        return arrival.columns, arrival.begins[place]

    def _make_lanes(self, width: int, stream: LaneStream | None) -> LanesApart:
        return LanesApart(self.engine, width, self._given(np.arange(1)))

    def _work_off(self, lanes: LanesApart) -> Iterator[JobResults | None]:  # type: ignore[override]
        for box in lanes.boxes:
            box.empty()  # what is left of somebody who did not go on to the end
        self._start_of_all: list[Tensor] | None = None
        if lanes.given.shared:
            copy_rows(lanes.given.broadcast, self._downloads[0], ...)
            if type(self.engine.algorithm).local_start is Algorithm.local_start:
                self._start_of_all = self._start_of(lanes.lanes[0], lanes.given)
        filling, full = lanes.boxes
        with beside_each_other([lane.stream for lane in lanes.lanes]):
            for step in range(self.schedule.length):
                clients = self.client_in_lane[self.begins[step] : self.begins[step + 1]]
                for number in np.flatnonzero(clients >= 0).tolist():
                    lane, client = lanes.lanes[number], int(clients[number])
                    with lane.current():
                        self._step(lane, int(self.begins[step]) + number, step, client)
                        if step == self.schedule.start[client] + self.schedule.steps[client] - 1:
                            filling.put(client, lane)
                    if filling.is_full:
                        filling, full = full, filling
                        if filling.clients:
                            yield self._emptied(filling)
                if step == 0:
                    self.engine.meanwhile()  # early, since samples of the next round may have to be read
            for box in (full, filling):
                if box.clients:
                    yield self._emptied(box)

    def _step(self, lane: Lane, row: int, step: int, client: int) -> None:
        """The next step of a client; batches are filled up to a power of two, or not at all if it must be exact."""
        if step == self.schedule.start[client]:
            self._arrival.wait_for(int(self._place_in_arrival[client]))
            given = self._given_to(client, lane)
            lane.take_in(self._start_of_all or self._start_of(lane, given), given)
        count = int(self.batch_samples[row])
        size = count if self.engine.exact_batches else min(1 << (count - 1).bit_length(), self.mask.shape[1])
        place = slice(row, row + 1)
        lane.step(self.columns, self.rows[row, :size], self.mask[place, :size], self.keys[place])

    def _start_of(self, lane: Lane, given: Given) -> list[Tensor]:
        """What a client starts from, in the order of a lane's parameters."""
        start = self.engine.start_params(given, 1)
        return [start[name][0] for name in lane.changing.params]

    def _given_to(self, client: int, lane: Lane) -> Given:
        """What a client reads while it trains, as views, so that its lane waits for nothing."""
        own = slice(client, client + 1)
        shared = len(self._downloads) == 1
        version = int(self._version_of[client])
        downloaded = (
            lane.given.broadcast  # the same for all, in the layout of the lane
            if shared
            else map_groups(lambda t: t[version : version + 1], self._stacked_downloads)
        )
        jobs = {name: t[own] for name, t in self._job_rows.items()}
        return Given(map_groups(lambda t: t[own], self._states), downloaded, jobs, shared)

    def _emptied(self, box: Box) -> JobResults:
        """The results of the clients in a box."""
        self.finished.append(box.content())
        results = self.results()
        box.empty()
        return results
