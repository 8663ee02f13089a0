"""Which plan trains a model's clients faster on this GPU, found out by trying both for a few steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fedarena.models import Task
from fedarena.train.engine import train_jobs
from fedarena.train.jobs import IntArray, Job
from fedarena.train.lane_pool import Plan

if TYPE_CHECKING:
    from fedarena.train.cohort import CohortEngine

STEPS_TRIED = 3
# The plan that sizes suggest stays unless the other one is that much faster, so that chance rarely decides.
_CLEARLY_FASTER = 1.2
# About so many times faster steps of all lanes are when they are compiled (1.4 to 2.2 on an H200), which for a large
# model takes minutes to find out.
_BY_COMPILING = 1.7


@dataclass(frozen=True)
class ExampleSamples:
    """Samples of several clients, one after the other."""

    columns: Mapping[str, npt.NDArray[Any]]
    offsets: IntArray


class ExampleClients:
    """Clients who all have the same made-up samples."""

    def __init__(self, task: Task, samples: int):
        self._columns = {name: t.cpu().numpy() for name, t in task.example(samples).items()}
        self._samples = samples

    def counts(self, clients: IntArray, part: str) -> IntArray:
        """As many for each."""
        return np.full(len(clients), self._samples)

    def samples(self, clients: IntArray, part: str) -> ExampleSamples:
        """The same for each."""
        columns = {name: np.concatenate([values] * len(clients)) for name, values in self._columns.items()}
        return ExampleSamples(columns, np.arange(len(clients) + 1) * self._samples)


def seconds_of_step(engine: CohortEngine) -> float:
    """How long a step of one client takes when all lanes are at work; infinite if there is not enough memory."""
    jobs = [Job(client, 1) for client in range(engine.lanes)]
    broadcast = engine.place(engine.algorithm.broadcast(engine.algorithm.server_init(engine.initial_params())))
    try:
        for _ in range(2):  # the first time, programs are made
            _finish(engine.device)
            began = time.perf_counter()
            for _ in train_jobs(engine, jobs, {0: broadcast}, {}):
                pass
            _finish(engine.device)
    except torch.OutOfMemoryError:
        return float("inf")
    return (time.perf_counter() - began) / (STEPS_TRIED * len(jobs))


def faster_plan(by_size: Plan, compile: bool, make_engine: Callable[[Plan], CohortEngine]) -> Plan:
    """The plan that sizes suggest, or the other one if it is clearly faster.

    `make_engine` gives an engine with a plan that compiles nothing, even if steps of all lanes shall be compiled later.
    """
    apart, together = (seconds_of_step(make_engine(plan)) for plan in ("apart", "together"))
    if compile:
        together /= _BY_COMPILING
    most = apart * (1 / _CLEARLY_FASTER if by_size == "apart" else _CLEARLY_FASTER)  # that `together` may take
    return "apart" if together > most else "together"


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
