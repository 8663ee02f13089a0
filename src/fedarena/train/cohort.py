"""The cohort engine: many clients train at once, as rows of stacked tensors.

Parameters are stacked ``[lanes, …]`` and one call takes a gradient step in every lane (`torch.func.vmap`). Which client
is in which lane when is the business of the `Schedule`. Results equal those of the reference engine up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedarena.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ENGINES, ClientData, ClientScores, IntArray, Job, JobResults, Part, steps_of
from fedarena.train.evaluation import evaluate_clients
from fedarena.train.execution import StepRunner, available_cores, in_order
from fedarena.train.lanes import LaneTraining
from fedarena.train.layers import LayerTracker, count_output_bytes
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step
from fedarena.train.personal import PersonalEvaluation
from fedarena.train.reference import ReferenceEngine
from fedarena.train.tensors import Groups, map_groups

# Found by measuring: with more than this in use, wider is slower. A constant, so that all machines get the same bits.
_CACHE_BYTES = 1 << 22
_MOST_LANES = 256
# How many clients a worker trains in its lanes before it reports: many balance the lanes, few need less memory, and
# there should be shards for several workers.
_CLIENTS_PER_LANE = 4
_SHARDS_FOR_WORKERS = 16


@ENGINES.register("cohort")
class CohortEngine:
    """Trains many clients at once: `lanes` in one computation (by default, as suits the model), on all cores."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        data: ClientData,
        seed: int,
        *,
        lanes: int | None = None,
        workers: int | None = None,
        threads: int = 1,
        dtype: Literal["float32", "float64"] = "float32",
    ):
        if not 1 <= threads <= 1024:
            raise BadInputError(f"engine.threads must be from 1 to 1024, not {threads}")
        for name, amount in (("lanes", lanes), ("workers", workers)):
            if amount is not None and not 1 <= amount <= 65536:
                raise BadInputError(f"engine.{name} must be from 1 to 65536, not {amount}")
        self.task, self.algorithm, self.local, self.data, self.seed = task, algorithm, local, data, seed
        self.threads = threads
        self.notes: list[str] = []
        task.module.to(getattr(torch, dtype))
        self.lanes = lanes if lanes is not None else _suitable_lanes(task, local.batch_size)
        self.plan: dict[str, Any] = {"lanes": self.lanes}
        self.workers = workers if workers is not None else available_cores()
        self.step = StepRunner(self._step)
        self._fallback: ReferenceEngine | None = None
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self._fallback = ReferenceEngine(task, algorithm, local, data, seed, threads=threads, dtype=dtype)
            self.notes.append(f"Clients train one at a time, because {obstacle}")
        self._dtype = dtype
        self._personal = PersonalEvaluation(self, self.lanes if obstacle is None else None, self.workers)

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> CohortEngine:
        """An engine of the same kind for another algorithm, way of training, and data."""
        options = {"lanes": self.lanes, "workers": self.workers, "threads": self.threads}
        return CohortEngine(self.task, algorithm, local, data, seed, **options, dtype=self._dtype)

    def place(self, groups: Groups) -> Groups:
        """The groups as they are."""
        return groups

    def initial_params(self) -> Tensors:
        """The parameters of the freshly built model."""
        return {name: p.detach().clone() for name, p in self.task.module.named_parameters()}

    def train(self, jobs: Sequence[Job], broadcast: Groups, memories: Mapping[int, Groups]) -> Iterator[JobResults]:
        """Trains every job's client from the broadcast; results come as clients finish."""
        if self._fallback is not None:
            yield from self._fallback.train(jobs, broadcast, memories)
            return
        torch.set_num_threads(self.threads)
        self.task.module.train()
        clients = np.array([job.client for job in jobs])
        start_losses = None
        if self.algorithm.needs_start_loss:
            start_losses = self.evaluate(broadcast["params"], clients, "train").means("loss")
            self.task.module.train()

        def train_shard(shard: IntArray) -> list[JobResults]:
            torch.set_num_threads(self.threads)  # of this thread
            losses = None if start_losses is None else start_losses[shard]
            with torch.no_grad():
                return list(LaneTraining(self, [jobs[i] for i in shard], broadcast, memories, losses).run())

        for results in in_order(train_shard, self._shards(jobs, clients), self.workers):
            yield from results

    def _shards(self, jobs: Sequence[Job], clients: IntArray) -> list[IntArray]:
        """Clients that train together, those with most to do first. Part of the plan: it does not depend on workers."""
        steps = steps_of(jobs, self.data.counts(clients, "train"), self.algorithm, self.local)
        longest_first = np.argsort(-steps, kind="stable")
        size = max(self.lanes, min(_CLIENTS_PER_LANE * self.lanes, -(-len(clients) // _SHARDS_FOR_WORKERS)))
        return [longest_first[start : start + size] for start in range(0, len(clients), size)]

    def evaluate(self, params: Tensors, clients: IntArray, part: Part) -> ClientScores:
        """Scores one model on these clients."""
        torch.set_num_threads(self.threads)
        self.task.module.eval()
        return evaluate_clients(self.task, params, self.data, clients, part, workers=self.workers)

    def evaluate_personal(
        self, broadcast: Groups, memories: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Scores every one of these clients with its own model."""
        torch.set_num_threads(self.threads)
        return self._personal.evaluate(broadcast, memories, clients, part, round)

    def _find_obstacle(self) -> str | None:
        """Why this model or algorithm cannot train many clients at once, found out by trying."""
        if self.algorithm.trains_freely:
            return f"{type(self.algorithm).__name__} has a training loop of its own"
        broadcast = self.algorithm.broadcast(self.algorithm.server_init(self.initial_params()))
        memory = map_groups(lambda t: torch.stack([t, t]), self.algorithm.memory_init(broadcast))
        columns = {name: torch.stack([values, values]) for name, values in self.task.example(2).items()}
        self.task.module.train()
        with torch.no_grad(), LayerTracker(self.task.module) as tracker:
            try:
                params = self.start_params(broadcast, memory, 2)
                state = optimizer_init(self.local, params)
                self._step(params, state, torch.ones(2), columns, torch.ones(2, 2), memory, broadcast)
            except Exception as error:  # whatever a layer or a hook may raise when it is given many clients
                reason = str(error).strip().partition("\n")[0].partition(". ")[0]
                return f"{tracker.present} cannot be vectorized ({type(error).__name__}: {reason})"
        return None

    def _step(
        self,
        params: Tensors,
        optimizer_state: Groups,
        numbers: Tensor,
        columns: Tensors,
        mask: Tensor,
        memory: Groups,
        broadcast: Groups,
    ) -> tuple[Tensors, Groups, Tensor]:
        """One gradient step in every lane; everything but the broadcast has a row per lane."""

        def client_step(
            params: Tensors, state: Groups, number: Tensor, columns: Tensors, mask: Tensor, memory: Groups
        ) -> tuple[Tensors, Groups, Tensor]:
            batch = {**self.task.batch(columns), "mask": mask}

            def loss_of(params: Tensors) -> Tensor:
                return self.algorithm.local_loss(self.task, params, batch, broadcast, memory)

            grad, loss = grad_and_value(loss_of)(params)
            grad = self.algorithm.local_gradient(grad, params, broadcast, memory)
            params, state = optimizer_step(self.local, params, grad, state, number)
            return params, state, loss

        new: tuple[Tensors, Groups, Tensor] = vmap(client_step)(params, optimizer_state, numbers, columns, mask, memory)
        return new

    def start_params(self, broadcast: Groups, memory: Groups, clients: int) -> Tensors:
        """What so many clients with these memories start from, in tensors that may be changed."""

        def local_start(memory: Groups) -> Tensors:
            return self.algorithm.local_start(broadcast, memory)

        if memory:
            return {name: p.clone() for name, p in vmap(local_start)(memory).items()}
        return {name: p.expand(clients, *p.shape).clone() for name, p in local_start(memory).items()}

    def updates(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and their new memories."""

        def client_update(params: Tensors, memory: Groups, *amounts: Tensor) -> tuple[Groups, Groups]:
            return self.algorithm.client_update(params, broadcast, memory, Work(*amounts))

        dtype = next(iter(params.values())).dtype
        amounts = [torch.from_numpy(a).to(dtype) for a in vars(work).values() if a is not None]
        result: tuple[Groups, Groups] = vmap(client_update)(params, memory, *amounts)
        return result


def _suitable_lanes(task: Task, batch_size: int) -> int:
    """A power of two of lanes that fit into a cache with their parameters and what layers put out for a batch."""
    bytes_per_lane = sum(p.numel() * p.element_size() for p in task.module.parameters())
    bytes_per_lane += count_output_bytes(task.module, task.batch(task.example(batch_size))["x"])
    fitting = max(1, min(_MOST_LANES, _CACHE_BYTES // bytes_per_lane))
    return int(2 ** (fitting.bit_length() - 1))
