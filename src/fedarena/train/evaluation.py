"""Scoring one model on many clients in large batches that ignore where a client ends."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedarena.models import Task, Tensors
from fedarena.train.engine import ClientData, ClientScores, IntArray, Part
from fedarena.train.execution import in_order

Array = npt.NDArray[Any]


class OwnTask(threading.local):
    """A copy of a task for every thread: a module that is being called with other parameters serves one only."""

    def __init__(self, task: Task):
        self.task = copy.copy(task)
        self.task.module = copy.deepcopy(task.module).eval()


def evaluate_clients(
    task: Task,
    params: Tensors,
    data: ClientData,
    clients: IntArray,
    part: Part,
    batch_size: int = 64,
    workers: int = 1,
) -> ClientScores:
    """Per-client sums of every metric; memory is bounded by a few batches per worker, however many clients."""
    samples = data.counts(clients, part)
    own = OwnTask(task)

    def measure_block(block: tuple[int, int]) -> dict[str, Array]:
        return _measure(own.task, params, data.samples(clients[slice(*block)], part).columns, batch_size)

    counts = np.zeros(len(clients), dtype=np.int64)
    sums = {metric: np.zeros(len(clients)) for metric in task.metrics}
    blocks = _blocks(samples, rows=16 * batch_size)
    for (first, last), measured in zip(blocks, in_order(measure_block, blocks, workers), strict=True):
        owner = np.repeat(np.arange(last - first), samples[first:last])
        counts[first:last] = np.bincount(owner, measured["count"], minlength=last - first).astype(np.int64)
        for metric in task.metrics:
            sums[metric][first:last] = np.bincount(owner, measured[metric], minlength=last - first)
    scored = counts > 0  # a client may have nothing but padding
    return ClientScores(clients[scored], samples[scored], counts[scored], {m: s[scored] for m, s in sums.items()})


def _blocks(samples: IntArray, rows: int) -> list[tuple[int, int]]:
    """Consecutive clients whose samples together are about `rows`."""
    group = (np.cumsum(samples) - samples) // rows  # by the row where a client begins
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(samples)]
    return [(first, last) for first, last in itertools.pairwise(bounds) if last > first]


def _measure(task: Task, params: Tensors, columns: Mapping[str, Array], batch_size: int) -> dict[str, Array]:
    device = next(iter(params.values())).device
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in columns.items()}
    rows = len(next(iter(tensors.values())))
    pieces: dict[str, list[Array]] = {name: [] for name in (*task.metrics, "count")}
    with torch.no_grad():
        for start in range(0, rows, batch_size):
            batch = task.batch({n: t[start : start + batch_size].to(device) for n, t in tensors.items()})
            for name, values in task.measure(params, batch).items():
                pieces[name].append(values.double().cpu().numpy())
    return {name: np.concatenate(values) for name, values in pieces.items()}
