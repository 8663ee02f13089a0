"""Scoring one model on many clients in large batches that ignore where a client ends."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedarena.metrics import Metric
from fedarena.metrics.totals import RIGHT, SCORES, MetricStates, SampleSums, Totals
from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.models.copying import copy_of
from fedarena.train.engine import ClientData, ClientScores, IntArray, Part
from fedarena.train.execution import in_order, one_ahead
from fedarena.train.kept_samples import KeptSamples, TensorSamples, tensor_samples
from fedarena.train.late import copied
from fedarena.train.wide_products import wide_dense_layers

Array = npt.NDArray[Any]
_BATCHES_IN_BLOCK = 16


class OwnTask(threading.local):
    """A copy of a task for every thread: a module that is being called with other parameters serves one only."""

    def __init__(self, task: Task, params: Tensors | None = None):
        self.task = copy.copy(task)
        self.task.module = copy_of(task.module).eval()
        self.use(params or {})

    def use(self, params: Tensors) -> None:
        """Lets it compute with these parameters from now on."""
        self.params, module = params, self.task.module
        trained = trainable_parameters(module)
        if self.params.keys() == trained.keys():
            # They are put into the copy, which is faster than to exchange them in every call.
            for name, parameter in trained.items():
                parameter.data = self.params[name]
            self.params = {}
            for layer in module.modules():
                if isinstance(layer, nn.RNNBase):
                    layer.flatten_parameters()  # or else cuDNN would put them in a row in every call


def evaluate_clients(
    task: Task,
    params: Tensors,
    data: ClientData,
    clients: IntArray,
    part: Part,
    batch_size: int = 64,
    workers: int = 1,
    metrics: Sequence[Metric] | None = None,
    kept: KeptSamples | None = None,
) -> ClientScores:
    """Every metric of every client; memory is bounded by a few batches per worker, however many clients.

    The metrics are those of the task unless others are given. Samples may be `kept` from one evaluation to the next.
    """
    samples = data.counts(clients, part)
    blocks = blocks_of_clients(samples, evaluation_batch_size(task, batch_size))
    totals = Totals(task.metrics if metrics is None else metrics)
    for states in measure_blocks(task, params, data, clients, part, blocks, batch_size, workers, metrics, kept):
        totals.add(states)
    return client_scores(totals, clients, samples)


def begin_evaluation(
    own: OwnTask,
    params: Tensors,
    data: ClientData,
    clients: IntArray,
    part: Part,
    batch_size: int,
    metrics: Sequence[Metric] | None = None,
    kept: KeptSamples | None = None,
) -> Callable[[], ClientScores] | None:
    """The same for a GPU, which goes on by itself; what waits for it. None if it is too much for one block.

    It is computed by a task of one's `own`, whose copy may serve many evaluations.
    """
    task, samples = own.task, data.counts(clients, part)
    batch_size = evaluation_batch_size(task, batch_size)
    blocks = blocks_of_clients(samples, batch_size)
    if len(blocks) != 1:
        return None
    metrics = task.metrics if metrics is None else metrics
    read = tensor_samples(data, clients, part) if kept is None else kept.samples(data, clients, part)
    device = next(iter(params.values())).device
    own.use(params)
    measured = [
        {name: copied(t) for name, t in states.items()}
        for states in _measured(own, read.columns, batch_size, device, metrics)
    ]

    def finish() -> ClientScores:
        sums = SampleSums(np.repeat(np.arange(len(clients)), np.diff(read.offsets)), len(clients))
        for states in measured:
            sums.add({name: as_doubles(name, read_state()) for name, read_state in states.items()})
        totals = Totals(metrics)
        totals.add(sums.finish(np.arange(len(clients))))
        return client_scores(totals, clients, samples)

    return finish


def measure_blocks(
    task: Task,
    params: Tensors,
    data: ClientData,
    clients: IntArray,
    part: Part,
    blocks: Sequence[tuple[int, int]],
    batch_size: int = 64,
    workers: int = 1,
    metrics: Sequence[Metric] | None = None,
    kept: KeptSamples | None = None,
) -> Iterator[MetricStates]:
    """The states of some blocks of these clients, which others may have the rest of."""
    metrics = task.metrics if metrics is None else metrics
    batch_size = evaluation_batch_size(task, batch_size)
    own = OwnTask(task, params)
    device = next(iter(params.values())).device

    def read(block: tuple[int, int]) -> TensorSamples:
        first, last = block
        some = clients[first:last]
        return tensor_samples(data, some, part) if kept is None else kept.samples(data, some, part)

    def measure(block: tuple[int, int], read_samples: TensorSamples) -> MetricStates:
        first, last = block
        owners = np.repeat(np.arange(last - first), np.diff(read_samples.offsets))
        sums = SampleSums(owners, last - first)
        _measure(own, read_samples.columns, batch_size, device, sums, metrics)
        return sums.finish(np.arange(first, last))

    if workers == 1:  # such as a GPU, which should not wait for pictures to be decoded
        return map(measure, blocks, one_ahead(read, blocks))
    return in_order(lambda block: measure(block, read(block)), blocks, workers)


def evaluation_batch_size(task: Task, wanted: int) -> int:
    """Samples that are scored at once: as many as are wanted, unless that is too many for the task."""
    return min(wanted, task.largest_batch or wanted)


def client_scores(totals: Totals, clients: IntArray, samples: IntArray) -> ClientScores:
    """The scores of these clients, without those that have nothing but padding."""
    counts, metrics = totals.finish(len(clients))
    scored = counts > 0
    return ClientScores(clients[scored], samples[scored], counts[scored], metrics, totals.classes(metrics))


def blocks_of_clients(samples: IntArray, batch_size: int) -> list[tuple[int, int]]:
    """Consecutive clients, by the first and one behind the last, whose samples together are some batches."""
    rows = _BATCHES_IN_BLOCK * batch_size
    group = (np.cumsum(samples) - samples) // rows  # by the row where a client begins
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(samples)]
    return [(first, last) for first, last in itertools.pairwise(bounds) if last > first]


def _measure(
    own: OwnTask,
    columns: Tensors,
    batch_size: int,
    device: torch.device,
    sums: SampleSums,
    metrics: Sequence[Metric],
) -> None:
    found = _measured(own, columns, batch_size, device, metrics)
    if device.type == "cuda":  # which goes on with the next batch while nobody waits for the last
        found = iter(list(found))
    for states in found:
        sums.add({name: to_array(name, t) for name, t in states.items()})


def _measured(
    own: OwnTask, columns: Tensors, batch_size: int, device: torch.device, metrics: Sequence[Metric]
) -> Iterator[Tensors]:
    """The states of one batch after the other."""
    rows = len(next(iter(columns.values())))
    for start in range(0, rows, batch_size):
        with torch.no_grad(), wide_dense_layers(device):
            some = {name: t[start : start + batch_size].to(device) for name, t in columns.items()}
            states = own.task.measure(own.params, own.task.batch(some), metrics)
        yield states


def to_array(name: str, values: Tensor) -> Array:
    """States as numbers to be added up."""
    return as_doubles(name, values.cpu().numpy())


def as_doubles(name: str, values: Array) -> Array:
    """States in double precision, in which they are added up; scores to be ranked as they are."""
    return values if name in (SCORES, RIGHT) else values.astype(np.float64)
