"""Scoring every client with a model of its own.

Clients of similar size are scored together: their models are rows of stacked tensors, their samples are padded to the
same number, and padding does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import vmap

from fedarena.core import streams
from fedarena.core.own import is_own
from fedarena.metrics import Metric
from fedarena.metrics.totals import COUNT, RIGHT, SCORES, MetricStates, RankedSamples, Totals
from fedarena.models import Task, Tensors
from fedarena.models.probes import in_mode
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import ClientData, ClientSamples, ClientScores, Engine, Part, train_jobs
from fedarena.train.evaluation import OwnTask, client_scores
from fedarena.train.execution import in_order
from fedarena.train.jobs import Client, IntArray, Job, JobArrays, context_of, newcomer
from fedarena.train.layers import LayerTracker
from fedarena.train.optimizers import LocalTraining
from fedarena.train.personal_data import PersonalData
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.tensors import Groups, column_tensor, map_groups, of_algorithm, stack_groups
from fedarena.train.vectorizing import obstacle

Array = npt.NDArray[Any]
_ROWS_AT_ONCE = 1024  # samples in one computation, of all clients together
_FEWEST_OF_A_CLIENT = 8
_BATCH_OF_ONE = 64
_SAMPLES_IN_MEMORY = 1 << 15  # of all clients of a chunk, unless one alone has more; fewer if they are large:
_NUMBERS_IN_MEMORY = 1 << 30
# What scores chunks of clients for somebody, in their order, from what was broadcast and what they keep.
ScoredElsewhere = Callable[
    [Groups, Mapping[int, Groups], Sequence[IntArray], Part, int],
    Iterator[MetricStates],
]


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
        self,
        broadcast: Groups,
        states: Mapping[int, Groups],
        clients: IntArray,
        part: Part,
        round: int,
        elsewhere: ScoredElsewhere | None = None,
    ) -> ClientScores:
        """Every client's scores with its own model; who keeps nothing is scored as if it took part the first time.

        Models that need no fine-tuning may be scored `elsewhere`, by others who call `score_chunk`.
        """
        algorithm, own = self.engine.algorithm, OwnTask(self.engine.task)
        adapting = adapts(algorithm, broadcast)
        data = PersonalData(self.engine.data, part, adapting)
        samples = data.counts(clients, part)
        totals = Totals(own.task.metrics)
        threads = torch.get_num_threads()

        def score(positions: IntArray, candidates: list[Tensors]) -> MetricStates:
            return replace(self._score_best(own.task, candidates, data, clients[positions], part), positions=positions)

        def score_own(positions: IntArray) -> MetricStates:
            torch.set_num_threads(threads)  # of this thread
            return score(positions, self._own_models(broadcast, states, clients[positions], round))

        def scored_elsewhere(chunks: Sequence[IntArray]) -> Iterator[MetricStates]:
            assert elsewhere is not None
            found = elsewhere(broadcast, states, [clients[positions] for positions in chunks], part, round)
            for positions, scored in zip(chunks, found, strict=True):
                yield replace(scored, positions=positions)

        def fine_tuned() -> Iterator[MetricStates]:
            by_client = np.argsort(clients, kind="stable")
            jobs = [Job(int(client), round) for client in clients]
            for results in train_jobs(self._tuner(data, part), jobs, {0: broadcast}, states):
                positions = by_client[np.searchsorted(clients, results.clients, sorter=by_client)]
                yield score(positions, [results.update["params"]])

        chunks = _chunks(samples, self.lanes or 1, _samples_in_memory(own.task))
        if algorithm.fine_tuning is not None:
            all_scored = fine_tuned()
        elif elsewhere is not None:
            all_scored = scored_elsewhere(chunks)
        else:
            all_scored = in_order(score_own, chunks, self.workers)
        for scored in all_scored:
            totals.add(scored)
        return client_scores(totals, clients, samples)

    def score_chunk(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, part: Part, round: int
    ) -> MetricStates:
        """What `evaluate` does with a chunk of clients whose models need no fine-tuning, for others who share in it."""
        data = PersonalData(self.engine.data, part, adapts(self.engine.algorithm, broadcast))
        candidates = self._own_models(broadcast, states, clients, round)
        return self._score_best(OwnTask(self.engine.task).task, candidates, data, clients, part)

    def _score_best(
        self, task: Task, candidates: list[Tensors], data: PersonalData, clients: IntArray, part: Part
    ) -> MetricStates:
        """The states of these clients with the best of their candidates."""
        model = candidates[0]
        if len(candidates) > 1:
            model = self._choose(task, candidates, data.for_choosing(clients))
        return self._score(task, model, data.samples(clients, part), task.metrics)

    def own_model(
        self, broadcast: Groups, states: Mapping[int, Groups], client: int, part: Part, round: int
    ) -> Tensors:
        """The model that a client is scored with."""
        algorithm, clients = self.engine.algorithm, np.array([client])
        data = PersonalData(self.engine.data, part, adapts(algorithm, broadcast))
        if algorithm.fine_tuning is not None:
            (results,) = train_jobs(self._tuner(data, part), [Job(client, round)], {0: broadcast}, states)
            model = results.update["params"]
        else:
            candidates = self._own_models(broadcast, states, clients, round)
            model = candidates[0]
            if len(candidates) > 1:
                model = self._choose(OwnTask(self.engine.task).task, candidates, data.for_choosing(clients))
        return {name: rows[0] for name, rows in model.items()}

    def _tuner(self, data: PersonalData, part: Part) -> Engine:
        if part not in self._tuners:
            algorithm = self.engine.algorithm
            assert algorithm.fine_tuning is not None
            seed = streams.torch_seed(self.engine.seed, "fine-tuning")  # other batches than in the round's training
            self._tuners[part] = self.engine.like_this(FineTuning(algorithm), algorithm.fine_tuning, data, seed)
        return self._tuners[part]

    def _own_models(
        self, broadcast: Groups, states: Mapping[int, Groups], clients: IntArray, round: int
    ) -> list[Tensors]:
        """The candidates of these clients, each with a row per client."""
        algorithm = self.engine.algorithm
        new = algorithm.client_init(broadcast)
        like = next(iter(broadcast["params"].values()))
        device = like.device
        jobs = JobArrays.of([Job(int(client), round) for client in clients])
        job_rows = jobs.tensors(like, self.engine.seed, "personal models")
        found = [of_algorithm(states.get(int(client))) for client in clients]
        each = [new if state is None else map_groups(lambda t: t.to(device), state) for state in found]

        def models_of(state: Groups, job_row: Tensors) -> list[Tensors]:
            return algorithm.personal_models(Client(broadcast, state, context_of(job_row)))

        # Ours differ by what clients keep alone.
        all_alike = not new and not is_own(type(algorithm).personal_models)
        with torch.no_grad():
            if self.lanes is None or all_alike:
                models = models_of(each[0], {name: rows[0] for name, rows in job_rows.items()})
                return [{name: p.expand(len(clients), *p.shape) for name, p in model.items()} for model in models]
            stacked: list[Tensors] = vmap(models_of)(stack_groups(each) if new else {}, job_rows)
        return stacked

    def _choose(self, task: Task, candidates: list[Tensors], samples: ClientSamples) -> Tensors:
        """For every client the candidate of the least loss; the first where candidates are equal or nothing tells."""
        loss = task.metrics[0]
        found = [self._score(task, model, samples, [loss]) for model in candidates]
        losses = np.stack([_values(loss, states) for states in found])
        best = torch.from_numpy(np.nan_to_num(losses, nan=np.inf).argmin(0))
        rows = torch.arange(len(best))
        return {name: torch.stack([model[name] for model in candidates])[best, rows] for name in candidates[0]}

    def _score(self, task: Task, models: Tensors, samples: ClientSamples, metrics: Sequence[Metric]) -> MetricStates:
        score = score_each if self.lanes is None else score_stacked
        with torch.no_grad():
            return score(task, models, samples, metrics)


def _values(metric: Metric, states: MetricStates) -> Array:
    """The metric of every client; 0 for those who have no sample."""
    if metric.name not in states.states:
        return np.zeros(len(states.counts))
    return metric.value(states.states[metric.name], np.maximum(states.counts, 1))


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


def score_each(task: Task, models: Tensors, samples: ClientSamples, metrics: Sequence[Metric]) -> MetricStates:
    """The states of every client, one client after the other."""
    clients = len(samples.offsets) - 1
    sums = _StateSums(clients)
    device = next(iter(models.values())).device
    columns = {name: column_tensor(values) for name, values in samples.columns.items()}
    for client in range(clients):
        params = {name: rows[client] for name, rows in models.items()}
        end = int(samples.offsets[client + 1])
        for start in range(int(samples.offsets[client]), end, _BATCH_OF_ONE):
            batch = task.batch({n: t[start : min(start + _BATCH_OF_ONE, end)].to(device) for n, t in columns.items()})
            sums.add_one(client, task.measure(params, batch, metrics))
    return sums.finish()


def score_stacked(task: Task, models: Tensors, samples: ClientSamples, metrics: Sequence[Metric]) -> MetricStates:
    """The same for all clients at once."""
    counts = np.diff(samples.offsets)
    largest_first = np.argsort(-counts, kind="stable")  # so that those who have samples left come first
    counts, begins = counts[largest_first], samples.offsets[:-1][largest_first]
    device = next(iter(models.values())).device
    models = {name: rows[torch.from_numpy(largest_first).to(device)] for name, rows in models.items()}
    columns = {n: column_tensor(v).to(device) for n, v in samples.columns.items()}
    sums = _StateSums(len(counts))

    start = 0
    while start < counts.max(initial=0):
        active = int((counts > start).sum())
        width = min(max(_FEWEST_OF_A_CLIENT, _ROWS_AT_ONCE // active), int(counts[0]) - start)
        places = start + np.arange(width)
        counting = places < counts[:active, None]
        rows = torch.from_numpy(np.where(counting, begins[:active, None] + places, 0)).to(device)
        active_models, of_clients = {n: p[:active] for n, p in models.items()}, {n: t[rows] for n, t in columns.items()}
        measured = _measure_stacked(task, active_models, of_clients, metrics)
        sums.add(largest_first[:active], measured, torch.from_numpy(counting).to(device))
        start += width
    return sums.finish()


def _measure_stacked(task: Task, models: Tensors, columns: Tensors, metrics: Sequence[Metric]) -> Tensors:
    """States ``[clients, samples, …]`` of models with a row per client, and as many samples of each."""

    def measure(params: Tensors, columns: Tensors) -> Tensors:
        return task.measure(params, task.batch(columns), metrics)

    with RecurrentLayers():
        measured: Tensors = vmap(measure)(models, columns)
    return measured


def find_scoring_obstacle(task: Task, params: Tensors) -> str | None:
    """Why models cannot be scored for many clients at once, though they may train so, found out by trying."""
    example = {name: t.to(next(iter(params.values())).device) for name, t in task.example(2).items()}
    models, columns = ({name: torch.stack([t, t]) for name, t in tensors.items()} for tensors in (params, example))
    with torch.no_grad(), in_mode(task, training=False), LayerTracker(task.module) as tracker:
        try:
            _measure_stacked(task, models, columns, task.metrics)
        except Exception as error:  # whatever a layer may raise that is given many clients
            return obstacle(tracker.present if tracker.inside else f"the task {type(task).__name__}", error)
    return None


class _StateSums:
    """Adds up states of which some clients have a few at a time: ``[clients, samples, …]``."""

    def __init__(self, clients: int):
        self._clients = clients
        self._sums: dict[str, Tensor] = {}
        self._ranked: dict[str, list[Array]] = {SCORES: [], RIGHT: []}
        self._owners: list[IntArray] = []

    def add(self, clients: IntArray, measured: Tensors, mask: Tensor) -> None:
        """Adds states; where the mask is False there is no sample, and whatever is there does not count."""
        for name, values in measured.items():
            if name in (SCORES, RIGHT):
                self._ranked[name].append(values[mask].cpu().numpy())
                continue
            counting = mask.view(*mask.shape, *[1] * (values.dim() - 2))
            self._add_sums(name, clients, torch.where(counting, values.double(), 0.0).sum(1))
        if SCORES in measured:
            self._owners.append(np.repeat(clients, mask.sum(1).cpu().numpy()))

    def add_one(self, client: int, measured: Tensors) -> None:
        """Adds states of a single client: ``[samples, …]``."""
        for name, values in measured.items():
            if name in (SCORES, RIGHT):
                self._ranked[name].append(values.cpu().numpy())
            else:
                self._add_sums(name, np.array([client]), values.double().sum(0).unsqueeze(0))
        if SCORES in measured:
            self._owners.append(np.full(len(measured[SCORES]), client))

    def _add_sums(self, name: str, clients: IntArray, sums: Tensor) -> None:
        if name not in self._sums:
            shape = (self._clients, *sums.shape[1:])
            self._sums[name] = torch.zeros(shape, dtype=torch.float64, device=sums.device)
        self._sums[name][torch.from_numpy(clients).to(sums.device)] += sums

    def finish(self) -> MetricStates:
        """What it came to, for all clients."""
        states = {name: sums.cpu().numpy() for name, sums in self._sums.items()}
        counts = states.pop(COUNT, np.zeros(self._clients))
        positions = np.arange(self._clients)
        if not self._ranked[SCORES]:
            return MetricStates(positions, counts, states)
        scores, right = (np.concatenate(pieces) for pieces in self._ranked.values())
        return MetricStates(positions, counts, states, RankedSamples(scores, right, np.concatenate(self._owners)))


def _samples_in_memory(task: Task) -> int:
    numbers = sum(values.numel() for values in task.example(1).values())
    return max(1, min(_SAMPLES_IN_MEMORY, _NUMBERS_IN_MEMORY // numbers))


def _chunks(samples: IntArray, size: int, most_samples: int) -> list[IntArray]:
    """Clients that are scored together, by position: at most so many, of similar size, and not too many samples."""
    by_samples = np.argsort(-samples, kind="stable")
    until = np.cumsum(samples[by_samples])
    chunks: list[IntArray] = []
    start = 0
    while start < len(samples):
        before = until[start] - samples[by_samples[start]]
        fitting = int(np.searchsorted(until, before + most_samples, side="right"))
        end = max(start + 1, min(start + size, fitting))
        chunks.append(by_samples[start:end])
        start = end
    return chunks
