"""What an engine is: it executes the training of a cohort and the evaluation of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedarena.core.registry import Registry
from fedarena.metrics.totals import MetricScores
from fedarena.models import Tensors
from fedarena.train.algorithm import JOB, Algorithm, Work
from fedarena.train.optimizers import LocalTraining
from fedarena.train.tensors import Groups, map_groups

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]
Part = Literal["train", "validation", "test", "all"]


class ClientSamples(Protocol):
    """Samples of several clients, one after the other: client i has the rows ``offsets[i]:offsets[i + 1]``."""

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The samples' columns."""

    @property
    def offsets(self) -> IntArray:
        """Where each client's rows begin, and where the last one's end."""


class ClientData(Protocol):
    """Where an engine gets samples from; a federation is one."""

    def samples(self, clients: IntArray, part: Part) -> ClientSamples:
        """The samples of these clients, in this order."""

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples these clients have."""


@dataclass(frozen=True)
class Job:
    """One client's local training."""

    client: int
    round: int  # keys the order of its samples, so it is another one in each of a client's jobs
    share: float = 1.0  # of the work, for who has not the time for all of it


def steps_of(jobs: Sequence[Job], samples: IntArray, algorithm: Algorithm, local: LocalTraining) -> IntArray:
    """The local steps of every job."""
    return shared_steps(np.array([job.share for job in jobs]), samples, algorithm, local)


def shared_steps(
    shares: npt.NDArray[np.float64], samples: IntArray, algorithm: Algorithm, local: LocalTraining
) -> IntArray:
    """The local steps in these shares of whole jobs, rounded up, so that whoever has a sample takes a step."""
    steps = algorithm.local_steps(samples, local)
    if algorithm.leaves_out_layers:
        return steps
    taken: IntArray = np.ceil(np.round(steps * shares, 6)).astype(np.int64)
    return taken


def with_shares(
    memories: Mapping[int, Groups], algorithm: Algorithm, jobs: Sequence[Job], broadcast: Groups
) -> Mapping[int, Groups]:
    """What clients remember, and, if the algorithm has to know, in the group ``"job"`` which share each one does."""
    if not algorithm.leaves_out_layers:
        return memories
    first = algorithm.memory_init(broadcast)
    like = next(iter(broadcast["params"].values()))
    known: dict[int, Groups] = {}
    for job in jobs:
        memory = memories.get(job.client)
        share = torch.tensor(job.share, dtype=like.dtype, device=like.device)
        known[job.client] = {**(first if memory is None else memory), JOB: {"share": share}}
    return known


@dataclass(frozen=True)
class JobResults:
    """What one or more jobs produced. Every array and tensor has a row per client."""

    clients: IntArray
    update: Groups
    memory: Groups  # empty for algorithms without memory
    work: Work  # of arrays
    losses: npt.NDArray[np.float64]  # mean over the samples a client processed

    def row(self, row: int) -> JobResults:
        """What one of the jobs produced, in memory of its own."""

        def pick(groups: Groups) -> Groups:
            return map_groups(lambda t: t[row : row + 1].clone(), groups)

        amounts = {name: None if value is None else value[row : row + 1] for name, value in vars(self.work).items()}
        one = slice(row, row + 1)
        return JobResults(self.clients[one], pick(self.update), pick(self.memory), Work(**amounts), self.losses[one])


@dataclass(frozen=True)
class ClientScores:
    """How a model did on each of several clients, and on all of them together."""

    clients: IntArray
    samples: IntArray
    counts: IntArray  # predictions; more than samples when a sample holds several
    metrics: dict[str, MetricScores]

    def means(self, metric: str) -> npt.NDArray[np.float64]:
        """The metric of each client; NaN where a client has none."""
        return self.metrics[metric].values

    def columns(self) -> dict[str, npt.NDArray[np.float64]]:
        """What is kept of every client: its metrics, and of some the parts that they are made of."""
        kept = {name: scores.values for name, scores in self.metrics.items()}
        for scores in self.metrics.values():
            if scores.parts is not None:
                kept |= dict(zip(scores.metric.part_names, scores.parts.T, strict=True))
        return kept


class Engine(Protocol):
    """Executes local training and evaluation. Time and order of execution never change a result."""

    algorithm: Algorithm
    local: LocalTraining
    data: ClientData
    seed: int
    notes: list[str]  # what the user should know about how this engine works here
    plan: dict[str, Any]  # options that were left open and what they came to; kept with the run, for its last bits

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> Engine:
        """An engine of the same kind for another algorithm, way of training, and data."""

    def place(self, groups: Groups) -> Groups:
        """The same groups where this engine computes."""

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model, where and how this engine computes."""

    def train(self, jobs: Sequence[Job], broadcast: Groups, memories: Mapping[int, Groups]) -> Iterator[JobResults]:
        """Trains every job's client from the broadcast; yields results in an order that only the plan decides."""

    def train_and(
        self,
        digest: Callable[[JobResults], T],
        jobs: Sequence[Job],
        broadcast: Groups,
        memories: Mapping[int, Groups],
    ) -> Iterator[T]:
        """Like `train`, but yields what `digest` makes of the results, right where they were computed."""

    def evaluate(self, params: Tensors, clients: IntArray, part: Part) -> ClientScores:
        """Scores one model on these clients, each of which has at least one sample."""

    def evaluate_personal(
        self, broadcast: Groups, memories: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Scores every one of these clients with its own model, for an algorithm that `personalizes`."""


ENGINES: Registry[Callable[..., Engine]] = Registry("engine")
