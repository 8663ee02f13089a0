"""The local training of some clients whose large dense layers are not written down (see `unwritten`).

Everybody begins at the same time in a lane of their own, so that all have taken equally many steps at any time, and the
factors of a lane are its samples, step after step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Work
from fedarena.train.clients_at_work import concatenate
from fedarena.train.engine import JobResults
from fedarena.train.execution import SMALL_OPERATIONS
from fedarena.train.factor_rooms import FactorRoom
from fedarena.train.jobs import IntArray
from fedarena.train.lane_pool import LaneEngine, LanePool
from fedarena.train.lanes import LaneTraining, clients_at
from fedarena.train.late import late_array
from fedarena.train.optimizers import LocalTraining, optimizer_init
from fedarena.train.placing import PlacedWork, PlannedWork, SamplesFor, place_work, usual_widths
from fedarena.train.product_rows import Overlaps, ProductRows
from fedarena.train.program import Batch, Changing
from fedarena.train.schedule import Schedule
from fedarena.train.tensors import Groups
from fedarena.train.unwritten import DenseLayer, linear_course, placeholder
from fedarena.train.unwritten_programs import UnwrittenPrograms


def begin(changing: Changing, start: Tensors) -> None:
    """Puts everybody at the start of their training."""
    for name, p in changing.params.items():
        p.copy_(start[name].expand_as(p))
    for group in changing.optimizer.values():
        for t in group.values():
            t.zero_()
    changing.numbers.fill_(1)
    changing.loss_sums.zero_()


@lru_cache(maxsize=16)
def _course_of_rows(
    local: LocalTraining, steps: int, lr_scales: tuple[float, ...], rows: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See `linear_course`, for steps that add so many rows each. To be read only."""
    scales, factors = (torch.from_numpy(course).to(dtype) for course in linear_course(local, steps, lr_scales))
    return scales, factors.repeat_interleave(rows, dim=2)


class UnwrittenLanes:
    """The tensors of a number of lanes: parameters that are written down, and room for the factors of the others."""

    def __init__(self, engine: LaneEngine, count: int, start: Tensors, layers: tuple[DenseLayer, ...]):
        self.count = count
        unwritten = {layer.name for layer in layers}
        params = {
            name: torch.zeros(count, *p.shape, dtype=p.dtype, device=p.device)
            for name, p in start.items()
            if name not in unwritten
        }
        self._like = next(iter(start.values()))
        one_each = torch.zeros(count, dtype=self._like.dtype, device=self._like.device)
        self.changing = Changing(params, optimizer_init(engine.local, params), one_each, one_each.clone())
        self._room: dict[Any, Tensor] = {}

    def room_for(self, key: Any, *shape: int) -> Tensor:
        """Memory that is there already, if it is enough."""
        size = int(np.prod(shape))
        if key not in self._room or self._room[key].numel() < size:
            self._room[key] = torch.empty(size, dtype=self._like.dtype, device=self._like.device)
        return self._room[key][:size].view(shape)


class UnwrittenTraining(LaneTraining):
    """The local training of clients, each of whom takes a step at least, in as many lanes."""

    uses_columns = True  # whether layers are told their rows before where these are nothing but samples

    def __init__(
        self,
        engine: LaneEngine,
        work: PlannedWork,
        broadcasts: Mapping[int, Groups],
        layers: tuple[DenseLayer, ...],
        programs: UnwrittenPrograms,
    ):
        super().__init__(engine, work, broadcasts, {})
        self._programs = programs
        self._start_of_all = self._downloads[0]["params"]

        def is_known(layer: DenseLayer) -> bool:  # bytes are divided before they go into a layer
            return self.uses_columns and layer.column is not None and self.columns[layer.column].dtype.is_floating_point

        self._layers = tuple(layer if is_known(layer) else replace(layer, column=None) for layer in layers)
        self._known = {layer.column: self.columns[layer.column] for layer in self._layers if layer.column}
        self.columns = {name: t for name, t in self.columns.items() if name not in self._known}
        # Nobody has a sample in the last places of batches when all clients are small.
        places = min(self.mask.shape[1], 4 ** -(-int(self.batch_samples.max() - 1).bit_length() // 2))
        self.rows, self.mask = self.rows[..., :places].contiguous(), self.mask[..., :places].contiguous()

    @classmethod
    def place(cls, engine: LaneEngine, work: PlannedWork, samples_for: SamplesFor | None = None) -> PlacedWork:
        """Puts such work into lanes, one for everybody."""
        return place_work(engine, work, len(work.steps), usual_widths(engine), samples_for)

    def _samples(self, schedule: Schedule) -> tuple[Tensors, IntArray]:
        with SMALL_OPERATIONS.given_up():  # they may have to be read
            return super()._samples(schedule)

    def run_in_products(self, pool: LanePool) -> Iterator[JobResults | None]:
        """The results of all clients; instead of large dense layers' updates there are `ProductRows`."""
        width = int(self.widths[0])
        kind = (tuple(layer.name for layer in self._layers), tuple(self._job_rows))
        with pool.borrow(
            kind, width, lambda: UnwrittenLanes(self.engine, width, self._start_of_all, self._layers)
        ) as lanes:
            with SMALL_OPERATIONS.taken():
                results = self._results(self._train(lanes))
            yield results

    def _train(self, lanes: UnwrittenLanes) -> dict[str, ProductRows]:
        begun = self._begin(lanes)
        rooms = [self._room(lanes, layer) for layer in self._layers]
        self._take_steps(begun, rooms)
        return {room.layer.name: self._product_rows(room, begun) for room in rooms}

    def _begin(self, lanes: UnwrittenLanes) -> _Begun:
        """Puts everybody at the start."""
        width = int(self.widths[0])
        begin(lanes.changing.first(width), self._start_of_all)
        by_lane = np.argsort(self.schedule.lane, kind="stable")
        jobs = self._given(by_lane[np.minimum(np.arange(width), len(by_lane) - 1)]).jobs
        return _Begun(lanes, jobs, *self._course(by_lane, width))

    def _take_steps(self, begun: _Begun, rooms: list[FactorRoom]) -> None:
        ending = clients_at(self.schedule.steps - 1, self.schedule)
        step = first = until = 0
        step_of: _Bound | None = None
        for last in sorted(ending):  # until then, nobody is done
            while step <= last:
                if step == until:
                    batches = self._gather(step)
                    first, until = step, step + len(batches.mask)
                some, width = batches.at(slice(step - first, last + 1 - first)), int(self.widths[step])
                if step_of is None or step_of.width != width:
                    step_of = self._bound(begun, rooms, width, some.at(0))
                with SMALL_OPERATIONS.given_up():
                    step_of.run(step, some)
                step += len(some.mask)
            # The last ones stay in their lanes until it is known how far they came.
            self._finish(begun.lanes.changing, ending[last], keep=step < len(self.widths))

    def _bound(self, begun: _Begun, rooms: list[FactorRoom], width: int, batch: Batch) -> _Bound:
        """The program of steps of so many lanes."""
        of_lanes = {name: rows[:width] for name, rows in begun.jobs.items()}
        changing, scales = begun.lanes.changing.first(width), begun.scales[:, :width]
        factors = [begun.factors[room.layer.positions] for room in rooms]
        examples = [room.in_step(0, width, of_rows[0]) for room, of_rows in zip(rooms, factors, strict=True)]
        program = self._programs.program(
            changing, self._layers, examples, scales[0], self._start_of_all, of_lanes, batch
        )
        tensors = [scales, *changing.tensors(), *self._start_of_all.values(), *of_lanes.values()]
        of_layers = [t for room, of_rows in zip(rooms, factors, strict=True) for t in room.for_script(width, of_rows)]
        return _Bound(width, program, tensors, of_layers)

    def _room(self, lanes: UnwrittenLanes, layer: DenseLayer) -> FactorRoom:
        """Room for a layer's factors, with all that is known of them before anybody trains."""
        width, of_step = int(self.widths[0]), self.mask.shape[1] * layer.positions
        samples = self.schedule.length * of_step

        def room_for(what: str, size: int) -> Tensor:
            return lanes.room_for((layer.name, what), width, samples, size)

        sides = room_for("left", layer.outputs), room_for("right", layer.inputs)
        overlaps = room_for("overlaps", samples)
        if layer.column is None:
            return FactorRoom(layer, of_step, *sides, overlaps.zero_())
        room = FactorRoom(layer, of_step, *sides, overlaps, room_for("of_start", layer.outputs))
        rows = torch.zeros(width, self.schedule.length, self.mask.shape[1], dtype=torch.int64)
        rows[self._place_in_lanes()] = self.rows
        start = self._start_of_all[layer.name]
        with SMALL_OPERATIONS.given_up():
            room.fill(self.schedule.lanes, self._known[layer.column], rows, self._places, start)
        return room

    @cached_property
    def _places(self) -> Tensor | None:
        """Where in the room of all lanes there are samples; None: wherever there is a client."""
        if self._has_full_batches:
            return None
        return self._counted().flatten().nonzero().flatten()

    @property
    def _has_full_batches(self) -> bool:
        """Whether all clients have samples in all places of all steps."""
        return bool((self.processed == self.schedule.length * self.mask.shape[1]).all())

    def _counted(self) -> Tensor:
        """Which places of all lanes and steps have a sample that counts."""
        counted = torch.zeros(int(self.widths[0]), len(self.widths), self.mask.shape[1], dtype=torch.bool)
        counted[self._place_in_lanes()] = self.mask
        return counted

    def _place_in_lanes(self) -> tuple[IntArray, IntArray]:
        """The lane and the step of every row of batches."""
        step = np.repeat(np.arange(len(self.widths)), self.widths)
        return np.arange(len(step)) - self.begins[step], step

    def _gather(self, first: int) -> Batch:
        """The batches of some steps, with placeholders for samples that are known to their layers."""
        batches = super()._gather(first)
        form = batches.mask.shape
        columns = {name: placeholder(t[0].expand(*form, *t.shape[1:])) for name, t in self._known.items()}
        return replace(batches, columns={**columns, **batches.columns})

    def _course(self, by_lane: IntArray, width: int) -> tuple[Tensor, dict[int, Tensor]]:
        """The scales of lanes before every step, and the factors of all samples, by how many rows each of them has."""
        dtype = next(iter(self._start_of_all.values())).dtype
        lr_scales = None if self.jobs.lr_scales is None else tuple(self.jobs.lr_scales[by_lane].tolist())
        # Where clients have learning rates of their own, they have others in the next round.
        course = _course_of_rows if lr_scales is None else _course_of_rows.__wrapped__

        def of_lanes(t: Tensor) -> Tensor:
            return t.expand(-1, width, *t.shape[2:]) if lr_scales is None else t[:, lanes]

        lanes = torch.arange(width).clamp(max=len(by_lane) - 1)
        places, length, factors = self.mask.shape[1], self.schedule.length, {}
        for positions in {layer.positions for layer in self._layers}:
            scales, of_rows = course(self.engine.local, length, lr_scales or (1.0,), places * positions, dtype)
            factors[positions] = of_lanes(of_rows)
        return of_lanes(scales), factors

    def _product_rows(self, room: FactorRoom, begun: _Begun) -> ProductRows:
        """What clients' training came to in a layer, in the order of lanes, without the places that were empty."""
        layer, steps = room.layer, self.schedule.lane_lengths
        lanes = len(steps)
        left, right = (side[:lanes].flatten(0, 1) for side in (room.left, room.right))
        last = torch.from_numpy(steps)
        of_rows = begun.factors[layer.positions][last, torch.arange(lanes)].flatten()
        shift = begun.scales[last, torch.arange(lanes)] - 1 if self.engine.local.weight_decay else None
        start, number = self._start_of_all[layer.name], np.full(lanes, room.left.shape[1])
        if self._has_full_batches:
            known = Overlaps(room.overlaps[:lanes], room.samples)
            return ProductRows(left, right, of_rows, number, shift, start, known)
        counts = self._counted()[:lanes]
        if layer.positions > 1:  # whose rows need not be sample after sample
            counts = counts.any(2, keepdim=True).expand(counts.shape)
        valid = counts.reshape(lanes, -1).repeat_interleave(layer.positions, dim=1)
        rows = valid.flatten().nonzero().flatten()
        with SMALL_OPERATIONS.given_up():
            left, right = left[rows], right[rows]
        return ProductRows(left, right, of_rows[rows], valid.sum(1).numpy(), shift, start)

    def _results(self, products: dict[str, ProductRows]) -> JobResults:
        # Who finishes last is in the first lanes.
        finished = self.finished[::-1]
        clients = np.concatenate([clients for clients, _, _ in finished])
        loss_sums = concatenate([sums.double() for _, _, sums in finished])
        self.engine.meanwhile()
        update: dict[str, Any] = {}
        for name, start in self._start_of_all.items():
            if name in products:
                update[name] = products[name]
            else:
                update[name] = concatenate([params[name] for _, params, _ in finished]) - start
        self.finished = []
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.schedule.steps[clients], self.processed[clients], start_losses)
        losses = late_array(loss_sums, lambda sums: sums / np.maximum(work.processed_samples, 1))
        return JobResults(self.jobs.take(clients), {"params": update}, {}, work, losses)


@dataclass(frozen=True)
class _Begun:
    """Clients that have begun: their lanes, what is known of the jobs in them, and their course."""

    lanes: UnwrittenLanes
    jobs: Tensors
    scales: Tensor  # [steps, lanes] of what was downloaded, before every step
    factors: dict[int, Tensor]  # [steps, lanes, rows] of samples, by how many rows each of them has


@dataclass(frozen=True)
class _Bound:
    """A program of steps with tensors that are the same in all of them."""

    width: int
    program: Callable[..., None]
    tensors: list[Tensor]
    of_layers: list[Tensor | int]

    def run(self, first: int, batches: Batch) -> None:
        """Takes as many steps as there are batches, which changes lanes and writes what is new in layers."""
        self.program(len(batches.mask), first, *self.tensors, *batches.tensors(), *self.of_layers)
