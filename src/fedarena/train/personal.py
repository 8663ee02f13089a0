"""Scoring every client with a model of its own.

Clients of similar size are scored together: their models are rows of stacked tensors, their samples are padded to the
same number, and padding does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.func import vmap

from fedarena.core import streams
from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ClientData, ClientSamples, ClientScores, Engine, Part, train_jobs
from fedarena.train.evaluation import OwnTask
from fedarena.train.execution import in_order
from fedarena.train.jobs import Client, IntArray, Job, newcomer
from fedarena.train.optimizers import LocalTraining
from fedarena.train.personal_data import PersonalData
from fedarena.train.tensors import Groups, map_groups, of_algorithm, stack_groups

Array = npt.NDArray[Any]
_ROWS_AT_ONCE = 1024  # samples in one computation, of all clients together
_FEWEST_OF_A_CLIENT = 8
_BATCH_OF_ONE = 64
_SAMPLES_IN_MEMORY = 1 << 15  # of all clients of a chunk, unless one alone has more


class FineTuning(Algorithm):
    """Trains the first personal model of another algorithm, by the task's loss alone, and hands it over whole.

    It takes over what clients download and keep, and nothing else: fine-tuning is plain training.
    """

    def __init__(self, algorithm: Algorithm):
        self.server_init, self.broadcast = algorithm.server_init, algorithm.broadcast  # type: ignore[method-assign]
        self.client_init = algorithm.client_init  # type: ignore[method-assign]
        self._personal_models = algorithm.personal_models

    def local_start(self, client: Client) -> Tensors:
        """The first personal model."""
        return self._personal_models(client)[0]

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The trained model itself."""
        return {"params": params}, {}


class PersonalEngine(Protocol):
    """What the evaluation of personal models needs from its engine."""

    task: Task
    algorithm: Algorithm
    data: ClientData
    seed: int

    def like_this(self, algorithm: Algorithm, local: LocalTraining, data: ClientData, seed: int) -> Engine:
        """An engine of the same kind for another algorithm, way of training, and data."""


class PersonalEvaluation:
    """Scores clients with their own models, `lanes` of them in one computation, or one after the other (`None`)."""

    def __init__(self, engine: PersonalEngine, lanes: int | None = None, workers: int = 1):
        self.engine, self.lanes, self.workers = engine, lanes, workers
        self._tuners: dict[Part, Engine] = {}

    def evaluate(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> ClientScores:
        """Every client's scores with its own model; who keeps nothing is scored as if it took part the first time."""
        algorithm, own = self.engine.algorithm, OwnTask(self.engine.task)
        adapting = adapts(algorithm, broadcast)
        data = PersonalData(self.engine.data, part, adapting)
        samples = data.counts(clients, part)
        counts = np.zeros(len(clients), dtype=np.int64)
        sums = {metric: np.zeros(len(clients)) for metric in own.task.metrics}
        threads = torch.get_num_threads()

        def score(positions: IntArray, candidates: list[Tensors]) -> dict[str, Array]:
            model = candidates[0]
            if len(candidates) > 1:
                model = self._choose(own.task, candidates, data.for_choosing(clients[positions]))
            return self._score(own.task, model, data.samples(clients[positions], part))

        def score_own(positions: IntArray) -> tuple[IntArray, dict[str, Array]]:
            torch.set_num_threads(threads)  # of this thread
            return positions, score(positions, self._own_models(broadcast, states, clients[positions]))

        def fine_tuned() -> Iterator[tuple[IntArray, dict[str, Array]]]:
            by_client = np.argsort(clients, kind="stable")
            jobs = [Job(int(client), round) for client in clients]
            for results in train_jobs(self._tuner(data, part), jobs, {0: broadcast}, states):
                positions = by_client[np.searchsorted(clients, results.clients, sorter=by_client)]
                yield positions, score(positions, [results.update["params"]])

        chunks = _chunks(samples, self.lanes or 1)
        tuned = algorithm.fine_tuning is not None
        for positions, measured in fine_tuned() if tuned else in_order(score_own, chunks, self.workers):
            counts[positions] = measured["count"].astype(np.int64)
            for metric in sums:
                sums[metric][positions] = measured[metric]
        scored = counts > 0  # a client may have nothing but padding
        return ClientScores(clients[scored], samples[scored], counts[scored], {m: s[scored] for m, s in sums.items()})

    def _tuner(self, data: PersonalData, part: Part) -> Engine:
        if part not in self._tuners:
            algorithm = self.engine.algorithm
            assert algorithm.fine_tuning is not None
            seed = streams.torch_seed(self.engine.seed, "fine-tuning")  # other batches than in the round's training
            self._tuners[part] = self.engine.like_this(FineTuning(algorithm), algorithm.fine_tuning, data, seed)
        return self._tuners[part]

    def _own_models(self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray) -> list[Tensors]:
        """The candidates of these clients, each with a row per client."""
        algorithm = self.engine.algorithm
        new = algorithm.client_init(broadcast)
        example = newcomer(broadcast, new)
        device = next(iter(broadcast["params"].values())).device
        found = [of_algorithm(states.get(int(client))) for client in clients]
        each = [new if state is None else map_groups(lambda t: t.to(device), state) for state in found]

        def models_of(state: Groups) -> list[Tensors]:
            return algorithm.personal_models(replace(example, state=state))

        with torch.no_grad():
            if self.lanes is None or not new:
                models = models_of(each[0])
                return [{name: p.expand(len(clients), *p.shape) for name, p in model.items()} for model in models]
            stacked: list[Tensors] = vmap(models_of)(stack_groups(each))
        return stacked

    def _choose(self, task: Task, candidates: list[Tensors], samples: ClientSamples) -> Tensors:
        """For every client the candidate of the least loss; the first where candidates are equal or nothing tells."""
        found = [self._score(task, model, samples) for model in candidates]
        losses = np.stack([sums["loss"] / np.maximum(sums["count"], 1) for sums in found])
        best = torch.from_numpy(np.nan_to_num(losses, nan=np.inf).argmin(0))
        rows = torch.arange(len(best))
        return {name: torch.stack([model[name] for model in candidates])[best, rows] for name in candidates[0]}

    def _score(self, task: Task, models: Tensors, samples: ClientSamples) -> dict[str, Array]:
        score: Callable[..., dict[str, Array]] = score_each if self.lanes is None else score_stacked
        with torch.no_grad():
            return score(task, models, samples)


def adapts(algorithm: Algorithm, broadcast: Groups) -> bool:
    """Whether clients need samples to fine-tune their model or to choose among several."""
    models = algorithm.personal_models(newcomer(broadcast, algorithm.client_init(broadcast)))
    return algorithm.fine_tuning is not None or len(models) > 1


def personal_notes(algorithm: Algorithm, params: Tensors, data: ClientData, clients: IntArray, part: Part) -> list[str]:
    """What the user should know about how personal models of these clients are evaluated."""
    newcomers = int((data.counts(clients, "train") == 0).sum()) if algorithm.personalizes else 0
    if not newcomers:
        return []
    who = f"{newcomers:,} of {len(clients):,} evaluated clients have no training samples"
    if adapts(algorithm, algorithm.broadcast(algorithm.server_init(params))):
        return [f"{who}: half of their {part} samples adapt their personal models, which are scored on the rest"]
    return [f"{who} and never take part: their personal models are what a newcomer begins with"]


def score_each(task: Task, models: Tensors, samples: ClientSamples) -> dict[str, Array]:
    """Per-client sums of every metric and of the number of predictions, one client after the other."""
    clients = len(samples.offsets) - 1
    sums = {name: np.zeros(clients) for name in (*task.metrics, "count")}
    device = next(iter(models.values())).device
    for client in range(clients):
        params = {name: rows[client] for name, rows in models.items()}
        end = int(samples.offsets[client + 1])
        for start in range(int(samples.offsets[client]), end, _BATCH_OF_ONE):
            rows = slice(start, min(start + _BATCH_OF_ONE, end))
            columns = {
                n: torch.from_numpy(np.ascontiguousarray(v[rows])).to(device) for n, v in samples.columns.items()
            }
            for name, values in task.measure(params, task.batch(columns)).items():
                sums[name][client] += float(values.double().sum())
    return sums


def score_stacked(task: Task, models: Tensors, samples: ClientSamples) -> dict[str, Array]:
    """The same for all clients at once."""
    counts = np.diff(samples.offsets)
    largest_first = np.argsort(-counts, kind="stable")  # so that those who have samples left come first
    counts, begins = counts[largest_first], samples.offsets[:-1][largest_first]
    device = next(iter(models.values())).device
    models = {name: rows[torch.from_numpy(largest_first).to(device)] for name, rows in models.items()}
    columns = {n: torch.from_numpy(np.ascontiguousarray(v)).to(device) for n, v in samples.columns.items()}
    totals = {name: torch.zeros(len(counts), dtype=torch.float64, device=device) for name in (*task.metrics, "count")}

    def measure(params: Tensors, columns: Tensors) -> Tensors:
        return task.measure(params, task.batch(columns))

    start = 0
    while start < counts.max(initial=0):
        active = int((counts > start).sum())
        width = min(max(_FEWEST_OF_A_CLIENT, _ROWS_AT_ONCE // active), int(counts[0]) - start)
        places = start + np.arange(width)
        counting = places < counts[:active, None]
        rows = torch.from_numpy(np.where(counting, begins[:active, None] + places, 0)).to(device)
        mask = torch.from_numpy(counting).to(device)
        measured = vmap(measure)({n: p[:active] for n, p in models.items()}, {n: t[rows] for n, t in columns.items()})
        for name, values in measured.items():
            totals[name][:active] += torch.where(mask, values.double(), 0.0).sum(1)
        start += width
    sums = {name: np.zeros(len(counts)) for name in totals}
    for name, total in totals.items():
        sums[name][largest_first] = total.cpu().numpy()
    return sums


def _chunks(samples: IntArray, size: int) -> list[IntArray]:
    """Clients that are scored together, by position: at most so many, of similar size, and not too many samples."""
    by_samples = np.argsort(-samples, kind="stable")
    until = np.cumsum(samples[by_samples])
    chunks: list[IntArray] = []
    start = 0
    while start < len(samples):
        before = until[start] - samples[by_samples[start]]
        fitting = int(np.searchsorted(until, before + _SAMPLES_IN_MEMORY, side="right"))
        end = max(start + 1, min(start + size, fitting))
        chunks.append(by_samples[start:end])
        start = end
    return chunks
