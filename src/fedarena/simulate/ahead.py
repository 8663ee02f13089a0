"""What can be done while a GPU, threads or a crew are busy with a round, because what that learns changes nothing.

The next round is planned, and transforms get ready for the present one's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeGuard

import torch

from fedarena.simulate.protocols import RoundPlan
from fedarena.simulate.protocols.base import Clock
from fedarena.simulate.simulation import Simulation, Snapshot
from fedarena.train import Algorithm, CohortEngine, Engine, Groups, JobArrays, RayEngine
from fedarena.train.examples import example_update
from fedarena.train.execution import SMALL_OPERATIONS
from fedarena.train.own_code import has_own_code
from fedarena.transforms import Transform

Plan = Callable[[Snapshot], RoundPlan]


class PlanAhead:
    """Plans a round before the one before it is done, if chance alone decides about it."""

    def __init__(self, simulation: Simulation, plan: Plan):
        self._simulation, self._plan = simulation, plan
        self._next: Snapshot | None = None  # what is known of where the present round will end
        self._planned: tuple[int, Clock, RoundPlan, JobArrays] | None = None
        parts = (simulation.selector, simulation.protocol, simulation.edges)
        if _is_left_to_chance(simulation) and _go_well_with_training(simulation.engine, parts):
            simulation.engine.do_meanwhile(self._plan_next)

    def round(self, before: Snapshot) -> tuple[RoundPlan, JobArrays]:
        """The plan of the round after a snapshot, and its jobs."""
        number, planned = before.round + 1, self._planned
        if planned is not None and planned[0] == number and planned[1] is before.clock:
            plan, jobs = planned[2:]
        else:
            plan = self._plan(before)
            jobs = self._simulation.jobs_of(plan, number)
        self._planned, self._next = None, None
        if number < self._simulation.rounds:
            self._next = replace(before, round=number, clock=plan.clock)
        return plan, jobs

    def _plan_next(self) -> None:
        after, self._next = self._next, None
        if after is None:
            return
        number = after.round + 1
        try:
            plan = self._plan(after)
            jobs = self._simulation.jobs_of(plan, number)
        except Exception:  # will be raised again when it is time for that round, if it comes at all
            return
        self._planned = number, after.clock, plan, jobs
        engine = self._simulation.engine
        assert isinstance(engine, CohortEngine)
        engine.plan_ahead(jobs)


class StepAhead:
    """Lets transforms compute what they need for a step of the server while clients train for it."""

    def __init__(self, simulation: Simulation):
        self._simulation = simulation
        self._begins: Snapshot | None = None  # where the present round does, if nothing was drawn for it yet
        self._update: Groups | None = None  # what one looks like
        transforms = simulation.path.transforms
        if transforms and _go_well_with_training(simulation.engine, transforms):
            simulation.engine.do_meanwhile(self._draw)

    def expect(self, before: Snapshot) -> None:
        """The round after a snapshot begins."""
        self._begins = before

    def _draw(self) -> None:
        before = self._begins
        if before is None or not _is_on_usual_stream(before):
            return
        self._begins = None
        if self._update is None:
            self._update = example_update(self._simulation.algorithm, before.state["params"])
        with SMALL_OPERATIONS.given_up():
            self._simulation.path.draw_ahead(self._update, before.round + 1, before.clock.version)


def _is_on_usual_stream(snapshot: Snapshot) -> bool:
    """Whether what a GPU is told now comes before what the server tells it later; on a CPU it always does."""
    device = next(iter(snapshot.state["params"].values())).device
    return device.type != "cuda" or torch.cuda.current_stream(device) == torch.cuda.default_stream(device)


def _go_well_with_training(engine: Engine, parts: Iterable[object]) -> TypeGuard[CohortEngine]:
    """Whether these parts may be asked while an engine trains: on a CPU, another thread does so.

    Somebody's own draw from generators of the whole process, which are seeded for each of them while it is asked.
    """
    if not isinstance(engine, CohortEngine):
        return False
    return engine.computes_beside_host or not any(map(has_own_code, parts))


def _is_left_to_chance(simulation: Simulation) -> bool:
    """Whether who takes part, and when, depends on nothing that is found out in training."""
    uploads_differ = type(simulation.algorithm).expected_upload_bytes is not Algorithm.expected_upload_bytes
    drawn = simulation.selector.sampling is not None
    drawn = drawn and simulation.edges.rounds == 1  # of edges' own rounds, jobs are others
    return drawn and simulation.policy is None and simulation.downlink is None and not uploads_differ


def rounds_may_overlap(simulation: Simulation) -> bool:
    """Whether a GPU may be given the next round's work before anybody has looked at what the present one came to.

    Nothing that is found out then may decide about the next round, and nothing but the server's tensors may change.
    """
    engine, algorithm = simulation.engine, simulation.algorithm
    if not isinstance(engine, CohortEngine) or isinstance(engine, RayEngine) or not engine.computes_beside_host:
        return False
    keeps = [type(algorithm).client_init is not Algorithm.client_init]
    keeps += [type(transform).client_init is not Transform.client_init for transform in simulation.transforms]
    asked = algorithm.needs_start_loss or algorithm.personalizes or simulation.participation is not None
    others = (simulation.canaries, simulation.trusted, simulation.secure_rounds)
    unusual = len(simulation.corrupted_clients) > 0 or any(part is not None for part in others)
    return _is_left_to_chance(simulation) and not any(keeps) and not asked and not unusual
