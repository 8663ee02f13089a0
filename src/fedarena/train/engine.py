"""What an engine is: it executes the training of a cohort and the evaluation of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fedarena.core.registry import Registry
from fedarena.metrics import Metric
from fedarena.metrics.classes import ClassScores
from fedarena.metrics.totals import MetricScores
from fedarena.models import Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.jobs import IntArray as IntArray
from fedarena.train.jobs import Job, JobArrays
from fedarena.train.late import Numbers
from fedarena.train.optimizers import LocalTraining
from fedarena.train.shards import Shard, T
from fedarena.train.tensors import Groups

if TYPE_CHECKING:
    from fedarena.train.validation import Validated

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


def steps_in_shares(
    shares: npt.NDArray[np.float64],
    samples: IntArray,
    algorithm: Algorithm,
    local: LocalTraining,
) -> IntArray:
    """The local steps in these shares of whole jobs, rounded up, so that whoever has a sample takes a step.

    Jobs may have numbers of steps and sizes of batches of their own.
    """
    steps = algorithm.local_steps(samples, local)
    if algorithm.leaves_out_layers:
        return steps
    taken: IntArray = np.ceil(np.round(steps * shares, 6)).astype(np.int64)
    return taken


@dataclass(frozen=True)
class JobResults:
    """What one or more jobs produced. Every array and tensor has a row per job."""

    jobs: JobArrays
    update: Groups
    client_states: Groups  # what clients keep; empty for algorithms without such
    work: Work  # of arrays
    losses: Numbers  # mean over the samples a client processed
    validated: Validated | None = None  # how good their models are, if somebody asks

    @property
    def clients(self) -> IntArray:
        """Whose jobs they were."""
        return self.jobs.clients


@dataclass(frozen=True)
class ClientScores:
    """How a model did on each of several clients, and on all of them together."""

    clients: IntArray
    samples: IntArray
    counts: IntArray  # predictions; more than samples when a sample holds several
    metrics: dict[str, MetricScores]
    classes: ClassScores | None = None  # how it did on every class, where metrics tell

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


@dataclass(frozen=True)
class OtherTest:
    """Scores of something else than the task: other metrics, of other samples of the same clients."""

    data: ClientData
    metrics: Sequence[Metric]


class Engine(Protocol):
    """Executes local training and evaluation. Time and order of execution never change a result."""

    algorithm: Algorithm
    local: LocalTraining
    data: ClientData
    seed: int
    notes: list[str]  # what the user should know about how this engine works here
    choices: dict[str, Any]  # options that were left open and what they came to; kept with the run, for its last bits

    def validate_on(self, part: Part, compare: bool) -> None:
        """From now on, models of clients are scored on their samples of a part when they are trained.

        With `compare`, also what they were before.
        """

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> Engine:
        """An engine of the same kind for another algorithm, way of training, and data."""

    def place(self, groups: Groups) -> Groups:
        """The same groups where this engine computes."""

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model, where and how this engine computes."""

    def divide(self, jobs: JobArrays, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]) -> list[Shard]:
        """The jobs as shards that can be trained independently, by a plan that does not depend on who does it.

        `broadcasts` has what every version of the server sent, and `states` what clients have kept.
        """

    def train(self, shard: Shard) -> Iterator[JobResults]:
        """Trains the clients of a shard; yields results in an order that only the plan decides."""

    def execute(self, shards: Sequence[Shard], work: Callable[[Shard], T]) -> Iterator[T]:
        """What `work` makes of every shard, in their order; several may be worked on at the same time."""

    def evaluate(self, params: Tensors, clients: IntArray, part: Part, other: OtherTest | None = None) -> ClientScores:
        """Scores one model on these clients, each of which has at least one sample, by the task or an `other` test."""

    def evaluate_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Scores every one of these clients with its own model, for an algorithm that `personalizes`."""

    def personal_model(
        self, broadcast: Groups, states: Mapping[int, Groups], client: int, part: Part, round: int
    ) -> Tensors:
        """The model that a client is scored with when it is scored with its own."""


def train_jobs(
    engine: Engine, jobs: Sequence[Job], broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]
) -> Iterator[JobResults]:
    """The results of all jobs, shard after shard."""
    shards = engine.divide(JobArrays.of(jobs), broadcasts, states)
    for results in engine.execute(shards, lambda shard: [*engine.train(shard)]):
        yield from results


ENGINES: Registry[Callable[..., Engine]] = Registry("engine", takes=("task", "algorithm", "local", "data", "seed"))
