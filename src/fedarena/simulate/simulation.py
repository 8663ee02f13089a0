"""What a simulation is made of, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedarena.metrics import PERSONAL
from fedarena.models import Task, Tensors
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.memories import Memories
from fedarena.simulate.phones import Leaving, Load, Phones
from fedarena.simulate.protocols import Clock, Ideal, Protocol
from fedarena.simulate.selectors import Selector, Uniform
from fedarena.simulate.world import World
from fedarena.train import Algorithm, Engine, Groups, Work, count_bytes
from fedarena.train.batches import count_processed
from fedarena.train.engine import IntArray, Part, shared_steps

if TYPE_CHECKING:
    from fedarena.fleet import ClientFleet


@dataclass(frozen=True)
class ClockOptions:
    """What holds for virtual time whatever the protocol."""

    leaving: Leaving = "abort"  # what a phone that leaves does with its job
    overhead_seconds: float = 0.0  # what the server takes before every round
    crash_rate: float = 0.0  # share of the jobs that fail at a random moment
    start_seconds: float = 0.0
    limit_seconds: float = np.inf  # the run ends with the round in which this much time has passed
    model_bytes: int | None = None  # as if the model had this size; whatever else is sent scales with it


@dataclass(frozen=True)
class Simulation:
    """Everything that does not change while a run goes on."""

    seed: int
    rounds: int
    cohort: int
    task: Task
    algorithm: Algorithm
    engine: Engine
    training_clients: IntArray  # those who may be invited, sorted; each has a training sample
    evaluation_clients: IntArray  # each has a sample of the evaluated part
    evaluation_part: Part
    evaluate_every: int  # rounds; the first and the last model are always evaluated
    flops_per_sample: float
    client_ids: Callable[[Sequence[int]], list[str]]
    selector: Selector = field(default_factory=Uniform)
    protocol: Protocol = field(default_factory=Ideal)
    fleet: ClientFleet | None = None  # None: phones are infinitely fast and always there
    clock: ClockOptions = field(default_factory=ClockOptions)
    compute_factor: float = 1.0  # how much more a client computes on a sample than for the model's loss and gradient
    fit_clients: IntArray | None = None  # on whose training samples the model is evaluated as well
    sends: bool = True  # whether models and updates travel; they do not if the server itself trains

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: the task's metrics and their parts, also of personal models if the algorithm has such."""
        names = tuple(name for metric in self.task.metrics for name in (metric.name, *metric.part_names))
        return names + tuple(PERSONAL + name for name in names if self.algorithm.personalizes)

    def is_over(self, round: int, clock: Clock) -> bool:
        """Whether this was the last round."""
        return round >= self.rounds or clock.time - self.clock.start_seconds >= self.clock.limit_seconds

    def evaluates(self, round: int, clock: Clock) -> bool:
        """Whether the model is evaluated after this round."""
        return round % self.evaluate_every == 0 or self.is_over(round, clock)

    def load(self) -> Load:
        """What a job asks of a phone."""
        params = self.engine.initial_params()
        down, up = transferred_bytes(self.algorithm, params) if self.sends else (0, 0)

        def possible_shares(clients: IntArray, wanted: FloatArray) -> FloatArray:
            samples = self.engine.data.counts(clients, "train")
            shares: FloatArray = self.algorithm.possible_shares(wanted, samples, params)
            return shares

        partial_work = self.algorithm.partial_work
        if partial_work is not None and self.protocol.overlaps:  # nobody waits for those who began at the same time
            partial_work = replace(partial_work, whole_jobs=None)
        return Load(
            self.sent_bytes(down),
            self.sent_bytes(up),
            self.flops_per_sample,
            self.processed_samples,
            self.compute_factor,
            partial_work,
            possible_shares,
        )

    def sent_bytes(self, size: int) -> int:
        """What counts for so many bytes, where the model is taken to be of another size than it is."""
        if self.clock.model_bytes is None:
            return size
        return round(size * self.clock.model_bytes / count_bytes({"params": self.engine.initial_params()}))

    def processed_samples(self, clients: IntArray, shares: FloatArray) -> IntArray:
        """How many samples these clients compute gradients on in these shares of whole jobs."""
        samples, local = self.engine.data.counts(clients, "train"), self.engine.local
        return count_processed(samples, shared_steps(shares, samples, self.algorithm, local), local.batch_size)

    def world(self, current_loss: Callable[[IntArray], FloatArray] | None) -> World:
        """The clients and their phones; `current_loss` is for selectors that want to know it."""
        clock, protocol = self.clock, self.protocol
        phones = Phones(
            self.fleet,
            self.load(),
            self.seed,
            protocol.ignores_availability,
            clock.leaving,
            clock.crash_rate,
            protocol.deadline_seconds,
        )
        return World(
            seed=self.seed,
            clients=self.training_clients,
            samples=lambda clients: self.engine.data.counts(clients, "train"),
            selector=self.selector,
            phones=phones,
            overhead_seconds=clock.overhead_seconds,
            current_loss=current_loss,
        )


@dataclass(frozen=True)
class Snapshot:
    """What is needed to go on after a round."""

    round: int
    state: Groups
    memories: Memories = field(default_factory=Memories)
    clock: Clock = field(default_factory=Clock)
    broadcasts: Mapping[int, Groups] = field(default_factory=dict)  # older ones, from which jobs are still training


def transferred_bytes(algorithm: Algorithm, params: Tensors) -> tuple[int, int]:
    """What a client downloads and uploads; the size of an update shows in one that changes nothing."""
    with torch.no_grad():
        broadcast = algorithm.broadcast(algorithm.server_init(params))
        memory = algorithm.memory_init(broadcast)
        one = torch.ones(())
        work = Work(one, one, one, one if algorithm.needs_start_loss else None)
        update, _ = algorithm.client_update(algorithm.local_start(broadcast, memory), broadcast, memory, work)
    return count_bytes(algorithm.download(broadcast)), count_bytes(update)
