"""Who trains without large dense layers being written down, and together with whom: by sizes alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm
from fedarena.train.engine import JobResults
from fedarena.train.execution import SMALL_OPERATIONS
from fedarena.train.hardware import Hardware
from fedarena.train.jobs import Client, IntArray
from fedarena.train.lane_pool import LaneEngine, LanePool
from fedarena.train.placing import PlacedWork, PlannedWork
from fedarena.train.shards import Shard
from fedarena.train.unwritten import DenseLayer, find_dense_layers
from fedarena.train.unwritten_gpu import CapturedTraining
from fedarena.train.unwritten_lanes import UnwrittenTraining
from fedarena.train.unwritten_programs import LossFunction, UnwrittenPrograms

# Whether large dense layers have a matrix for every client, or factors of it where that is possible and pays.
Dense = Literal["written", "factored"]
Layers = tuple[DenseLayer, ...]

_MOST_BYTES = 1 << 25  # of the factors of clients that train together on a CPU
# On a GPU, how much of what as many clients take as train together with everything written down, who are rounded down
# to a power of two.
_GPU_ROOM = 2
# Where layers' outputs take more memory than such weights, it is better to have few lanes than none of the weights; a
# GPU, which gets everything from memory, gains by less.
_DOMINATING_SHARE = 0.5
_GPU_DOMINATING_SHARE = 0.1
# Clients of a shard share the product with the weights that all of them start from: more are better, up to so many, if
# there are shards enough for some workers.
_SHARING = 32
_FEWEST_SHARDS = 4


class UnwrittenEngine(LaneEngine, Protocol):
    """What is asked of the engine."""

    task: Task
    hardware: Hardware

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model."""

    def lane_bytes(self) -> int:
        """What a lane takes if everything is written down."""

    def loss_of(self, columns: Tensors, mask: Tensor, key: Tensor, client: Client) -> LossFunction:
        """What a client minimizes in a step."""


class Unwritten:
    """The layers of an engine's model that need not be written down, and the training of clients without them."""

    def __init__(self, engine: UnwrittenEngine, choice: Dense | None):
        self._engine = engine
        self.layers: Layers = ()
        if choice != "written" and _is_linear(engine):
            params = engine.initial_params()
            matrices = tuple(DenseLayer(name, p.shape[1], p.shape[0], 1) for name, p in params.items() if p.dim() == 2)
            # Of most models it is clear without a trial that there is nothing to find.
            if choice == "factored" or _dominate(matrices, engine):
                self.layers = find_dense_layers(engine.task, params)
            if choice is None and not _dominate(self.layers, engine):
                self.layers = ()
        self.choice: Dense = "factored" if self.layers else "written"
        self._lane_bytes = engine.lane_bytes() if self.layers else 0
        self._programs = UnwrittenPrograms(engine, engine.loss_of)
        self._pool = LanePool()

    def shard_lanes(self, clients: int) -> int:
        """How many clients a shard should have at least, of a cohort of so many."""
        if not self.layers:
            return self._engine.lanes
        return max(self._engine.lanes, min(_SHARING, -(-clients // _FEWEST_SHARDS)))

    def divide(self, work: PlannedWork) -> tuple[PlannedWork | None, list[tuple[Layers, PlannedWork]]]:
        """Clients that train as usual, and those that train without some layers, as many together as fit."""
        versions = work.jobs.versions
        if not self.layers or (versions != versions[:1]).any() or work.jobs.hyperparameters is not None:
            return work, []
        width = work.batches.places
        numbers, number_of = np.unique(work.steps, return_inverse=True)
        paying = [
            tuple(layer for layer in self.layers if steps and layer.pays(steps * width)) for steps in numbers.tolist()
        ]
        kinds = {layers: kind for kind, layers in enumerate(dict.fromkeys(paying))}
        kind_of = np.array([kinds[layers] for layers in paying], dtype=np.int64)[number_of]
        clients: dict[Layers, IntArray] = {layers: np.flatnonzero(kind_of == kind) for layers, kind in kinds.items()}
        usual = clients.pop((), None)
        in_order = sorted(clients.items(), key=lambda item: int(item[1][0]))
        groups = [
            (layers, work.of(some))
            for layers, clients_of_layers in in_order
            for some in self._fitting(layers, clients_of_layers, work, width)
        ]
        return None if usual is None else work.of(usual), groups

    def _fitting(self, layers: Layers, clients: IntArray, work: PlannedWork, width: int) -> Iterator[IntArray]:
        """The clients, those with most steps first, in groups whose factors take a limited amount of memory."""
        item_bytes = self._engine.hardware.dtype.itemsize
        row_bytes = item_bytes * width * sum(layer.positions * (layer.inputs + layer.outputs) for layer in layers)
        most_bytes, lane_bytes = _MOST_BYTES, 0
        if self._engine.hardware.is_gpu:
            most_bytes = _GPU_ROOM * self._engine.lanes * self._lane_bytes
            lane_bytes = self._lane_bytes - item_bytes * sum(layer.inputs * layer.outputs for layer in layers)
        ordered = clients[np.argsort(-work.steps[clients], kind="stable")]
        while len(ordered):
            room = max(1, most_bytes // (lane_bytes + row_bytes * int(work.steps[ordered[0]])))
            if self._engine.hardware.is_gpu:  # groups of about the same size
                room = -(-len(ordered) // -(-len(ordered) // room))
            yield ordered[:room]
            ordered = ordered[room:]

    def train(self, work: PlannedWork, shard: Shard, layers: Layers) -> Iterator[JobResults | None]:
        """Trains some clients without these layers; their updates are `ProductRows` of them, and None is for steps."""
        with SMALL_OPERATIONS.taken():
            training = self._kind(self._engine, work, shard.broadcasts, layers, self._programs)
        return training.run_in_products(self._pool)

    def place(self, work: PlannedWork) -> PlacedWork:
        """Where and when these clients are to train."""
        return self._kind.place(self._engine, work)

    @property
    def _kind(self) -> type[UnwrittenTraining]:
        return CapturedTraining if self._engine.hardware.is_gpu else UnwrittenTraining


def _dominate(layers: Layers, engine: UnwrittenEngine) -> bool:
    """Whether weights that need not be written down, for clients with a single step at least, are most of a lane."""
    paying = [layer for layer in layers if layer.pays(engine.local.batch_size)]
    weights = sum(layer.inputs * layer.outputs for layer in paying) * engine.hardware.dtype.itemsize
    share = _GPU_DOMINATING_SHARE if engine.hardware.is_gpu else _DOMINATING_SHARE
    return bool(paying) and weights >= share * engine.lane_bytes()


def _is_linear(engine: UnwrittenEngine) -> bool:
    """Whether a client's weights stay sums of what it downloaded and of gradients, and nobody asks to see them.

    Products whose inputs are rounded to tf32 are about as exact with factors: samples, gradients and what was
    downloaded are rounded as they are for written weights, and sums stay in full precision. In bf16 the product of
    every step would be rounded by itself before they are added up.
    """
    algorithm, local = engine.algorithm, engine.local
    asks = engine.asks_about_jobs or type(algorithm).client_init is not Algorithm.client_init
    plain = engine.hardware.precision != "bf16" and engine.plan != "apart"
    return plain and local.optimizer == "sgd" and local.clip_norm is None and not asks and not engine.exact_batches
