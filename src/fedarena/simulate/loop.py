"""The simulation: select, train, aggregate, step, evaluate, round after round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedarena.errors import DivergedError
from fedarena.metrics import PERSONAL, summarize_clients
from fedarena.models import Task
from fedarena.simulate.aggregation import WeightedMean, weighted_sum
from fedarena.simulate.memories import Memories, MemoryChanges
from fedarena.simulate.selectors import Selector, select_uniform
from fedarena.train import (
    Algorithm,
    ClientScores,
    Engine,
    Groups,
    Job,
    JobResults,
    count_bytes,
    finite_rows,
    is_finite,
)
from fedarena.train.engine import IntArray, Part


@dataclass(frozen=True)
class Simulation:
    """Everything that does not change while a run goes on."""

    seed: int
    rounds: int
    cohort: int
    task: Task
    algorithm: Algorithm
    engine: Engine
    training_clients: IntArray  # those who may be invited; each has a training sample
    evaluation_clients: IntArray  # each has a sample of the evaluated part
    evaluation_part: Part
    evaluate_every: int  # rounds; the first and the last model are always evaluated
    flops_per_sample: float
    client_ids: Callable[[Sequence[int]], list[str]]
    select: Selector = select_uniform
    sends: bool = True  # whether models and updates travel; they do not if the server itself trains

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is measured: the task's metrics, and the same of personal models if the algorithm has such."""
        metrics = self.task.metrics
        return metrics + tuple(PERSONAL + metric for metric in metrics if self.algorithm.personalizes)

    def evaluates(self, round: int) -> bool:
        """Whether the model is evaluated after this round."""
        return round % self.evaluate_every == 0 or round == self.rounds


@dataclass(frozen=True)
class Snapshot:
    """What is needed to go on after a round."""

    round: int
    state: Groups
    memories: Memories = field(default_factory=Memories)


@dataclass(frozen=True)
class RoundOutcome:
    """What a round left behind: a row for the table of rounds, rows per evaluated client, and how long it took."""

    snapshot: Snapshot
    row: dict[str, Any]
    scores: ClientScores | None
    train_seconds: float
    evaluate_seconds: float
    personal_scores: ClientScores | None = None  # of clients with their own models, if the algorithm has such


def simulate(simulation: Simulation, start: Snapshot | None = None) -> Iterator[RoundOutcome]:
    """Yields round 0 (the untrained model, evaluated) and then every round; `start` continues after a snapshot."""
    if start is None:
        params = simulation.engine.initial_params()
        start = Snapshot(0, simulation.algorithm.server_init(params))
        yield _finish_round(simulation, start, {}, train_seconds=0.0)
    snapshot = replace(start, state=simulation.engine.place(start.state))
    while snapshot.round < simulation.rounds:
        began = time.perf_counter()
        snapshot, row = _train_round(simulation, snapshot)
        yield _finish_round(simulation, snapshot, row, time.perf_counter() - began)


def _train_round(simulation: Simulation, before: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
    round = before.round + 1
    algorithm = simulation.algorithm
    cohort = simulation.select(simulation.training_clients, simulation.cohort, simulation.seed, round)
    broadcast = algorithm.broadcast(before.state)
    changes = MemoryChanges(before.memories)
    mean = WeightedMean()
    steps = samples = bytes_up = 0
    loss_sum = 0.0
    jobs = [Job(int(client), round) for client in cohort]

    def contribute(results: JobResults) -> _Contribution:
        return _contribution(simulation, results, round)

    for part in simulation.engine.train_and(contribute, jobs, broadcast, before.memories):
        mean.add(part.update_sum, part.weight, len(part.clients))
        changes.add(part.clients, part.memory)
        steps += part.steps
        samples += part.samples
        loss_sum += part.loss_sum
        bytes_up += part.bytes_up
    state = algorithm.server_step(before.state, mean.mean(), round)
    if not is_finite(state):
        raise DivergedError("The server's state became infinite or undefined", round, None)
    row = {
        "clients": len(cohort),
        "samples": samples,
        "steps": steps,
        "train_loss": loss_sum / samples,
        "bytes_down": count_bytes(algorithm.download(broadcast)) * len(cohort) if simulation.sends else 0,
        "bytes_up": bytes_up if simulation.sends else 0,
        "flops": simulation.flops_per_sample * samples,
    }
    return Snapshot(round, state, changes.memories()), row


@dataclass(frozen=True)
class _Contribution:
    """What is left of some clients' results when their updates are added up."""

    clients: IntArray
    update_sum: Groups  # weighted
    weight: float
    memory: Groups
    steps: int
    samples: int
    loss_sum: float
    bytes_up: int


def _contribution(simulation: Simulation, results: JobResults, round: int) -> _Contribution:
    """Adds up the updates; done by whichever worker computed them."""
    weights = np.asarray(simulation.algorithm.client_weight(results.work), dtype=np.float64)
    update_sum = weighted_sum(results.update, weights)
    # A sum shows whether all terms are finite, and there is less of it to look at.
    if not (np.isfinite(results.losses).all() and is_finite(update_sum)):
        _check_finite(simulation, results, round)
    processed = results.work.processed_samples
    return _Contribution(
        clients=results.clients,
        update_sum=update_sum,
        weight=float(weights.sum()),
        memory=results.memory,
        steps=int(results.work.steps.sum()),
        samples=int(processed.sum()),
        loss_sum=float((results.losses * processed).sum()),
        bytes_up=count_bytes(results.update),
    )


def _check_finite(simulation: Simulation, results: JobResults, round: int) -> None:
    finite = np.isfinite(results.losses) & finite_rows(results.update, len(results.clients))
    if not finite.all():
        first = int(np.argmin(finite))
        loss = results.losses[first]
        what = "An update is not finite" if np.isfinite(loss) else f"The training loss became {loss}"
        raise DivergedError(what, round, simulation.client_ids([int(results.clients[first])])[0])


def _finish_round(
    simulation: Simulation, snapshot: Snapshot, row: dict[str, Any], train_seconds: float
) -> RoundOutcome:
    began = time.perf_counter()
    row = {"round": snapshot.round, **row}
    scores = personal_scores = None
    if simulation.evaluates(snapshot.round):
        broadcast = simulation.algorithm.broadcast(snapshot.state)
        clients, part = simulation.evaluation_clients, simulation.evaluation_part
        scores = simulation.engine.evaluate(broadcast["params"], clients, part)
        row |= {"eval_clients": len(scores.clients), "eval_samples": int(scores.samples.sum())}
        row |= summarize_scores(simulation, scores, snapshot.round)
        if simulation.algorithm.personalizes:
            personal_scores = simulation.engine.evaluate_personal(
                broadcast, snapshot.memories, clients, part, snapshot.round
            )
            row |= {f"{PERSONAL}clients": len(personal_scores.clients)}
            row |= {f"{PERSONAL}samples": int(personal_scores.samples.sum())}
            row |= summarize_scores(simulation, personal_scores, snapshot.round, PERSONAL)
    return RoundOutcome(snapshot, row, scores, train_seconds, time.perf_counter() - began, personal_scores)


def summarize_scores(simulation: Simulation, scores: ClientScores, round: int, prefix: str = "") -> dict[str, Any]:
    """The metrics of a round, in columns that begin with `prefix`."""
    loss, *others = simulation.task.metrics
    bad = np.flatnonzero(~np.isfinite(scores.sums[loss]))
    if len(bad):
        client = int(scores.clients[bad[0]])
        what = f"The {'personal model’s ' if prefix else ''}evaluation loss became {scores.sums[loss][bad[0]]}"
        raise DivergedError(what, round, simulation.client_ids([client])[0])
    row: dict[str, Any] = {}
    for metric in simulation.task.metrics:
        higher_is_better = metric in others
        row |= summarize_clients(prefix + metric, scores.sums[metric], scores.counts, higher_is_better)
    return row
