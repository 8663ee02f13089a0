"""Clients with far more to do than others train beside them, so that nobody waits for them alone in the end.

A GPU takes a step of few clients about as fast as one of a single client, and much faster than one of many: those with
very many steps need not wait for all others in each of theirs. So the one with most steps trains alone, the few after
it together, and so on in groups that are several times larger; a GPU computes all of them at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch

from fedarena.models import Tensors
from fedarena.train.clients_at_work import ClientsAtWork
from fedarena.train.engine import JobResults
from fedarena.train.finished_lanes import available
from fedarena.train.jobs import IntArray
from fedarena.train.lane_pool import LOSS_SUMS, LaneEngine, LanePool, Lanes
from fedarena.train.lanes import LaneTraining
from fedarena.train.placing import PlacedWork, PlannedWork, SamplesFor, Widths, place_work
from fedarena.train.program import Changing
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import Groups

_FAR_MORE = 8  # times as many steps as all lanes have if everything is shared out evenly
_LARGER = 4  # times as many clients as in the group before
_MOST_URGENT = 3  # that torch knows; the group with most steps, which takes longest


def divide_by_length(steps: IntArray, lanes: int, largest: int) -> tuple[list[IntArray], IntArray]:
    """Groups of clients with far more steps than so many `lanes` would have if all were shared out evenly; the rest.

    The last group is filled up with those who have most to do of the others; none is larger than the `largest`.
    """
    working = int((steps > 0).sum())
    evenly = -(-int(steps.sum()) // max(1, min(lanes, working)))
    longest_first = np.argsort(-steps, kind="stable")
    is_long = steps[longest_first] > _FAR_MORE * evenly
    groups: list[IntArray] = []
    begin, size = 0, 1
    while begin < len(steps) and is_long[begin] and size <= largest:
        groups.append(longest_first[begin : begin + size])
        begin, size = begin + size, size * _LARGER
    return groups, np.sort(longest_first[begin:])


class LongTraining(LaneTraining):
    """The local training of such a group, in as many lanes."""

    def __init__(
        self, engine: LaneEngine, work: PlannedWork, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]
    ):
        super().__init__(engine, work, broadcasts, states)
        self._done: Tensors = {}  # parameters of lanes whose clients have finished, and sums of their losses
        # A single client is done when all is done, and where some batches are smaller, steps are put right afterwards.
        self._keeps_in_graphs = len(work.steps) > 1 and not engine.exact_batches and available(engine.device)

    @classmethod
    def place(cls, engine: LaneEngine, work: PlannedWork, samples_for: SamplesFor | None = None) -> PlacedWork:
        """Puts such work into lanes, one for everybody, of the widths of the groups before it."""
        size = 1
        while size < len(work.steps):
            size *= _LARGER
        widths = Widths(per_octave=1, least=size, narrowing=_LARGER)
        return place_work(engine, work, len(work.steps), widths, samples_for)

    def _is_often_taken(self, step: int) -> bool:
        return True

    def _make_lanes(self, width: int, stream: LaneStream | None) -> Lanes:
        return Lanes(self.engine, width, self._given(np.arange(1)), stream, self._keeps_in_graphs)

    def _work_off(self, lanes: Lanes) -> Iterator[JobResults | None]:
        if lanes.finished is not None:
            lanes.finished.begin(self.schedule.lane_lengths)
            self._done = {name: t[: self.schedule.lanes] for name, t in lanes.finished.tensors.items()}
        yield from super()._work_off(lanes)

    def _last_steps(self, lanes: Lanes) -> dict[int, IntArray]:
        return super()._last_steps(lanes) if lanes.finished is None else {}

    def _finish(self, changing: Changing, clients: IntArray, keep: bool) -> None:
        """Copies of all go to one place, since they finish one by one."""
        lanes = self.schedule.lane[clients]
        place = slice(int(lanes.min()), int(lanes.max()) + 1)  # who has as many steps is beside them
        now = {**changing.params, LOSS_SUMS: changing.loss_sums}
        if not self._done:
            self._done = {name: torch.empty_like(t[: self.schedule.lanes]) for name, t in now.items()}
        torch._foreach_copy_([t[place] for t in self._done.values()], [t[place] for t in now.values()])

    def course(self, pool: LanePool, stream: LaneStream | None = None) -> Iterator[JobResults | None]:
        """See `LaneTraining`; results of all groups are asked for together, in the end."""
        yield from super().course(pool, stream)
        if self._done:
            loss_sums = self._done.pop(LOSS_SUMS)
            working = np.flatnonzero(self.schedule.steps)
            self.finished.append((working[np.argsort(self.schedule.lane[working])], self._done, loss_sums))
            self._done = {}

    def _flush(self) -> None:
        """Nothing is asked for before."""


class _Group:
    """A group that trains on a stream, which is told of some steps at a time."""

    def __init__(self, training: LongTraining, pool: LanePool, stream: LaneStream | None):
        self.training, self._stream = training, stream
        self._course = training.course(pool, stream)
        if stream is not None:
            stream.stream.wait_stream(torch.cuda.current_stream())

    @property
    def has_more(self) -> bool:
        """Whether there are steps that its stream has not been told of."""
        return self.training.taken < self.training.schedule.length

    def go_on(self) -> None:
        """Tells its stream of the next steps."""
        with self._stream or nullcontext():
            next(self._course)

    def end(self) -> None:
        """What the current stream does from now on comes after all of them."""
        with self._stream or nullcontext():
            for _ in self._course:
                pass
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream.stream)


class _GoingOn(threading.local):
    """A worker's groups with steps that have not been told; others, who train other shards, have theirs."""

    def __init__(self) -> None:
        self.groups: list[_Group] = []


class Beside:
    """Where such groups train: on a GPU each on a stream of its own, of which those with most steps go first."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pools: list[LanePool] = []
        self._streams: list[LaneStream | None] = []
        self._growing = threading.Lock()
        self._going_on = _GoingOn()

    def train(
        self, long: ClientsAtWork, groups: Sequence[LongTraining], usual: Iterator[JobResults | None]
    ) -> Iterator[JobResults]:
        """The results of all, those of the groups' clients, who are all the `long` ones, together.

        A GPU is told in turns what each group has to do next, and what the others have, so that all begin at once.
        """
        with self._growing:
            while len(self._pools) < len(groups):
                urgency = max(0, _MOST_URGENT - len(self._pools))
                self._pools.append(LanePool())
                self._streams.append(LaneStream(urgency) if self._device.type == "cuda" else None)
        at_work = [_Group(*parts) for parts in zip(groups, self._pools, self._streams, strict=False)]
        self._going_on.groups = at_work
        try:
            self._tell_next()
            for results in usual:
                self._tell_next()
                if results is not None:
                    yield results
            self.tell_all()
        finally:
            self._going_on.groups = []
        before = 0
        for group in at_work:
            group.end()
            training = group.training
            long.finished += [(before + clients, params, sums) for clients, params, sums in training.finished]
            before += len(training.steps)
        if groups:
            yield long.results()

    def tell_all(self) -> None:
        """Has groups told of all that they have to do, since whoever tells them is about to do something else."""
        while self._going_on.groups:
            self._tell_next()

    def _tell_next(self) -> None:
        for group in self._going_on.groups:
            group.go_on()
        self._going_on.groups = [group for group in self._going_on.groups if group.has_more]
