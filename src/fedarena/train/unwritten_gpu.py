"""Training without large dense layers being written down, on a GPU (see `unwritten_lanes`).

A captured graph always reads as many factors as when it was captured. So there is room for those of all steps from the
beginning, and factors of steps that are still to come are zeros: a graph serves all steps. Where clients take unequally
many, graphs read parts of that room, of which there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fedarena.models import Tensors
from fedarena.train.captured import capture, step_for_gpu
from fedarena.train.engine import JobResults
from fedarena.train.lane_pool import LaneEngine, LanePool
from fedarena.train.lanes import clients_at
from fedarena.train.optimizers import optimizer_init
from fedarena.train.product_rows import ProductRows
from fedarena.train.program import TRACING, Batch, Changing, record
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import sent_to
from fedarena.train.unwritten import DenseLayer, linear_course
from fedarena.train.unwritten_lanes import UnwrittenTraining, begin
from fedarena.train.unwritten_programs import UnwrittenPrograms

_ALIGNED = 8  # rows: products of other numbers of rows are slow
# Steps that the smallest part of a room is for, how many times larger the next is; the largest is a multiple of 16.
_FEWEST_READ, _MORE_READ, _ROUNDED = 8, 4, 16
_MOST_AT_ONCE = 16  # steps of which one graph is made


class CapturedLanes:
    """The tensors of a number of lanes, with room for the factors of so many steps; programs are bound to them."""

    def __init__(
        self,
        programs: UnwrittenPrograms,
        engine: LaneEngine,
        count: int,
        room: tuple[int, int],
        start: Tensors,
        jobs: Tensors,
        layers: tuple[DenseLayer, ...],
    ):
        self.count = count
        self._own_programs, self._layers = programs, layers
        steps, self._places = room
        unwritten = {layer.name for layer in layers}
        params = {name: p.new_zeros(count, *p.shape) for name, p in start.items() if name not in unwritten}
        like = next(iter(start.values()))
        self.changing = Changing(
            params, optimizer_init(engine.local, params), like.new_zeros(count), like.new_zeros(count)
        )
        self._start = {name: p.clone() for name, p in start.items()}
        self._jobs = {name: t[:1].repeat(count, *[1] * (t.dim() - 1)) for name, t in jobs.items()}

        def both(rows: Callable[[DenseLayer], int]) -> dict[str, tuple[Tensor, Tensor]]:
            sides = {layer: (layer.outputs, layer.inputs) for layer in layers}
            return {
                layer.name: tuple(like.new_zeros(count, rows(layer), size) for size in sizes)  # type: ignore[misc]
                for layer, sizes in sides.items()
            }

        self.room = both(lambda layer: _rows(layer, steps, self._places))
        self._new = both(lambda layer: self._places * layer.positions)
        self._steps: dict[tuple[int, int, bool, int], Callable[[list[Tensor]], None]] = {}

    @cached_property
    def _stream(self) -> LaneStream:
        return LaneStream()

    def begin(self, width: int, start: Tensors, jobs: Tensors) -> None:
        """Puts clients into the first lanes; all of them have downloaded the same."""
        begin(self.changing.first(width), start)
        torch._foreach_copy_([self._start[name] for name in start], list(start.values()))
        for name, t in jobs.items():
            self._jobs[name][:width] = t
        for sides in self.room.values():
            for side in sides:
                side[:width].zero_()

    def step(self, number: int, width: int, batch: Batch, factors: Tensor, scales: Tensor, compile: bool) -> None:
        """The step of this number in each of the first lanes.

        It reads as many steps before it as there are `factors` ``[width, steps]``.
        """
        self._program(width, factors, scales, batch, compile)([factors, scales, *batch.tensors()])
        self._keep(width, number)

    def all_steps(
        self, width: int, first: Batch, batches: Batch, factors: Tensor, scales: Tensor, compile: bool
    ) -> None:
        """All steps at once, which a GPU takes without a pause; the first batch is given apart, too.

        Factors are ``[steps, width, steps]``, scales ``[steps, width]``.
        """
        program = self._program(width, factors[0], scales[0], first, compile, times=len(scales))
        program([factors, scales, *batches.tensors()])

    def _keep(self, width: int, number: int) -> None:
        """Puts the factors of the step of this number to those of the steps before it."""
        for layer in self._layers:
            samples = self._places * layer.positions
            for side, new in zip(self.room[layer.name], self._new[layer.name], strict=True):
                side[:width, number * samples : (number + 1) * samples] = new[:width]

    def _program(
        self, width: int, factors: Tensor, scales: Tensor, batch: Batch, compile: bool, times: int = 0
    ) -> Callable[[list[Tensor]], None]:
        form = (width, factors.shape[1], compile, times)
        if form not in self._steps:
            with TRACING:
                self._steps[form] = self._bind(width, factors, scales, batch, compile, times)
        return self._steps[form]

    def _bind(
        self, width: int, factors: Tensor, scales: Tensor, batch: Batch, compile: bool, times: int
    ) -> Callable[[list[Tensor]], None]:
        """A program that takes one step, or several `times` all of them, whose factors it keeps."""
        layers, places = self._layers, self._places
        factors, scales = factors.contiguous(), scales.contiguous()  # as they lie where a graph reads them
        changing = self.changing.first(width)
        new = [side[:width] for layer in layers for side in self._new[layer.name]]
        rows = {layer.name: _rows(layer, factors.shape[1], places) for layer in layers}
        room = {name: tuple(side[:width, : rows[name]] for side in sides) for name, sides in self.room.items()}
        jobs = {name: t[:width] for name, t in self._jobs.items()}
        changed = [*changing.tensors(), *new]
        read = (room, self._start, jobs)
        given = (factors, scales, batch.columns, batch.mask, batch.keys)
        tensors, structure = pytree.tree_flatten((changed, read, given))

        def flat_step(tensors: list[Tensor]) -> list[Tensor]:
            changed, (room, start, jobs), (factors, scales, *of_batch) = pytree.tree_unflatten(tensors, structure)
            now = changing.like(changed[: len(changed) - len(new)])
            weights = {
                layer.name: (*room[layer.name], _of_rows(factors, places * layer.positions, rows[layer.name]))
                for layer in layers
            }
            after, found = self._own_programs.take(layers, now, weights, scales, start, jobs, Batch(*of_batch))
            return [*after.tensors(), *(t for layer in layers for t in found[layer.name][:2])]

        recorded = record(flat_step, tensors)
        step = step_for_gpu(recorded, tensors, len(changed), compile)
        lasting = pytree.tree_leaves(read)

        def keep(number: int) -> None:
            self._keep(width, number)

        if factors.device.type == "cuda":
            example, after = pytree.tree_leaves(given), keep if times else None
            return capture(step, changed, lasting, example, self._stream, max(1, times), after)

        def all_steps(given: list[Tensor]) -> None:
            for number in range(times):
                step(*changed, *lasting, *(t[number] for t in given))
                keep(number)

        return all_steps if times else lambda given: step(*changed, *lasting, *given)


class CapturedTraining(UnwrittenTraining):
    """The local training of clients, each of whom takes a step at least, in as many lanes of a GPU."""

    uses_columns = False  # a captured graph gets its samples with every batch

    def run_in_products(self, pool: LanePool) -> Iterator[JobResults | None]:
        """The results of all clients; `ProductRows` are large dense layers' updates, and None is for steps."""
        self._batches: list[Batch] = []
        self._ending = clients_at(self.schedule.steps - 1, self.schedule)
        width, places = int(self.widths[0]), self.mask.shape[1]
        steps = max(self.schedule.length, self._steps_read(self.schedule.length - 1))
        by_lane = np.argsort(self.schedule.lane, kind="stable")
        jobs = self._given(by_lane[np.minimum(np.arange(width), len(by_lane) - 1)]).jobs
        names = tuple(layer.name for layer in self._layers)

        def make() -> CapturedLanes:
            room = (steps, places)
            return CapturedLanes(self._programs, self.engine, width, room, self._start_of_all, jobs, self._layers)

        with pool.borrow((names, tuple(self._job_rows), steps, places), width, make) as lanes:
            lanes.begin(width, self._start_of_all, jobs)
            scales, factors = self._courses(by_lane, width)
            if not self._take_all_at_once(lanes, scales, factors):
                for step in range(self.schedule.length):
                    self._take_captured(lanes, step, scales, factors)
                    yield None
            yield self._results(
                {layer.name: self._rows_of_lanes(layer, lanes, scales, factors) for layer in self._layers}
            )

    def _steps_read(self, before: int) -> int:
        """For how many steps a program reads factors, after so many."""
        length = self.schedule.length
        if self._is_even:
            return max(1, length - 1)  # nobody reads those of the last
        steps = _FEWEST_READ
        while steps < before:
            steps *= _MORE_READ
        return min(steps, -(-length // _ROUNDED) * _ROUNDED)

    def _take_all_at_once(self, lanes: CapturedLanes, scales: Tensor, factors: Tensor) -> bool:
        """Takes all steps, if everybody takes equally many, and few."""
        length, width, read = self.schedule.length, int(self.widths[0]), self._steps_read(0)
        if length > _MOST_AT_ONCE or not self._is_even:
            return False
        batches = self._gather(0)
        if len(batches.mask) < length:
            return False
        compile = self.engine.compile and self._is_frequent(0)
        lanes.all_steps(
            width, batches.at(0), batches, factors[:length, :width, :read], scales[:length, :width], compile
        )
        self._finish(lanes.changing, self._ending[length - 1], keep=True)
        return True

    @cached_property
    def _is_even(self) -> bool:
        """Whether everybody takes equally many steps."""
        return bool((self.schedule.steps == self.schedule.length).all())

    def _take_captured(self, lanes: CapturedLanes, step: int, scales: Tensor, factors: Tensor) -> None:
        if not self._batches:
            self._batches = self._gather(step).each()[::-1]
        width, length, read = int(self.widths[step]), self.schedule.length, self._steps_read(step)
        of_steps = F.pad(factors[step, :width], (0, max(0, read - length)))[:, :read]
        compile = self.engine.compile and self._is_frequent(step)
        lanes.step(step, width, self._batches.pop(), of_steps, scales[step, :width], compile)
        if step in self._ending:
            self._finish(lanes.changing, self._ending[step], keep=True)

    def _courses(self, by_lane: np.ndarray, width: int) -> tuple[Tensor, Tensor]:
        """Before every step, the scales of lanes ``[steps + 1, lanes]`` and factors ``[steps + 1, lanes, steps]``."""
        like = next(iter(self._start_of_all.values()))
        lr_scales = (1.0,) if self.jobs.lr_scales is None else tuple(self.jobs.lr_scales[by_lane].tolist())
        scales, factors = (
            sent_to(like.device, course).to(like.dtype)
            for course in linear_course(self.engine.local, self.schedule.length, lr_scales)
        )
        if len(lr_scales) == 1:  # the same for everybody
            return scales.expand(-1, width), factors.expand(-1, width, -1)
        lanes = torch.arange(width, device=like.device).clamp(max=len(lr_scales) - 1)
        return scales[:, lanes], factors[:, lanes]

    def _rows_of_lanes(
        self, layer: DenseLayer, captured: CapturedLanes, scales: Tensor, factors: Tensor
    ) -> ProductRows:
        """What clients' training came to in a layer; factors of places that stayed empty are zeros."""
        steps = self.schedule.lane_lengths
        lanes, samples = len(steps), self.mask.shape[1] * layer.positions
        counts = samples * steps
        left, right = captured.room[layer.name]
        if (steps == steps[0]).all():
            left, right = (side[:lanes, : counts[0]].flatten(0, 1) for side in (left, right))
        else:
            number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = sent_to(left.device, np.repeat(np.arange(lanes), counts) * left.shape[1] + number)
            left, right = (side.flatten(0, 1).index_select(0, rows) for side in (left, right))
        if self._is_even:
            of_rows = factors[steps[0], :lanes, : steps[0]].reshape(-1).repeat_interleave(samples)
            shift = scales[steps[0], :lanes] - 1 if self.engine.local.weight_decay else None
            return ProductRows(left, right, of_rows, counts, shift, self._start_of_all[layer.name])
        # The factors of a lane after its last step, of which there are as many as it took.
        owner = np.repeat(np.arange(lanes), steps)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(steps) - steps, steps)
        at = (sent_to(left.device, t) for t in (steps[owner], owner, number))
        of_rows = factors[tuple(at)].repeat_interleave(samples)
        shift = None
        if self.engine.local.weight_decay:
            last, each = (sent_to(left.device, t) for t in (steps, np.arange(lanes)))
            shift = scales[last, each] - 1
        return ProductRows(left, right, of_rows, counts, shift, self._start_of_all[layer.name])


def _rows(layer: DenseLayer, steps: int, places: int) -> int:
    """How many rows there is room for."""
    return -(-steps * places * layer.positions // _ALIGNED) * _ALIGNED


def _of_rows(factors: Tensor, samples: int, rows: int) -> Tensor:
    """The factors of steps ``[lanes, steps]`` for each of their rows: ``[lanes, 1, rows]``."""
    lanes, steps = factors.shape
    of_samples = factors.unsqueeze(-1).expand(lanes, steps, samples).reshape(lanes, steps * samples)
    return F.pad(of_samples, (0, rows - steps * samples)).unsqueeze(1)
