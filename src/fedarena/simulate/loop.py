"""The simulation: plan, train, transform, aggregate, step, evaluate, round after round."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedarena.core.errors import DivergedError, TrainingStuckError
from fedarena.core.words import counted
from fedarena.metrics import PERSONAL, TRAINING_SET, summarize_values
from fedarena.simulate.ahead import PlanAhead, StepAhead
from fedarena.simulate.client_states import ClientStateChanges
from fedarena.simulate.downloads import Downloads
from fedarena.simulate.edges.rounds import train_by_edges
from fedarena.simulate.jobs import FloatArray
from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.selectors import Feedback
from fedarena.simulate.server import Server
from fedarena.simulate.simulation import Simulation, Snapshot
from fedarena.simulate.tally import Tally, describe_round
from fedarena.simulate.world import World
from fedarena.train import ClientScores, Groups, JobArrays
from fedarena.train.engine import IntArray
from fedarena.transforms.attacks import ATTACK_SUCCESS

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
    classes: dict[str, Any] = field(default_factory=dict)  # columns of the table of classes, if metrics tell of them


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
    downloads = Downloads(simulation)
    ahead = PlanAhead(simulation, lambda before: _plan(simulation, downloads.planned(world, before), before))
    step_ahead = StepAhead(simulation)
    simulation.recount_participation((), 0)
    for round, feedback in history:
        selector.observe(round, feedback)
        downloads.observe(feedback)
        simulation.note_participation(feedback.clients, 0 if start is None else start.clock.version)
    if start is None:
        start = simulation.first_snapshot()
        row = {"end_seconds": start.clock.time, "epsilon": simulation.epsilon(start.clock.version)}
        yield _evaluate(simulation, start, row, {}, train_seconds=0.0)
    snapshot = start.placed(engine.place)
    while not simulation.is_over(snapshot.round, snapshot.clock):
        began = time.perf_counter()
        latest.snapshot = snapshot
        plan, planned_jobs = ahead.round(snapshot)
        step_ahead.expect(snapshot)
        world_now = downloads.planned(world, snapshot)
        snapshot, row, jobs = _play_round(simulation, world_now, snapshot, downloads, plan, planned_jobs)
        yield _evaluate(simulation, snapshot, row, jobs, time.perf_counter() - began)
    if snapshot.clock.version == 0:
        raise TrainingStuckError(
            f"No update came in {counted(snapshot.round, 'round')}: too few clients were available, or they left, "
            "crashed or were late; the table of jobs says which"
            + (f" ({underway} were still training)" if (underway := len(snapshot.clock.running)) else "")
        )


def _play_round(
    simulation: Simulation,
    world: World,
    before: Snapshot,
    downloads: Downloads,
    plan: RoundPlan,
    waiting: JobArrays,
) -> tuple[Snapshot, dict[str, Any], dict[str, Any]]:
    """One round as planned: train, transform and aggregate, step. What it leaves behind, its row, and its jobs."""
    round = before.round + 1
    server = Server(
        simulation.path,
        before.state,
        before.transform_states,
        before.clock.version,
        before.broadcasts,
        before.aggregator_state,
        simulation.downlink,
        before.download_state,
    )
    changes = ClientStateChanges(before.client_states)
    tally = Tally(simulation, plan)
    for step in range(plan.server_steps):
        if (waiting.server_steps == step).any():
            # What is needed for a step is trained together with everything else that can be trained by then.
            can_train = waiting.versions <= server.version
            ready, waiting = waiting.take(can_train), waiting.take(~can_train)
            if simulation.edges.rounds > 1:
                trained = train_by_edges(simulation, server, ready, before.client_states, round)
            else:
                shards = simulation.engine.divide(ready, server.broadcasts, before.client_states)
                trained = simulation.train(shards, server.transform_states, round)
            for result in trained:
                server.accept(result)
                for clients, kept in result.client_states:
                    changes.add(clients, kept)
                if result.state_file is not None:
                    changes.adopt(result.state_file)
                tally.count(result)
        canaries = simulation.send_canaries(server.state["params"], round, server.version, server.transform_states)
        if canaries is not None:
            server.accept(canaries)
        trusted = simulation.trusted_update(server.broadcasts[server.version], server.version, round)
        server.step(round, simulation.server_lr_scale(round), trusted)
    simulation.note_participation(plan.ended.clients, plan.clock.version)
    real_bytes_down = downloads.real(plan.ended, server.download_state)
    row, jobs = describe_round(simulation, world, plan, tally, server, round, real_bytes_down)
    feedback = tally.feedback()
    simulation.selector.observe(round, feedback)
    downloads.observe(feedback)
    after = Snapshot(
        round,
        server.state,
        changes.client_states(),
        plan.clock,
        _still_needed(simulation, plan, server),
        tuple(server.transform_states),
        server.aggregator_state,
        server.download_state,
    )
    return after, row, jobs


def _plan(simulation: Simulation, world: World, before: Snapshot) -> RoundPlan:
    """Who is invited in the next round, when everything ends, and whose updates are used."""
    round = before.round + 1
    expected = simulation.algorithm.expected_upload_bytes(before.state)
    if expected is not None and simulation.sends:
        world = world.with_upload(simulation.sent_bytes(expected))
    if simulation.policy is not None:
        world = world.with_decisions(simulation.deciding(before))
    protocol, world = simulation.in_round(before, world)
    plan = protocol.play(round, before.clock, world)
    if simulation.edge_links is not None:
        plan = simulation.edge_links.closed(plan)
    if simulation.always_steps:
        plan = plan.with_a_step()
    if plan.clock.time > _LONGEST_SECONDS:
        raise TrainingStuckError(
            f"Round {round} would end after {plan.clock.time / 3600:.3g} hours of virtual time, "
            "which no clock can tell; choose faster phones or less work"
        )
    return plan


def _still_needed(simulation: Simulation, plan: RoundPlan, server: Server) -> dict[int, Groups]:
    """The older broadcasts from which jobs are still training whose updates may be used one day."""
    clock = plan.clock
    needed = {int(version) for version in clock.running.versions} - {clock.version}
    oldest = simulation.protocol.oldest_useful(clock.version)
    return {version: server.broadcasts[version] for version in sorted(needed) if version >= oldest}


class _LatestModel:
    """Answers selectors that ask for the losses of the current model."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self.snapshot: Snapshot | None = None

    def losses(self, clients: IntArray) -> FloatArray:
        assert self.snapshot is not None
        params = self._simulation.broadcast(self.snapshot)["params"]
        return self._simulation.engine.evaluate(params, clients, "train").means("loss")


def evaluate_now(simulation: Simulation, snapshot: Snapshot) -> RoundOutcome:
    """The scores of a model whose round turned out to be the last one only after it was played."""
    return _evaluate(simulation, snapshot.placed(simulation.engine.place), {}, {}, train_seconds=0.0, is_last=True)


def _evaluate(
    simulation: Simulation,
    snapshot: Snapshot,
    row: dict[str, Any],
    jobs: dict[str, Any],
    train_seconds: float,
    is_last: bool = False,
) -> RoundOutcome:
    began = time.perf_counter()
    row = {"round": snapshot.round, **row}
    scores = personal_scores = None
    classes: dict[str, Any] = {}
    if is_last or simulation.evaluates(snapshot.round, snapshot.clock):
        broadcast = simulation.broadcast(snapshot)
        clients, part = simulation.evaluation_clients, simulation.evaluation_part
        params = simulation.algorithm.evaluation_params(snapshot.state)
        scores = simulation.engine.evaluate(params, clients, part)
        row |= {"eval_clients": len(scores.clients), "eval_samples": int(scores.samples.sum())}
        row |= summarize_scores(simulation, scores, snapshot.round)
        if (test := simulation.triggered_test) is not None:
            (triggered,) = simulation.engine.evaluate(params, clients, part, test).metrics.values()
            row[ATTACK_SUCCESS] = triggered.total if np.isfinite(triggered.total) else None
        if simulation.fit_clients is not None:
            fit = simulation.engine.evaluate(params, simulation.fit_clients, "train")
            totals = {name: found.total for name, found in fit.metrics.items()}
            row |= {TRAINING_SET + name: total if np.isfinite(total) else None for name, total in totals.items()}
        if simulation.algorithm.personalizes:
            personal_scores = simulation.engine.evaluate_personal(
                broadcast, snapshot.client_states, clients, part, snapshot.round
            )
            row |= {f"{PERSONAL}clients": len(personal_scores.clients)}
            row |= {f"{PERSONAL}samples": int(personal_scores.samples.sum())}
            row |= summarize_scores(simulation, personal_scores, snapshot.round, PERSONAL)
        classes = describe_classes(simulation, scores, personal_scores)
    evaluate_seconds = time.perf_counter() - began
    return RoundOutcome(snapshot, row, scores, train_seconds, evaluate_seconds, personal_scores, jobs, classes)


def describe_classes(
    simulation: Simulation, scores: ClientScores, personal_scores: ClientScores | None
) -> dict[str, Any]:
    """Columns of the table of classes; nothing where no metric tells of classes."""
    found = scores.classes
    if found is None:
        return {}
    number = len(found.samples)
    names, counts = simulation.class_names, simulation.task.spec.class_counts
    columns: dict[str, Any] = {
        "index": np.arange(number),
        "class": list(names) if names and len(names) == number else [str(index) for index in range(number)],
        "train_samples": list(counts) if counts and len(counts) == number else [None] * number,
        "samples": found.samples,
        "clients": found.clients,
        **found.values,
    }
    if personal_scores is not None:
        own = {} if personal_scores.classes is None else personal_scores.classes.values
        columns |= {PERSONAL + name: own.get(name, np.full(number, np.nan)) for name in found.values}
    return columns


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
