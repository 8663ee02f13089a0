"""Programs of a gradient step of clients whose large dense layers are not written down (see `unwritten`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from fedarena.models import Tensors
from fedarena.train.factor_rooms import LayerInScript, LayerInStep, script_of_layers
from fedarena.train.graphs import drop_sizes, separate_updates
from fedarena.train.jobs import Client, context_of
from fedarena.train.lane_pool import LaneEngine
from fedarena.train.optimizers import optimizer_step
from fedarena.train.products import LayersAsProducts
from fedarena.train.program import TRACING, Batch, Changing, record
from fedarena.train.scripts import Script
from fedarena.train.tensors import Groups, innermost_channels
from fedarena.train.unwritten import DenseLayer, Factors, KnownFactors, loss_without_weights

LossFunction = Callable[[Tensors], Tensor]
ClientLoss = Callable[[Tensors, Tensor, Tensor, Client], LossFunction]  # of its columns, their mask, a key, and itself


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
        return Script(pure, updates, tensors, natively=self._engine.kernels == "compiled")

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
        if not on_gpu and self._engine.innermost:
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
