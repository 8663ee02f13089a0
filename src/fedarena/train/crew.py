"""An engine whose shards are trained by a crew of workers, on many cores or machines.

The plan is that of the cohort engine, and so are the bits: who computes a shard, and how many there are to do so, is
nobody's business but the crew's. What a crew is made of is not known here; without one, all is done in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.metrics.totals import MetricStates, Totals
from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm
from fedarena.train.cohort import CohortEngine, Cohorts
from fedarena.train.drawing import batch_width
from fedarena.train.engine import ENGINES, ClientData, ClientScores, OtherTest, Part, steps_in_shares
from fedarena.train.evaluation import (
    blocks_of_clients,
    client_scores,
    evaluation_batch_size,
    measure_blocks,
)
from fedarena.train.hardware import DeviceName, DtypeName, Precision
from fedarena.train.jobs import IntArray, JobArrays
from fedarena.train.lane_pool import Convolutions, Kernels, Plan
from fedarena.train.optimizers import LocalTraining
from fedarena.train.schedule import deal_out
from fedarena.train.shards import Shard
from fedarena.train.tensors import Groups
from fedarena.train.unwritten_training import Dense

# On a GPU, where one machine alone would train all clients at once. A constant, so that all machines get the same bits.
GPU_SHARDS = 32
_FEWEST_CLIENTS = 4  # in a shard of a GPU
_BLOCKS_AT_ONCE = 4  # of an evaluation, which take about as long as a shard
_MOST = 65536


class Crew(Protocol):
    """Workers elsewhere, each of which has built the same run."""

    def collect(self, shards: Sequence[Shard], kept: Sequence[Groups]) -> Iterator[Any]:
        """What is left of every shard, in their order, when its clients are trained and their updates added up.

        `kept` is what the server keeps for transforms. See `fedarena.transforms.path.train_and_collect`.
        """

    def measure(
        self, params: Tensors, clients: IntArray, part: Part, blocks: Sequence[Sequence[tuple[int, int]]], other: bool
    ) -> Iterator[list[MetricStates]]:
        """The states of blocks of clients (see `measure_blocks`), some blocks at a time, in their order.

        With `other`, in the other test that the run has.
        """

    def measures(self, other: OtherTest | None) -> bool:
        """Whether workers know a test."""

    def score_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], chunks: Sequence[IntArray], part: Part, round: int
    ) -> Iterator[MetricStates]:
        """The states of chunks of clients with their own models, in their order; positions are within a chunk."""

    def describe(self) -> str:
        """Who works, and how much each of them has done, for people."""


@ENGINES.register("ray")
class RayEngine(CohortEngine):
    """Has shards trained by `workers` of a Ray cluster, each of which has a GPU or some `cores`.

    All bits are those of ``engine=cohort`` on such a device, whatever the number of workers, and whoever fails. Without
    an `address` (``auto``, or that of a cluster's head, ``host:port``) a cluster is started on this machine for as long
    as the run goes on. By default there are as many workers as find room; with ``workers=0`` this process does
    everything itself. A worker that does not compute the same bits as this machine is refused, unless `mixed_hardware`
    allows it. On a GPU, a cohort is divided into `shards`; all other options are those of ``engine=cohort``.
    """

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        data: ClientData,
        seed: int,
        *,
        address: str | None = None,
        workers: int | None = None,
        cores: int = 1,
        shards: int | None = None,
        mixed_hardware: bool = False,
        device: DeviceName = "auto",
        plan: Plan | None = None,
        lanes: int | None = None,
        threads: int = 1,
        dtype: DtypeName = "float32",
        precision: Precision = "full",
        compile: bool = True,
        dense: Dense | None = None,
        convolutions: Convolutions | None = None,
        cohorts: Cohorts | None = None,
        kernels: Kernels | None = None,
        sample_bytes: int | None = None,
    ):
        for name, amount, least in (("workers", workers, 0), ("cores", cores, 1), ("shards", shards, 1)):
            if amount is not None and not least <= amount <= _MOST:
                raise BadInputError(f"engine.{name} must be from {least} to {_MOST}, not {amount}")
        self.shards_of_cohort = shards
        super().__init__(
            *(task, algorithm, local, data, seed),
            device=device,
            plan=plan,
            lanes=lanes,
            threads=threads,
            dtype=dtype,
            precision=precision,
            compile=compile,
            dense=dense,
            convolutions=convolutions,
            cohorts=cohorts,
            kernels=kernels,
            sample_bytes=sample_bytes,
        )
        self.crew: Crew | None = None
        self._work_beside_crew: list[Callable[[], None]] = []
        self.address, self.crew_size, self.cores = address, workers, cores
        self.mixed_hardware = mixed_hardware
        if self.hardware.is_gpu and shards is None:
            self.shards_of_cohort = GPU_SHARDS
        self.choices = {**self.choices, "shards": self.shards_of_cohort}

    def expect_varying_cohorts(self, usual: int) -> None:
        """Where a cohort is divided, every part has a width of its own."""
        if self.shards_of_cohort is None:
            super().expect_varying_cohorts(usual)

    @property
    def trains_one_at_a_time(self) -> bool:
        """Whether clients cannot be trained together, and a process can do no more than one at a time."""
        return self._fallback is not None

    def divide(self, jobs: JobArrays, broadcasts: Mapping[int, Groups], states: Mapping[int, Groups]) -> list[Shard]:
        """The same shards as without a crew, but which batches clients train on is left to those who train them."""
        if self.crew is None:
            return super().divide(jobs, broadcasts, states)
        if self._fallback is not None:  # which adds up job after job, wherever they are
            width = self.local.batch_size
            return [Shard(jobs.take([place]), broadcasts, states, width) for place in range(len(jobs))]
        shards: list[Shard] = []
        for some in self._trainable_together(jobs):
            samples = self.data.counts(some.clients, "train")
            local = self._training_of(some)
            width = batch_width(int(np.max(local.batch_size)), int(samples.max(initial=1)))
            losses = self._start_losses(some, broadcasts)
            steps = steps_in_shares(some.shares, samples, self.algorithm, local)
            for positions in self._shards(steps):
                of_shard = None if losses is None else losses[positions]
                shards.append(Shard(some.take(positions), broadcasts, states, width, of_shard))
        return shards

    def do_meanwhile(self, other_work: Callable[[], None]) -> None:
        """Has `other_work` done in every round while the crew is busy, or a GPU of this process."""
        if self.crew is None:
            super().do_meanwhile(other_work)
        else:  # kept apart: threads of this process may train as well, such as models that are fine-tuned
            self._work_beside_crew.append(other_work)

    def while_crew_works(self) -> None:
        """Does what there is to do while nobody could go on with the round."""
        for work in self._work_beside_crew:
            work()

    def plan_ahead(self, jobs: JobArrays) -> None:
        """A crew draws batches itself."""
        if self.crew is None:
            super().plan_ahead(jobs)

    def count_steps(self, shard: Shard) -> int:
        """How many gradient steps a shard takes: how long it takes compared with others."""
        jobs = shard.jobs
        samples = self.data.counts(jobs.clients, "train")
        return int(steps_in_shares(jobs.shares, samples, self.algorithm, self._training_of(jobs)).sum())

    def _shards(self, steps: IntArray) -> list[IntArray]:
        if self.shards_of_cohort is None:
            return super()._shards(steps)
        shards = min(self.shards_of_cohort, max(1, len(steps) // _FEWEST_CLIENTS))
        return [np.arange(len(steps))] if shards == 1 else deal_out(steps, shards)

    def evaluate(self, params: Tensors, clients: IntArray, part: Part, other: OtherTest | None = None) -> ClientScores:
        """Scores one model on these clients; the crew shares them out among its workers."""
        if self.crew is None or not self.crew.measures(other):
            return super().evaluate(params, clients, part, other)
        data, metrics = (self.data, self.task.metrics) if other is None else (other.data, other.metrics)
        samples = data.counts(clients, part)
        blocks = blocks_of_clients(samples, evaluation_batch_size(self.task, self._evaluation_batch_size))
        if len(blocks) <= _BLOCKS_AT_ONCE:
            return super().evaluate(params, clients, part, other)
        some = [blocks[start : start + _BLOCKS_AT_ONCE] for start in range(0, len(blocks), _BLOCKS_AT_ONCE)]
        totals = Totals(metrics)
        for measured in self.crew.measure(params, clients, part, some, other is not None):
            for states in measured:
                totals.add(states)
        return client_scores(totals, clients, samples)

    def measure(
        self,
        params: Tensors,
        clients: IntArray,
        part: Part,
        blocks: Sequence[tuple[int, int]],
        other: OtherTest | None = None,
    ) -> list[MetricStates]:
        """What a worker does of an evaluation: the states of some blocks of these clients."""
        self.hardware.set_up()
        self.task.module.eval()
        data, metrics = (self.data, None) if other is None else (other.data, other.metrics)
        batch_size = self._evaluation_batch_size
        return list(measure_blocks(self.task, params, data, clients, part, blocks, batch_size, 1, metrics))

    def evaluate_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Scores every one of these clients with its own model; the crew shares them out among its workers."""
        if self.crew is None or self.algorithm.fine_tuning is not None:
            return super().evaluate_personal(broadcast, states, clients, part, round)
        self.hardware.set_up()
        return self._personal.evaluate(broadcast, states, clients, part, round, self.crew.score_personal)

    def score_personal(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> MetricStates:
        """What a worker does of it: the states of a chunk of clients."""
        self.hardware.set_up()
        return self._personal.score_chunk(broadcast, states, clients, part, round)
