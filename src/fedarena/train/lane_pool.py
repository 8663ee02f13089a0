"""Lanes of an engine: their tensors, which stay where they are, and programs that are bound to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.finished_lanes import FinishedLanes, can_be_kept
from fedarena.train.jobs import IntArray, hyperparameters_in
from fedarena.train.optimizers import LocalTraining, optimizer_init
from fedarena.train.program import Batch, Changing, Given, Program, StepPrograms, StepsProgram
from fedarena.train.resident import SampleSource
from fedarena.train.streams import LaneStream
from fedarena.train.tensors import Groups, innermost_channels, map_groups
from fedarena.train.validation import Validated

# All lanes in one computation; the same, with clients who have far more to do than others in another one beside it; or
# each lane in one of its own, which a GPU does beside the others.
Plan = Literal["together", "beside", "apart"]
# Convolutions of all lanes as products of patches, or by kernels of our own where those are faster.
Convolutions = Literal["products", "kernels"]
# On a CPU: our own for what they are faster at, made by the machine's C compiler, or a library's for all.
Kernels = Literal["compiled", "library"]
_ANY_NUMBER = 0  # of steps that a program takes at once
LOSS_SUMS = ""  # a name that no parameter has


class LaneEngine(Protocol):
    """What lanes need from their engine."""

    algorithm: Algorithm
    local: LocalTraining
    seed: int
    lanes: int
    usual_width: int | None  # that cohorts are filled up to, of whom none is larger; None: each has its own
    plan: Plan
    convolutions: Convolutions
    kernels: Kernels
    device: torch.device
    compile: bool
    draws: bool  # whether somebody may draw random numbers by the key of a step
    exact_batches: bool  # whether batches must not be filled up with samples that do not count
    innermost: bool  # whether pictures and weights may have their channels innermost in memory
    asks_about_jobs: bool  # whether the algorithm may want to know something about a job
    programs: StepPrograms
    training_samples: SampleSource

    def meanwhile(self) -> None:
        """Does what there is to do while the device is busy."""

    def place(self, groups: Groups) -> Groups:
        """The same groups where this engine computes."""

    def start_params(self, given: Given, clients: int) -> Tensors:
        """What so many clients start from; to be read only."""

    def updates(self, params: Tensors, given: Given, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and what they keep."""

    def validated(self, params: Tensors, given: Given, clients: IntArray) -> Validated | None:
        """How good the models of finished clients (rows of `params`) are, if somebody asks."""


class Lanes:
    """The tensors of a number of lanes; they stay where they are, so that programs can be bound to them."""

    def __init__(
        self,
        engine: LaneEngine,
        count: int,
        like: Given,
        stream: LaneStream | None = None,
        keep_finished: bool = False,
    ):
        """What is captured for them may have a `stream` of its own, and put lanes aside that have finished."""
        self.count = count
        self._programs, self._compile, self._stream = engine.programs, engine.compile, stream

        def empty(t: Tensor) -> Tensor:
            return torch.zeros_like(t[:1]).repeat(count, *[1] * (t.dim() - 1))

        self.given = Given(
            map_groups(empty, like.states),
            map_groups(torch.clone if like.shared else empty, like.broadcast),
            {name: empty(t) for name, t in like.jobs.items()},
            like.shared,
        )
        params = {name: p.clone() for name, p in engine.start_params(self.given, count).items()}
        # Libraries want the weights of convolutions like that, and copies of them are fast.
        if engine.plan == "apart" and engine.innermost:
            params = {name: innermost_channels(p) for name, p in params.items()}
            self.given = replace(self.given, broadcast=map_groups(self._innermost, self.given.broadcast))
        zeros = next(iter(params.values())).new_zeros(count)
        optimizer = optimizer_init(engine.local, params, hyperparameters_in(like.jobs))
        self.changing = Changing(params, optimizer, torch.ones_like(zeros), zeros)
        self.finished: FinishedLanes | None = None
        kept = {**params, LOSS_SUMS: self.changing.loss_sums}
        if keep_finished and can_be_kept(kept):
            self.finished = FinishedLanes(kept, self.changing.numbers)
        self._one: dict[tuple[int, int, bool], Program] = {}
        self._several: dict[tuple[int, int, bool, int], StepsProgram] = {}

    def _innermost(self, broadcast: Tensor) -> Tensor:
        return innermost_channels(broadcast.unsqueeze(0))[0] if self.given.shared else innermost_channels(broadcast)

    def step(self, width: int, batch: Batch, frequent: bool) -> None:
        """One gradient step in each of the first `width` lanes; those that are `frequent` are worth being compiled."""
        form = (width, batch.mask.shape[-1], frequent)
        if form not in self._one:
            lanes, read, compile = self.changing.first(width), self.given.first(width), frequent and self._compile
            after = self._keep_finished(width)
            self._one[form] = self._programs.bind(lanes, read, batch, compile=compile, stream=self._stream, after=after)
        self._one[form](batch)

    def steps(self, width: int, batches: Batch, some: slice, frequent: bool) -> None:
        """Some of the steps whose batches these are, without a pause on a GPU, and without Python on a CPU."""
        times = _ANY_NUMBER if batches.packed is None else some.stop - some.start
        form = (width, batches.mask.shape[-1], frequent, times)
        if form not in self._several:
            self._several[form] = self._bind_several(width, batches.at(some.start), frequent, times)
        self._several[form](batches, some)

    def _bind_several(self, width: int, example: Batch, frequent: bool, times: int) -> StepsProgram:
        lanes, read = self.changing.first(width), self.given.first(width)
        if times == _ANY_NUMBER:
            return self._programs.bind_any_number(lanes, read, example)
        compile, after = frequent and self._compile, self._keep_finished(width)
        return self._programs.bind_several(
            lanes, read, example, compile=compile, stream=self._stream, times=times, after=after
        )

    def _keep_finished(self, width: int) -> Callable[[int], None] | None:
        """What there is to do after a step of so many lanes."""
        finished = self.finished
        return None if finished is None else lambda _: finished.keep(self.changing.numbers, width)

    def step_exactly(self, width: int, batch: Batch, samples: IntArray, frequent: bool) -> None:
        """The same for batches without padding, of so many `samples` each (0: the lane is idle).

        Full batches are one computation; smaller ones, such as the last of an epoch, another one for every size.
        """
        full = batch.mask.shape[1]
        smaller = [size for size in np.unique(samples).tolist() if 0 < size < full]
        lanes = [torch.from_numpy(np.flatnonzero(samples == size)).to(batch.mask.device) for size in smaller]
        before = [self.changing.of(some) for some in lanes]
        if (samples == full).any():
            self.step(width, batch, frequent)  # also where a batch is smaller, which is put right below
        for some, size, changing in zip(lanes, smaller, before, strict=True):
            changed = self._programs.take(changing, self.given.of(some), batch.of(some, size))
            self.changing.put(some, changed)


class Counted(Protocol):
    """A number of lanes of some kind."""

    count: int


L = TypeVar("L", bound=Counted)


class LanePool:
    """Lanes that are not in use at the moment; a worker borrows some and gives them back."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Any]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, kind: Any, count: int, make: Callable[[], L]) -> Iterator[L]:
        """At least `count` lanes of a kind; what is in them is left over from before."""
        with self._lock:
            free = self._free.setdefault(kind, [])
            lanes = free.pop() if free else None
        if lanes is None or lanes.count < count:
            lanes = make()
        yield lanes
        with self._lock:
            free.append(lanes)
