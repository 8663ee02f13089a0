"""The local training of some clients whose large dense layers are not written down (see `unwritten`).

Everybody begins at the same time in a lane of their own, so that all have taken equally many steps at any time, and the
factors of a lane are its samples, step after step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from fedarena.models import Tensors
from fedarena.train.algorithm import Work
from fedarena.train.clients_at_work import concatenate
from fedarena.train.engine import JobResults
from fedarena.train.factor_rooms import FactorRoom, LayerInScript, LayerInStep, script_of_layers
from fedarena.train.graphs import drop_sizes, separate_updates
from fedarena.train.jobs import Client, IntArray, context_of
from fedarena.train.lane_pool import LaneEngine, LanePool
from fedarena.train.lanes import LaneTraining, clients_at
from fedarena.train.late import late_array
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step
from fedarena.train.placing import PlacedWork, PlannedWork, SamplesFor, place_work, usual_widths
from fedarena.train.product_rows import Overlaps, ProductRows
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import TRACING, Batch, Changing, record
from fedarena.train.scripts import Script
from fedarena.train.tensors import Groups, innermost_channels
from fedarena.train.unwritten import (
    DenseLayer,
    Factors,
    KnownFactors,
    linear_course,
    loss_without_weights,
    placeholder,
)

_WIDTHS_PER_OCTAVE = 8  # there are as many widths as sizes of shards, and each needs a program

LossFunction = Callable[[Tensors], Tensor]
ClientLoss = Callable[[Tensors, Tensor, Tensor, Client], LossFunction]  # of its columns, their mask, a key, and itself


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
        return place_work(engine, work, len(work.steps), usual_widths(engine, _WIDTHS_PER_OCTAVE), samples_for)

    def run_in_products(self, pool: LanePool) -> Iterator[JobResults | None]:
        """The results of all clients; instead of large dense layers' updates there are `ProductRows`."""
        width = int(self.widths[0])
        kind = (tuple(layer.name for layer in self._layers), tuple(self._job_rows))
        with pool.borrow(
            kind, width, lambda: UnwrittenLanes(self.engine, width, self._start_of_all, self._layers)
        ) as lanes:
            yield self._results(self._train(lanes))

    def _train(self, lanes: UnwrittenLanes) -> dict[str, ProductRows]:
        schedule, width = self.schedule, int(self.widths[0])
        begin(lanes.changing.first(width), self._start_of_all)
        by_lane = np.argsort(schedule.lane, kind="stable")
        jobs = self._given(by_lane[np.minimum(np.arange(width), len(by_lane) - 1)]).jobs
        scales, factors = self._course(by_lane, width)
        rooms = [self._room(lanes, layer) for layer in self._layers]
        ending = clients_at(schedule.steps - 1, schedule)
        step = first = until = 0
        step_of: _Bound | None = None
        for last in sorted(ending):  # until then, nobody is done
            while step <= last:
                if step == until:
                    batches = self._gather(step)
                    first, until = step, step + len(batches.mask)
                some = batches.at(slice(step - first, last + 1 - first))
                width = int(self.widths[step])
                if step_of is None or step_of.width != width:
                    step_of = self._bound(lanes, rooms, jobs, scales, factors, step, some.at(0))
                step_of.run(step, some)
                step += len(some.mask)
            # The last ones stay in their lanes until it is known how far they came.
            self._finish(lanes.changing, ending[last], keep=step < len(self.widths))
        return {room.layer.name: self._product_rows(room, scales, factors) for room in rooms}

    def _bound(
        self,
        lanes: UnwrittenLanes,
        rooms: list[FactorRoom],
        jobs: Tensors,
        scales: Tensor,
        factors: dict[int, Tensor],
        step: int,
        batch: Batch,
    ) -> _Bound:
        """The program of steps that are as wide as this one."""
        width = int(self.widths[step])
        of_lanes = {name: rows[:width] for name, rows in jobs.items()}
        changing, scales = lanes.changing.first(width), scales[:, :width]
        now = [room.in_step(step, width, factors[room.layer.positions][step]) for room in rooms]
        example = (changing, self._layers, now, scales[step], self._start_of_all, of_lanes, batch)
        lasting = [*self._start_of_all.values(), *of_lanes.values()]
        of_layers = [t for room in rooms for t in room.for_script(width, factors[room.layer.positions])]
        return _Bound(width, self._programs.program(*example), [scales, *changing.tensors(), *lasting], of_layers)

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
        room.fill(self.schedule.lanes, self._known[layer.column], rows, start)
        return room

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

    def _product_rows(self, room: FactorRoom, scales: Tensor, factors: dict[int, Tensor]) -> ProductRows:
        """What clients' training came to in a layer, in the order of lanes, without the places that were empty."""
        layer, steps = room.layer, self.schedule.lane_lengths
        lanes = len(steps)
        left, right = (side[:lanes].flatten(0, 1) for side in (room.left, room.right))
        last = torch.from_numpy(steps)
        of_rows = factors[layer.positions][last, torch.arange(lanes)].flatten()
        shift = scales[last, torch.arange(lanes)] - 1 if self.engine.local.weight_decay else None
        start, number = self._start_of_all[layer.name], np.full(lanes, room.left.shape[1])
        if (self.processed == self.schedule.length * self.mask.shape[1]).all():  # nobody has an empty place
            known = Overlaps(room.overlaps[:lanes], room.samples if layer.column is None else None)
            return ProductRows(left, right, of_rows, number, shift, start, known)
        counts = torch.zeros(len(room.left), len(self.widths), self.mask.shape[1], dtype=torch.bool)
        counts[self._place_in_lanes()] = self.mask
        counts = counts[:lanes]
        if layer.positions > 1:  # whose rows need not be sample after sample
            counts = counts.any(2, keepdim=True).expand(counts.shape)
        valid = counts.reshape(lanes, -1).repeat_interleave(layer.positions, dim=1)
        rows = valid.flatten().nonzero().flatten()
        return ProductRows(left[rows], right[rows], of_rows[rows], valid.sum(1).numpy(), shift, start)

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
class _Bound:
    """A program of steps with tensors that are the same in all of them."""

    width: int
    program: Callable[..., None]
    tensors: list[Tensor]
    of_layers: list[Tensor | int]

    def run(self, first: int, batches: Batch) -> None:
        """Takes as many steps as there are batches, which changes lanes and writes what is new in layers."""
        self.program(len(batches.mask), first, *self.tensors, *batches.tensors(), *self.of_layers)


class UnwrittenPrograms:
    """Programs of a step, by the form of its tensors. How many samples came before is no part of it."""

    def __init__(self, engine: LaneEngine, loss_of: ClientLoss):
        self._engine, self._loss_of = engine, loss_of
        self._scripts: dict[Any, Callable[..., None]] = {}

    def program(
        self,
        changing: Changing,
        layers: tuple[DenseLayer, ...],
        in_step: list[LayerInStep],
        scales: Tensor,
        start: Tensors,
        jobs: Tensors,
        batch: Batch,
    ) -> Callable[..., None]:
        """Gradient steps in every lane, each for tensors like these; it is called as in `_Bound.run`."""
        changed = changing.tensors()
        fixed = [*changed, *(t for layer in in_step for t in layer.lasting), *jobs.values(), *batch.tensors()]
        # Names in their order, too: tensors may look alike.
        names = tuple(tuple(named) for named in (changing.params, start, jobs, batch.columns))
        form = (layers, names, *((t.shape, t.dtype) for t in fixed))
        if form not in self._scripts:
            with TRACING:  # the model serves one thread at a time
                if form not in self._scripts:
                    examples = [layer.after_one_step() for layer in in_step]
                    new, read = [layer.new for layer in examples], [layer.read for layer in examples]
                    parts = (changed, new, read, scales, start, jobs, (batch.columns, batch.mask, batch.keys))
                    in_script = [LayerInScript(n, layer.column is not None) for n, layer in enumerate(layers)]
                    counts = len(changed), len(start) + len(jobs), len(batch.tensors())
                    script = self._script(changing, layers, parts)
                    self._scripts[form] = script.repeated(*script_of_layers(in_script, *counts))
        return self._scripts[form]

    def _script(self, changing: Changing, layers: tuple[DenseLayer, ...], parts: Any) -> Script:
        tensors, structure = pytree.tree_flatten(parts)

        def flat_step(tensors: list[Tensor]) -> list[Tensor]:
            changed, _, read, scales, start, jobs, batch = pytree.tree_unflatten(tensors, structure)
            factors = {layer.name: of_layer for layer, of_layer in zip(layers, read, strict=True)}
            after, new = self.take(layers, changing.like(changed), factors, scales, start, jobs, Batch(*batch))
            return [*after.tensors(), *(t for layer in layers for t in new[layer.name])]

        replaced = len(pytree.tree_leaves(parts[:2]))
        recorded = record(flat_step, tensors)
        drop_sizes(recorded.graph)
        pure, updates = separate_updates(recorded, replaced)
        return Script(pure, updates, tensors)

    def take(
        self,
        layers: tuple[DenseLayer, ...],
        changing: Changing,
        factors: dict[str, tuple[Tensor, ...]],
        scales: Tensor,
        start: Tensors,
        jobs: Tensors,
        batch: Batch,
    ) -> tuple[Changing, dict[str, tuple[Tensor, ...]]]:
        """One gradient step in every lane, as a pure function: what it changes, new factors, and overlaps."""
        on_gpu = scales.device.type == "cuda"
        columns = batch.columns
        if not on_gpu:
            columns = {name: innermost_channels(values) for name, values in columns.items()}
        with (
            LayersAsProducts(self._engine.convolutions == "kernels") if on_gpu else nullcontext(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            params, state, losses, new = vmap(partial(self._client_step, layers), in_dims=(*[0] * 9, None))(
                changing.params,
                changing.optimizer,
                changing.numbers,
                factors,
                scales,
                columns,
                batch.mask,
                batch.keys,
                jobs,
                start,
            )
        loss_sums = changing.loss_sums + losses * batch.mask.sum(1)
        return Changing(params, state, changing.numbers + 1, loss_sums), new

    def _client_step(
        self,
        layers: tuple[DenseLayer, ...],
        params: Tensors,
        state: Groups,
        number: Tensor,
        factors: dict[str, tuple[Tensor, ...]],
        scale: Tensor,
        columns: Tensors,
        mask: Tensor,
        key: Tensor,
        job: Tensors,
        start: Tensors,
    ) -> tuple[Tensors, Groups, Tensor, dict[str, tuple[Tensor, ...]]]:
        """One gradient step of one client: what is written down, its loss, and of other layers the new factors.

        Where these are not known before, with them come the products of what went into a layer and what did before.
        """
        local = self._engine.local
        client = Client({"params": start}, {}, context_of(job))
        loss = self._loss_of(columns, mask, key, client)
        left_scale = scale if local.weight_decay else None
        known = {layer.name for layer in layers if layer.column is not None}
        weights = {
            name: (KnownFactors if name in known else Factors)(start[name], left_scale, *read)
            for name, read in factors.items()
        }

        def loss_in_factors(trained: tuple[Tensors, Tensors]) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
            return loss_without_weights(loss, trained[0], weights, trained[1])

        samples = len(mask)
        probes = {
            layer.name: torch.zeros(samples * layer.positions, layer.outputs, dtype=value.dtype, device=value.device)
            for layer in layers
            for value in [start[layer.name]]
        }
        (grad, left), (value, seen) = grad_and_value(loss_in_factors, has_aux=True)((params, probes))
        new_params, new_state = optimizer_step(local, params, grad, state, number, client.job.lr_scale)
        new = {name: (left[name],) if name in known else (left[name], *seen[name]) for name in factors}
        return new_params, new_state, value, new
