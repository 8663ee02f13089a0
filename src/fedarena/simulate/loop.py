"""The simulation: plan, train, transform, aggregate, step, evaluate, round after round."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedarena.core.errors import DivergedError, TrainingStuckError
from fedarena.core.words import counted
from fedarena.metrics import PERSONAL, TRAINING_SET, summarize_values
from fedarena.simulate.ahead import PlanAhead, StepAhead, rounds_may_overlap
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
from fedarena.train import ClientScores, CohortEngine, Groups, JobArrays, OtherTest
from fedarena.train.engine import IntArray, Part
from fedarena.train.late import LateChecks
from fedarena.train.memories import refusing_memories
from fedarena.train.own_code import seeded_if_own
from fedarena.transforms.attacks import ATTACK_SUCCESS

# Some thousand years; beyond that, fractions of a second get lost.
_LONGEST_SECONDS = 1e11
_AT_FIRST = "draw in prepare what differs from edge to edge"
_IN_CLOCK = "a round follows from its number, the clock (with the jobs that are running) and the world alone"


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
    with seeded_if_own(simulation.protocol, simulation.seed, "own protocol"):
        simulation.protocol.prepare(simulation.cohort, len(clients))
    latest = _LatestModel(simulation)
    world = simulation.world(latest.losses)
    with seeded_if_own(selector, simulation.seed, "own selector's beginning"):
        selector.prepare(clients, world.samples, simulation.cohort, simulation.seed)
    downloads = Downloads(simulation)
    ahead = PlanAhead(simulation, lambda before: _plan(simulation, downloads.planned(world, before), before))
    step_ahead = StepAhead(simulation)
    simulation.recount_participation((), 0)
    for round, feedback in history:
        _tell(simulation, round, feedback)
        downloads.observe(feedback)
        simulation.note_participation(feedback.clients, 0 if start is None else start.clock.version)
    if start is None:
        start = simulation.first_snapshot()
        row = {"end_seconds": start.clock.time, "epsilon": simulation.epsilon(start.clock.version)}
        yield _evaluated(simulation, start, row)
    snapshot = start.placed(engine.place)
    at_once = 2 if rounds_may_overlap(simulation) else 1
    underway: deque[_Round] = deque()
    watch = _Watch()
    while True:
        while len(underway) < at_once and not simulation.is_over(snapshot.round, snapshot.clock):
            latest.snapshot = snapshot
            simulation.outside_values.check()
            began = watch.now()
            plan, planned_jobs = ahead.round(snapshot)
            step_ahead.expect(snapshot)
            world_now = downloads.planned(world, snapshot)
            underway.append(_Round(simulation, world_now, downloads, snapshot, plan, planned_jobs, began, at_once > 1))
            snapshot = underway[-1].after
        if not underway:
            break
        yield underway.popleft().outcome(watch)
    if snapshot.clock.version == 0:
        raise TrainingStuckError(
            f"No update came in {counted(snapshot.round, 'round')}: too few clients were available, or they left, "
            "crashed or were late; the table of jobs says which"
            + (f" ({training} were still training)" if (training := len(snapshot.clock.running)) else "")
        )


class _Watch:
    """Tells rounds that overlap how long each of them took: since the one before was done, or since it began."""

    def __init__(self) -> None:
        self._done = self.now()

    @staticmethod
    def now() -> float:
        return time.perf_counter()

    def since(self, began: float) -> float:
        """Seconds that count for a round that began then."""
        return self.now() - max(began, self._done)

    def done(self) -> None:
        """A round is done."""
        self._done = self.now()


class _Round:
    """One round as planned: train, transform and aggregate, step; then evaluate, and describe what came of it.

    All computations begin when it is made. If it may `overlap` with the next one, nothing is looked at before its
    `outcome` is asked for, so that a GPU gets that round's work while it is still busy with this one's.
    """

    def __init__(
        self,
        simulation: Simulation,
        world: World,
        downloads: Downloads,
        before: Snapshot,
        plan: RoundPlan,
        jobs: JobArrays,
        began: float,
        overlaps: bool,
    ):
        self._simulation, self._world, self._downloads = simulation, world, downloads
        self._before, self._plan, self._jobs, self._began = before, plan, jobs, began
        self._checks = LateChecks() if overlaps else None
        self._server, self._tally, self.after = self._play(self._checks)
        self._evaluation: _Evaluation | None = None
        self._evaluate_seconds = 0.0
        if self._checks is not None:
            self._checks.seal()
            self._server.measure_later()
            self._begin_evaluation(later=True)

    def _play(self, checks: LateChecks | None) -> tuple[Server, Tally, Snapshot]:
        simulation, before, plan, waiting = self._simulation, self._before, self._plan, self._jobs
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
            checks,
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
                    trained = simulation.train(shards, server.transform_states, round, checks)
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
        return server, tally, after

    def _begin_evaluation(self, later: bool) -> None:
        if self._simulation.evaluates(self.after.round, self.after.clock):
            began = _Watch.now()
            self._evaluation = _Evaluation(self._simulation, self.after, later)
            self._evaluate_seconds += _Watch.now() - began

    def outcome(self, watch: _Watch) -> RoundOutcome:
        """What the round left behind, as soon as that is known."""
        if self._checks is not None and not self._checks.found_nothing():
            self._play(None)  # the same again, with a look at everything, says what is wrong and with whom
        row, jobs = self._described()
        train_seconds = watch.since(self._began) - self._evaluate_seconds
        if self._checks is None:
            self._begin_evaluation(later=False)
        found = _Evaluated()
        if self._evaluation is not None:
            began = watch.now()
            found = self._evaluation.finish()
            self._evaluate_seconds += watch.now() - began
        watch.done()
        row = {"round": self.after.round, **row, **found.row}
        return found.outcome(self.after, row, jobs, train_seconds, self._evaluate_seconds)

    def _described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The row of the round, and the columns of its jobs; whoever learns from them is told."""
        simulation, plan, server, round = self._simulation, self._plan, self._server, self.after.round
        simulation.note_participation(plan.ended.clients, plan.clock.version)
        real_bytes_down = self._downloads.real(plan.ended, server.download_state)
        row, jobs = describe_round(simulation, self._world, plan, self._tally, server, round, real_bytes_down)
        feedback = self._tally.feedback()
        _tell(simulation, round, feedback)
        self._downloads.observe(feedback)
        return row, jobs


def _tell(simulation: Simulation, round: int, feedback: Feedback) -> None:
    """Tells the selector what became of a round."""
    with seeded_if_own(simulation.selector, simulation.seed, "own selector's learning", round):
        simulation.selector.observe(round, feedback)


def _plan(simulation: Simulation, world: World, before: Snapshot) -> RoundPlan:
    """Who is invited in the next round, when everything ends, and whose updates are used."""
    round = before.round + 1
    world = replace(world, round=round)
    expected = simulation.algorithm.expected_upload_bytes(before.state)
    if expected is not None and simulation.sends:
        world = world.with_upload(simulation.sent_bytes(expected))
    if simulation.policy is not None:
        world = world.with_decisions(simulation.deciding(before))
    protocol, world = simulation.in_round(before, world)
    edges, seed = simulation.edges, simulation.seed
    # Links of edges are asked while a protocol plays, and when the round is closed.
    with seeded_if_own(edges, seed, "own links", round), refusing_memories(edges, "link_seconds", _AT_FIRST):
        with seeded_if_own(protocol, seed, "own round", round), refusing_memories(protocol, "play", _IN_CLOCK):
            plan = protocol.play(round, before.clock, world)
        plan = simulation.summed_securely(plan, world, round)
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
    return _evaluated(simulation, snapshot.placed(simulation.engine.place), {})


def _evaluated(simulation: Simulation, snapshot: Snapshot, row: dict[str, Any]) -> RoundOutcome:
    """A model that nobody has trained just now, evaluated."""
    began = time.perf_counter()
    found = _Evaluation(simulation, snapshot, later=False).finish()
    row = {"round": snapshot.round, **row, **found.row}
    return found.outcome(snapshot, row, {}, 0.0, time.perf_counter() - began)


@dataclass(frozen=True)
class _Evaluated:
    """What an evaluation found: columns for the row of the round, scores of clients, and columns about classes."""

    row: dict[str, Any] = field(default_factory=dict)
    scores: ClientScores | None = None
    personal_scores: ClientScores | None = None
    classes: dict[str, Any] = field(default_factory=dict)

    def outcome(
        self,
        snapshot: Snapshot,
        row: dict[str, Any],
        jobs: dict[str, Any],
        train_seconds: float,
        evaluate_seconds: float,
    ) -> RoundOutcome:
        """With what the round left behind besides."""
        scores, personal = self.scores, self.personal_scores
        return RoundOutcome(snapshot, row, scores, train_seconds, evaluate_seconds, personal, jobs, self.classes)


class _Evaluation:
    """Scores the model of a snapshot. If that may be `later`, it only begins to, and `finish` waits for it."""

    def __init__(self, simulation: Simulation, snapshot: Snapshot, later: bool):
        self._simulation, self._snapshot = simulation, snapshot
        engine, clients, part = simulation.engine, simulation.evaluation_clients, simulation.evaluation_part
        params = simulation.algorithm.evaluation_params(snapshot.state)

        def evaluate(clients: IntArray, part: Part, other: OtherTest | None = None) -> Callable[[], ClientScores]:
            if later and isinstance(engine, CohortEngine):
                return engine.evaluate_later(params, clients, part, other)
            return lambda: engine.evaluate(params, clients, part, other)

        self._scores, self._triggered, self._fit = evaluate(clients, part), None, None
        if (test := simulation.triggered_test) is not None:
            self._triggered = evaluate(clients, part, test)
        if simulation.fit_clients is not None:
            self._fit = evaluate(simulation.fit_clients, "train")

    def finish(self) -> _Evaluated:
        """The scores."""
        simulation, snapshot = self._simulation, self._snapshot
        scores, personal_scores = self._scores(), None
        row: dict[str, Any] = {"eval_clients": len(scores.clients), "eval_samples": int(scores.samples.sum())}
        row |= summarize_scores(simulation, scores, snapshot.round)
        if self._triggered is not None:
            (triggered,) = self._triggered().metrics.values()
            row[ATTACK_SUCCESS] = triggered.total if np.isfinite(triggered.total) else None
        if self._fit is not None:
            totals = {name: found.total for name, found in self._fit().metrics.items()}
            row |= {TRAINING_SET + name: total if np.isfinite(total) else None for name, total in totals.items()}
        if simulation.scores_personal_models:
            personal_scores = simulation.engine.evaluate_personal(
                simulation.broadcast(snapshot),
                snapshot.client_states,
                simulation.evaluation_clients,
                simulation.evaluation_part,
                snapshot.round,
            )
            row |= {f"{PERSONAL}clients": len(personal_scores.clients)}
            row |= {f"{PERSONAL}samples": int(personal_scores.samples.sum())}
            row |= summarize_scores(simulation, personal_scores, snapshot.round, PERSONAL)
        classes = describe_classes(simulation, scores, personal_scores)
        return _Evaluated(row, scores, personal_scores, classes)


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
    loss = scores.metrics[simulation.task.metrics[0].name]
    losses = loss.values
    # Who has no sample that weighs anything has no loss, and that is not the model's fault.
    added = losses[:, None] if loss.parts is None else loss.parts
    bad = np.flatnonzero(~np.isfinite(added).all(axis=1))
    if len(bad):
        client = int(scores.clients[bad[0]])
        what = f"The {'personal model’s ' if prefix else ''}evaluation loss became {losses[bad[0]]}"
        raise DivergedError(what, round, simulation.client_ids([client])[0])
    row: dict[str, Any] = {}
    for name, found in scores.metrics.items():
        row |= summarize_values(prefix + name, found.values, found.total, found.metric.info.higher_is_better)
    return row
