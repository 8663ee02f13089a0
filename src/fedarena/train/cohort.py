"""The cohort engine: many clients train at once, as rows of stacked tensors.

Parameters are stacked ``[lanes, …]`` and one call takes a gradient step in every lane (`torch.func.vmap`). Which client
is in which lane when is the business of the `Schedule`. Results equal those of the reference engine up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.utils.hooks import RemovableHandle

from fedarena.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ENGINES, ClientData, ClientScores, IntArray, Job, JobResults, Part
from fedarena.train.evaluation import evaluate_clients
from fedarena.train.execution import StepRunner
from fedarena.train.optimizers import LocalTraining, optimizer_init, optimizer_step
from fedarena.train.reference import ReferenceEngine
from fedarena.train.schedule import Schedule, batch_table, count_steps_of, make_schedule
from fedarena.train.tensors import Groups, map_groups

# Lanes whose parameters together exceed a core's cache are slower, not faster.
_CPU_CACHE_BYTES = 1 << 19
_MOST_LANES = 256
# When fewer lanes are at work, the others are dropped a few at a time: every width has to be traced.
_NARROWING = 4


@ENGINES.register("cohort")
class CohortEngine:
    """Trains many clients at once; `lanes` is how many (by default, as suits the size of the model)."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        local: LocalTraining,
        data: ClientData,
        seed: int,
        *,
        lanes: int | None = None,
        threads: int = 1,
        dtype: Literal["float32", "float64"] = "float32",
    ):
        if threads < 1:
            raise BadInputError(f"engine.threads must be at least 1, not {threads}")
        if lanes is not None and lanes < 1:
            raise BadInputError(f"engine.lanes must be at least 1, not {lanes}")
        self.task, self.algorithm, self.local, self.data, self.seed = task, algorithm, local, data, seed
        self.threads = threads
        self.notes: list[str] = []
        task.module.to(getattr(torch, dtype))
        self.lanes = lanes if lanes is not None else _suitable_lanes(self.initial_params())
        self.run_step = StepRunner(self._step)
        self._fallback: ReferenceEngine | None = None
        obstacle = self._find_obstacle()
        if obstacle is not None:
            self._fallback = ReferenceEngine(task, algorithm, local, data, seed, threads=threads, dtype=dtype)
            self.notes.append(f"Clients train one at a time, because {obstacle}")

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
        with torch.no_grad():
            yield from _CohortTraining(self, jobs, broadcast, memories).run()

    def evaluate(self, params: Tensors, clients: IntArray, part: Part) -> ClientScores:
        """Scores one model on these clients."""
        torch.set_num_threads(self.threads)
        self.task.module.eval()
        return evaluate_clients(self.task, params, self.data, clients, part)

    def _find_obstacle(self) -> str | None:
        """Why this model or algorithm cannot train many clients at once, found out by trying."""
        if self.algorithm.trains_freely:
            return f"{type(self.algorithm).__name__} has a training loop of its own"
        broadcast = self.algorithm.broadcast(self.algorithm.server_init(self.initial_params()))
        two = map_groups(lambda t: torch.stack([t, t]), broadcast)
        memory = map_groups(lambda t: torch.stack([t, t]), self.algorithm.memory_init(broadcast))
        columns = {name: torch.stack([values, values]) for name, values in self.task.example(2).items()}
        state = optimizer_init(self.local, two["params"])
        self.task.module.train()
        with torch.no_grad(), _LayerTracker(self.task.module) as tracker:
            try:
                self._step(two["params"], state, torch.ones(2), columns, torch.ones(2, 2), memory, broadcast)
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

    def updates(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        """What finished clients (rows of `params`) upload, and their new memories."""

        def client_update(params: Tensors, memory: Groups, *amounts: Tensor) -> tuple[Groups, Groups]:
            return self.algorithm.client_update(params, broadcast, memory, Work(*amounts))

        dtype = next(iter(params.values())).dtype
        amounts = [torch.from_numpy(a).to(dtype) for a in vars(work).values() if a is not None]
        result: tuple[Groups, Groups] = vmap(client_update)(params, memory, *amounts)
        return result


class _LayerTracker:
    """Knows which layer of a model is being computed."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._path: list[str] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> _LayerTracker:
        for name, layer in self._module.named_modules():
            label = f"the layer {name!r} ({type(layer).__name__})" if name else f"the model {type(layer).__name__}"
            self._handles.append(layer.register_forward_pre_hook(lambda *_, label=label: self._path.append(label)))
            self._handles.append(layer.register_forward_hook(lambda *_: self._path.pop() and None))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def present(self) -> str:
        """The innermost layer whose computation has begun but not ended, or else the algorithm."""
        return self._path[-1] if self._path else "the algorithm"


class _CohortTraining:
    """The local training of one cohort. Clients are numbered by their position in the cohort."""

    def __init__(self, engine: CohortEngine, jobs: Sequence[Job], broadcast: Groups, memories: Mapping[int, Groups]):
        self.engine, self.broadcast = engine, broadcast
        self.clients = np.array([job.client for job in jobs])
        self.samples = engine.data.counts(self.clients, "train")
        self.schedule = make_schedule(count_steps_of(self.samples, engine.local), engine.lanes)
        block = engine.data.samples(self.clients, "train")
        self.columns = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in block.columns.items()}
        rows, mask = batch_table(
            self.schedule, self.clients, self.samples, block.offsets[:-1], engine.local, engine.seed, jobs[0].round
        )
        self.rows, self.mask = torch.from_numpy(rows), torch.from_numpy(mask)
        self.batch_sizes = self.mask.sum(-1)
        self.processed = _processed_samples(self.schedule, self.batch_sizes.numpy())
        self.memory = _stack_memories(engine.algorithm, broadcast, memories, self.clients)
        self.start_losses = None
        if engine.algorithm.needs_start_loss:
            scores = evaluate_clients(engine.task, broadcast["params"], engine.data, self.clients, "train")
            self.start_losses = scores.means("loss")
        # The lanes: parameters, optimizer state, number of the next step, sum of losses, memory of the present client.
        self.params: Tensors = {}
        self.state: Groups = {}
        self.numbers = self.loss_sums = torch.empty(0)
        self.lane_memory: Groups = {}
        self.finished: list[tuple[IntArray, Tensors, Tensor]] = []

    def run(self) -> Iterator[JobResults]:
        """Works off the schedule; yields finished clients, about as many at a time as there are lanes."""
        schedule = self.schedule
        idle = np.flatnonzero(schedule.steps == 0)
        if len(idle):
            self.finished.append((idle, self._fresh_params(len(idle)), torch.full((len(idle),), torch.nan)))
        starting = _clients_at(schedule.start, schedule)
        ending = _clients_at(schedule.start + schedule.steps - 1, schedule)
        active = schedule.active_lanes()
        waiting = len(idle)
        for step in range(schedule.length):
            self._start(starting[step], first=step == 0)
            self._narrow(int(active[step]))
            self._step(step)
            if len(ending[step]):
                self._finish(ending[step])
                waiting += len(ending[step])
            if waiting >= schedule.lanes:
                yield self._flush()
                waiting = 0
        if waiting:
            yield self._flush()

    def _fresh_params(self, lanes: int) -> Tensors:
        return {name: p.expand(lanes, *p.shape).clone() for name, p in self.broadcast["params"].items()}

    def _start(self, clients: IntArray, first: bool) -> None:
        """Puts clients into their lanes."""
        if first:
            by_lane = clients[np.argsort(self.schedule.lane[clients])]
            self.params = self._fresh_params(len(by_lane))
            self.state = optimizer_init(self.engine.local, self.params)
            dtype = next(iter(self.params.values())).dtype
            self.numbers, self.loss_sums = torch.ones(len(by_lane), dtype=dtype), torch.zeros(len(by_lane), dtype=dtype)
            self.lane_memory = map_groups(lambda t: t[torch.from_numpy(by_lane)], self.memory)
        elif len(clients):
            lanes, positions = torch.from_numpy(self.schedule.lane[clients]), torch.from_numpy(clients)
            for name, p in self.params.items():
                p[lanes] = self.broadcast["params"][name]
            for group in self.state.values():
                for t in group.values():
                    t[lanes] = 0
            self.numbers[lanes], self.loss_sums[lanes] = 1, 0
            for name, group in self.lane_memory.items():
                for key, t in group.items():
                    t[lanes] = self.memory[name][key][positions]

    def _narrow(self, active: int) -> None:
        """Drops lanes that are done."""
        width = len(self.numbers)
        while width > 1 and -(-width // _NARROWING) >= active:
            width = -(-width // _NARROWING)
        if width < len(self.numbers):
            self.params = {name: p[:width] for name, p in self.params.items()}
            self.state = map_groups(lambda t: t[:width], self.state)
            self.lane_memory = map_groups(lambda t: t[:width], self.lane_memory)
            self.numbers, self.loss_sums = self.numbers[:width], self.loss_sums[:width]

    def _step(self, step: int) -> None:
        width = len(self.numbers)
        rows = self.rows[step, :width]
        columns = {name: values[rows] for name, values in self.columns.items()}
        self.params, self.state, losses = self.engine.run_step(
            self.params,
            self.state,
            self.numbers,
            columns,
            self.mask[step, :width],
            self.lane_memory,
            self.broadcast,
        )
        self.numbers = self.numbers + 1
        self.loss_sums = self.loss_sums + losses * self.batch_sizes[step, :width]

    def _finish(self, clients: IntArray) -> None:
        lanes = torch.from_numpy(self.schedule.lane[clients])
        params = {name: p[lanes] for name, p in self.params.items()}
        self.finished.append((clients, params, self.loss_sums[lanes]))

    def _flush(self) -> JobResults:
        """The results of the clients that have finished since the last time."""
        clients = np.concatenate([clients for clients, _, _ in self.finished])
        params = {
            name: torch.cat([params[name] for _, params, _ in self.finished]) for name in self.broadcast["params"]
        }
        loss_sums = torch.cat([sums.double() for _, _, sums in self.finished]).numpy()
        self.finished = []
        start_losses = None if self.start_losses is None else self.start_losses[clients]
        work = Work(self.samples[clients], self.schedule.steps[clients], self.processed[clients], start_losses)
        memory = map_groups(lambda t: t[torch.from_numpy(clients)], self.memory)
        update, new_memory = self.engine.updates(params, self.broadcast, memory, work)
        losses = loss_sums / np.maximum(work.processed_samples, 1)
        return JobResults(self.clients[clients], update, new_memory, work, losses)


def _suitable_lanes(params: Tensors) -> int:
    bytes_per_client = sum(p.numel() * p.element_size() for p in params.values())
    return max(1, min(_MOST_LANES, _CPU_CACHE_BYTES // bytes_per_client))


def _clients_at(steps: IntArray, schedule: Schedule) -> list[IntArray]:
    """For every step of the schedule, the clients whose entry it is."""
    working = np.flatnonzero(schedule.steps)
    ordered = working[np.argsort(steps[working], kind="stable")]
    bounds = np.searchsorted(steps[ordered], np.arange(1, schedule.length))
    return np.split(ordered, bounds) if schedule.length else []


def _processed_samples(schedule: Schedule, batch_sizes: IntArray) -> IntArray:
    """How many samples each client processes over all its steps."""
    until = np.zeros((schedule.length + 1, schedule.lanes), dtype=np.int64)
    np.cumsum(batch_sizes, axis=0, out=until[1:])
    processed = np.zeros(len(schedule.steps), dtype=np.int64)
    working = np.flatnonzero(schedule.steps)
    lane, start = schedule.lane[working], schedule.start[working]
    processed[working] = until[start + schedule.steps[working], lane] - until[start, lane]
    return processed


def _stack_memories(
    algorithm: Algorithm, broadcast: Groups, memories: Mapping[int, Groups], clients: IntArray
) -> Groups:
    """The memories of a cohort as rows; new for those who never took part."""
    new = algorithm.memory_init(broadcast)
    if not new:
        return {}
    each = [memories.get(int(client), new) for client in clients]
    return {
        group: {name: torch.stack([memory[group][name] for memory in each]) for name in tensors}
        for group, tensors in new.items()
    }
