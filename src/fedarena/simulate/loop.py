"""The simulation: invite, train, aggregate, step, evaluate, round after round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedarena.core.errors import DivergedError, TrainingStuckError
from fedarena.metrics import OUTCOMES, PERSONAL, TRAINING_SET, summarize_values
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.protocols import Clock, RoundPlan
from fedarena.simulate.selectors import Feedback
from fedarena.simulate.server import Server
from fedarena.simulate.simulation import Simulation, Snapshot
from fedarena.simulate.world import World
from fedarena.train import ClientScores
from fedarena.train.engine import IntArray
from fedarena.train.versions import VersionedTraining

# Some thousand years; beyond that, fractions of a second get lost.
_LONGEST_SECONDS = 1e11


@dataclass(frozen=True)
class RoundOutcome:
    """What a round left behind: a row for the table of rounds, rows per evaluated client, and how long it took."""

    snapshot: Snapshot
    row: dict[str, Any]
    scores: ClientScores | None
    train_seconds: float
    evaluate_seconds: float
    personal_scores: ClientScores | None = None  # of clients with their own models, if the algorithm has such
    jobs: dict[str, Any] = field(default_factory=dict)  # columns of the table of jobs, for those that ended in it


def simulate(
    simulation: Simulation, start: Snapshot | None = None, history: Iterable[tuple[int, Feedback]] = ()
) -> Iterator[RoundOutcome]:
    """Yields round 0 (the untrained model, evaluated) and then every round; `start` continues after a snapshot.

    `history` is what the selector learned in all rounds up to that snapshot.
    """
    engine, selector, clients = simulation.engine, simulation.selector, simulation.training_clients
    simulation.protocol.prepare(simulation.cohort, len(clients))
    latest = _LatestModel(simulation)
    world = simulation.world(latest.losses)
    selector.prepare(clients, world.samples, simulation.cohort, simulation.seed)
    for round, feedback in history:
        selector.observe(round, feedback)
    if start is None:
        clock = Clock(time=simulation.clock.start_seconds)
        start = Snapshot(0, simulation.algorithm.server_init(engine.initial_params()), clock=clock)
        yield _finish_round(simulation, start, {"end_seconds": clock.time}, {}, train_seconds=0.0)
    broadcasts = {version: engine.place(groups) for version, groups in start.broadcasts.items()}
    snapshot = replace(start, state=engine.place(start.state), broadcasts=broadcasts)
    training = VersionedTraining(engine)
    while not simulation.is_over(snapshot.round, snapshot.clock):
        began = time.perf_counter()
        latest.snapshot = snapshot
        snapshot, row, jobs = _play_round(simulation, world, training, snapshot)
        yield _finish_round(simulation, snapshot, row, jobs, time.perf_counter() - began)
    if snapshot.clock.version == 0:
        raise TrainingStuckError(
            f"None of the {snapshot.round} rounds brought an update: too few clients were available, or they left, "
            "crashed or were late; the table of jobs says which"
            + (f" ({underway} were still training)" if (underway := len(snapshot.clock.running)) else "")
        )


class _LatestModel:
    """Answers selectors that ask for the losses of the current model."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self.snapshot: Snapshot | None = None

    def losses(self, clients: IntArray) -> FloatArray:
        assert self.snapshot is not None
        params = self._simulation.algorithm.broadcast(self.snapshot.state)["params"]
        return self._simulation.engine.evaluate(params, clients, "train").means("loss")


def _play_round(
    simulation: Simulation, world: World, training: VersionedTraining, before: Snapshot
) -> tuple[Snapshot, dict[str, Any], dict[str, Any]]:
    round = before.round + 1
    upload_bytes = simulation.algorithm.upload_bytes(before.state)
    if upload_bytes is not None and simulation.sends:
        world = world.with_upload(simulation.sent_bytes(upload_bytes))
    plan = simulation.protocol.play(round, before.clock, world)
    if plan.clock.time > _LONGEST_SECONDS:
        raise TrainingStuckError(
            f"Round {round} would end after {plan.clock.time / 3600:.3g} hours of virtual time, "
            "which no clock can tell; choose faster phones or less work"
        )
    server = Server(simulation, training, before, plan)
    server.run()
    row, jobs = _describe_round(simulation, world, plan, server, round)
    simulation.selector.observe(round, _feedback(plan, server.losses))
    after = Snapshot(round, server.state, server.memories(), plan.clock, server.older_broadcasts())
    return after, row, jobs


def _describe_round(
    simulation: Simulation, world: World, plan: RoundPlan, server: Server, round: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a round, and the columns of the jobs that ended in it."""
    jobs, used = plan.ended, plan.steps >= 0
    done = world.phones.done(jobs)
    samples = jobs.samples[used]
    has_energy = simulation.fleet is not None and simulation.fleet.fleet.devices.knows_energy
    row = {
        "clients": int(used.sum()),
        "samples": int(samples.sum()),
        "steps": server.steps,
        "train_loss": float((server.losses[used] * samples).sum() / samples.sum()) if len(samples) else None,
        "bytes_down": int(done.bytes_down.sum()),
        "bytes_up": int(done.bytes_up.sum()),
        "flops": float(done.flops.sum()),
        "invited": len(jobs),
        "failed": int((~used).sum()),
        "end_seconds": plan.clock.time,
        "wasted_seconds": float(done.seconds[~used].sum()),
        "wasted_bytes": int((done.bytes_down + done.bytes_up)[~used].sum()),
        "joules": float(done.joules.sum()) if has_energy else None,
        "staleness": float(plan.staleness[used].mean()) if used.any() else None,
        "succeeded": plan.succeeded,
    }
    columns = {
        "round": np.full(len(jobs), round),
        "job": jobs.numbers,
        "client": simulation.client_ids(jobs.clients.tolist()),
        "index": jobs.clients,
        "start_version": jobs.versions,
        "staleness": plan.staleness,
        "begin_seconds": jobs.begin,
        "downloaded_seconds": jobs.downloaded,
        "trained_seconds": jobs.trained,
        "uploaded_seconds": jobs.uploaded,
        "end_seconds": jobs.end,
        "worked_seconds": done.seconds,
        "outcome": [OUTCOMES[outcome] for outcome in jobs.outcomes.tolist()],
        "share": jobs.shares,
        "samples": jobs.samples,
        "loss": server.losses,
        "weight": np.where(used, plan.factors, np.nan),
        "bytes_down": done.bytes_down,
        "bytes_up": done.bytes_up,
        "flops": done.flops,
        "joules": done.joules,
    }
    return row, columns


def _feedback(plan: RoundPlan, losses: FloatArray) -> Feedback:
    jobs = plan.ended
    return Feedback(jobs.clients, plan.steps >= 0, losses, jobs.end - jobs.begin, jobs.samples)


def _finish_round(
    simulation: Simulation, snapshot: Snapshot, row: dict[str, Any], jobs: dict[str, Any], train_seconds: float
) -> RoundOutcome:
    began = time.perf_counter()
    row = {"round": snapshot.round, **row}
    scores = personal_scores = None
    if simulation.evaluates(snapshot.round, snapshot.clock):
        broadcast = simulation.algorithm.broadcast(snapshot.state)
        clients, part = simulation.evaluation_clients, simulation.evaluation_part
        scores = simulation.engine.evaluate(broadcast["params"], clients, part)
        row |= {"eval_clients": len(scores.clients), "eval_samples": int(scores.samples.sum())}
        row |= summarize_scores(simulation, scores, snapshot.round)
        if simulation.fit_clients is not None:
            fit = simulation.engine.evaluate(broadcast["params"], simulation.fit_clients, "train")
            totals = {name: found.total for name, found in fit.metrics.items()}
            row |= {TRAINING_SET + name: total if np.isfinite(total) else None for name, total in totals.items()}
        if simulation.algorithm.personalizes:
            personal_scores = simulation.engine.evaluate_personal(
                broadcast, snapshot.memories, clients, part, snapshot.round
            )
            row |= {f"{PERSONAL}clients": len(personal_scores.clients)}
            row |= {f"{PERSONAL}samples": int(personal_scores.samples.sum())}
            row |= summarize_scores(simulation, personal_scores, snapshot.round, PERSONAL)
    evaluate_seconds = time.perf_counter() - began
    return RoundOutcome(snapshot, row, scores, train_seconds, evaluate_seconds, personal_scores, jobs)


def summarize_scores(simulation: Simulation, scores: ClientScores, round: int, prefix: str = "") -> dict[str, Any]:
    """The metrics of a round, in columns that begin with `prefix`."""
    losses = scores.means(simulation.task.metrics[0].name)
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        client = int(scores.clients[bad[0]])
        what = f"The {'personal model’s ' if prefix else ''}evaluation loss became {losses[bad[0]]}"
        raise DivergedError(what, round, simulation.client_ids([client])[0])
    row: dict[str, Any] = {}
    for name, found in scores.metrics.items():
        row |= summarize_values(prefix + name, found.values, found.total, found.metric.info.higher_is_better)
    return row
