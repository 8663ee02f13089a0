"""The local training of some clients whose large dense layers are not written down (see `unwritten`).

Everybody begins at the same time in a lane of their own, so that all have taken equally many steps at any time, and the
factors of a lane are its samples, step after step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from fedarena.models import Tensors
from fedarena.train.algorithm import Work
from fedarena.train.engine import JobResults
from fedarena.train.graphs import drop_sizes, separate_updates
from fedarena.train.jobs import Client, IntArray, context_of
from fedarena.train.lane_pool import LaneEngine, LanePool
from fedarena.train.lanes import LaneTraining, PlannedWork, clients_at, concatenate
from fedarena.train.late import late_array
from fedarena.train.optimizers import optimizer_init, optimizer_step
from fedarena.train.product_rows import Overlaps, ProductRows
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import TRACING, Batch, Changing, record, script
from fedarena.train.tensors import Groups, innermost_channels
from fedarena.train.unwritten import DenseLayer, Factors, linear_course, loss_without_weights

_WIDTHS_PER_OCTAVE = 4  # there are as many widths as sizes of shards, and each needs a program

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

    def __init__(
        self,
        engine: LaneEngine,
        work: PlannedWork,
        broadcasts: Mapping[int, Groups],
        layers: tuple[DenseLayer, ...],
        programs: UnwrittenPrograms,
    ):
        super().__init__(engine, work, broadcasts, {}, lanes=len(work.steps), widths_per_octave=_WIDTHS_PER_OCTAVE)
        self._layers, self._programs = layers, programs
        self._start_of_all = self._downloads[0]["params"]
        # Nobody has a sample in the last places of batches when all clients are small.
        places = min(self.mask.shape[1], 4 ** -(-int(self.batch_samples.max() - 1).bit_length() // 2))
        self.rows, self.mask = self.rows[..., :places].contiguous(), self.mask[..., :places].contiguous()

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
        steps, places = schedule.length, self.mask.shape[1]
        begin(lanes.changing.first(width), self._start_of_all)
        by_lane = np.argsort(schedule.lane, kind="stable")
        jobs = self._given(by_lane[np.minimum(np.arange(width), len(by_lane) - 1)]).jobs
        scales, factors = self._course(by_lane, width)
        room = {
            layer.name: tuple(
                lanes.room_for((layer.name, side), width, steps * places * layer.positions, size)
                for side, size in (("left", layer.outputs), ("right", layer.inputs))
            )
            for layer in self._layers
        }
        overlaps = {layer.name: self._room_for_overlaps(lanes, layer) for layer in self._layers}
        ending = clients_at(schedule.steps - 1, schedule)
        batches: list[Batch] = []
        for step, width in enumerate(self.widths.tolist()):
            if not batches:
                batches = self._gather(step)[1][::-1]
            weights: list[tuple[Tensor, ...]] = []
            for layer in self._layers:
                samples = places * layer.positions
                before, now = slice(0, step * samples), slice(step * samples, (step + 1) * samples)
                left, right = (side[:width] for side in room[layer.name])
                of_rows = factors[layer.positions][step, :width, None, before]
                with_earlier = overlaps[layer.name][:width, now, before]
                weights.append((left[:, before], right[:, before], of_rows, left[:, now], right[:, now], with_earlier))
            self._programs.step(
                lanes.changing.first(width),
                self._layers,
                weights,
                scales[step, :width],
                self._start_of_all,
                {name: rows[:width] for name, rows in jobs.items()},
                batches.pop(),
            )
            if len(ending[step]):
                self._finish(lanes.changing, ending[step], keep=True)
        return {
            layer.name: self._product_rows(layer, room[layer.name], overlaps[layer.name], scales, factors)
            for layer in self._layers
        }

    def _room_for_overlaps(self, lanes: UnwrittenLanes, layer: DenseLayer) -> Tensor:
        """Of every sample with those of earlier steps; what is not written stays 0."""
        samples = self.schedule.length * self.mask.shape[1] * layer.positions
        return lanes.room_for((layer.name, "overlaps"), int(self.widths[0]), samples, samples).zero_()

    def _course(self, by_lane: IntArray, width: int) -> tuple[Tensor, dict[int, Tensor]]:
        """The scales of lanes before every step, and the factors of all samples, by how many rows each of them has."""
        like = next(iter(self._start_of_all.values()))
        lr_scales = (1.0,) if self.jobs.lr_scales is None else tuple(self.jobs.lr_scales[by_lane].tolist())
        scales, factors = (
            torch.from_numpy(course).to(like)
            for course in linear_course(self.engine.local, self.schedule.length, lr_scales)
        )
        lanes = torch.arange(width).clamp(max=scales.shape[1] - 1)
        scales, factors = scales[:, lanes], factors[:, lanes]
        places = self.mask.shape[1]
        return scales, {
            positions: factors.repeat_interleave(places * positions, dim=2)
            for positions in {layer.positions for layer in self._layers}
        }

    def _product_rows(
        self,
        layer: DenseLayer,
        room: tuple[Tensor, ...],
        overlaps: Tensor | None,
        scales: Tensor,
        factors: dict[int, Tensor],
    ) -> ProductRows:
        """What clients' training came to in a layer, in the order of lanes, without the places that were empty."""
        steps = self.schedule.lane_lengths
        lanes = len(steps)
        step = np.repeat(np.arange(len(self.widths)), self.widths)
        lane = np.arange(len(step)) - self.begins[step]
        counts = torch.zeros(max(lanes, int(self.widths[0])), len(self.widths), self.mask.shape[1], dtype=torch.bool)
        counts[lane, step] = self.mask
        counts = counts[:lanes]
        if layer.positions > 1:  # whose rows need not be sample after sample
            counts = counts.any(2, keepdim=True).expand(counts.shape)
        valid = counts.reshape(lanes, -1).repeat_interleave(layer.positions, dim=1)
        left, right = (side[:lanes].flatten(0, 1) for side in room)
        last = torch.from_numpy(steps)
        of_rows = factors[layer.positions][last, torch.arange(lanes)].flatten()
        number = valid.sum(1).numpy()
        if not valid.all():
            rows = valid.flatten().nonzero().flatten()
            left, right, of_rows, overlaps = left[rows], right[rows], of_rows[rows], None
        shift = scales[last, torch.arange(lanes)] - 1 if self.engine.local.weight_decay else None
        known = None if overlaps is None else Overlaps(overlaps[:lanes], self.mask.shape[1] * layer.positions)
        return ProductRows(left, right, of_rows, number, shift, self._start_of_all[layer.name], known)

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


class UnwrittenPrograms:
    """Programs of a step, by the form of its tensors. How many samples came before is no part of it."""

    def __init__(self, engine: LaneEngine, loss_of: ClientLoss):
        self._engine, self._loss_of = engine, loss_of
        self._scripts: dict[Any, Callable[..., None]] = {}

    def step(
        self,
        changing: Changing,
        layers: tuple[DenseLayer, ...],
        weights: list[tuple[Tensor, ...]],
        scales: Tensor,
        start: Tensors,
        jobs: Tensors,
        batch: Batch,
    ) -> None:
        """One gradient step in every lane.

        The `weights` of every layer are its factors so far (left, right, and the numbers between them) and where the
        new ones of left and right and their overlaps with those so far are to be written, which with `changing` is what
        the step changes.
        """
        new = [t for layer in weights for t in layer[3:]]
        so_far = [t for layer in weights for t in layer[:3]]
        changed = changing.tensors()
        tensors = [*changed, *new, *so_far, scales, *start.values(), *jobs.values(), *batch.tensors()]
        fixed = [*changed, *(t for layer in weights for t in layer[3:5]), *jobs.values(), *batch.tensors()]
        # Names in their order, too: tensors may look alike.
        names = tuple(tuple(named) for named in (changing.params, start, jobs, batch.columns))
        form = (layers, names, *((t.shape, t.dtype) for t in fixed))
        if form not in self._scripts:
            with TRACING:  # the model serves one thread at a time
                if form not in self._scripts:
                    # As after one step: a program that is recorded without a sample might leave out something.
                    example = [
                        t
                        for *_, left, right, _ in weights
                        for t in (left.clone(), right.clone(), left[..., :1].transpose(1, 2).clone())
                    ]
                    written = [
                        t
                        for *_, left, right, overlaps in weights
                        for t in (left, right, overlaps.new_zeros(*left.shape[:2], left.shape[1]))
                    ]
                    parts = (changed, written, example, scales, start, jobs, (batch.columns, batch.mask, batch.keys))
                    self._scripts[form] = self._script(changing, layers, parts)
        self._scripts[form](*tensors)

    def _script(self, changing: Changing, layers: tuple[DenseLayer, ...], parts: Any) -> Callable[..., None]:
        tensors, structure = pytree.tree_flatten(parts)

        def flat_step(tensors: list[Tensor]) -> list[Tensor]:
            changed, _, read, scales, start, jobs, batch = pytree.tree_unflatten(tensors, structure)
            factors = {layer.name: tuple(read[3 * i : 3 * i + 3]) for i, layer in enumerate(layers)}
            after, new = self.take(layers, changing.like(changed), factors, scales, start, jobs, Batch(*batch))
            return [*after.tensors(), *(t for layer in layers for t in new[layer.name])]

        replaced = len(parts[0]) + len(parts[1])
        recorded = record(flat_step, tensors)
        drop_sizes(recorded.graph)
        pure, updates = separate_updates(recorded, replaced)
        return script(pure, updates, tensors)

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

        With the latter come the products of what went into a layer and what did before.
        """
        local = self._engine.local
        client = Client({"params": start}, {}, context_of(job))
        loss = self._loss_of(columns, mask, key, client)
        left_scale = scale if local.weight_decay else None
        weights = {name: Factors(start[name], left_scale, *read) for name, read in factors.items()}

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
        return new_params, new_state, value, {name: (left[name], *seen[name]) for name in factors}
