"""Protocols: whom the server waits for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import make_world, play

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.simulate import PROTOCOLS, SELECTORS, Clock, Outcome
from fedarena.simulate.jobs import join_jobs, no_jobs
from fedarena.simulate.protocols import Asynchronous, Buffered, Deadline, Ideal, Readiness, Synchronous
from fedarena.transforms.aggregators import Mean, Mixing

SECONDS = [1.0, 2.0, 3.0, 4.0, 50.0]  # a job takes three times that


def outcomes(plan) -> dict[int, str]:
    return {int(c): Outcome(o).label for c, o in zip(plan.ended.clients, plan.ended.outcomes, strict=True)}


def test_ideal_waits_for_the_slowest_and_ignores_availability() -> None:
    world = make_world(SECONDS, [[(900, 910)]] * 5, always_on=True, overhead_seconds=7)
    first, second = play(Ideal(), world, 2, cohort=5)
    assert first.clock.time == 7 + 150
    assert second.clock.time == 2 * (7 + 150)
    assert first.succeeded
    assert set(outcomes(first).values()) == {"used"}


def test_synchronous_uses_the_first_and_stops_the_others() -> None:
    plan = play(Synchronous(over_commit=5 / 3), make_world(SECONDS), 1, cohort=3)[0]
    assert plan.clock.time == 9
    assert outcomes(plan) == {0: "used", 1: "used", 2: "used", 3: "late", 4: "late"}
    assert plan.ended.end.tolist() == [3, 6, 9, 9, 9]
    assert (plan.steps >= 0).tolist() == [True, True, True, False, False]


def test_synchronous_makes_do_with_who_is_left() -> None:
    world = make_world(SECONDS, [[(0, 1000)], [(0, 4)], [(0, 1)], [], [(0, 100)]])
    plan = play(Synchronous(), world, 1, cohort=4)[0]
    assert outcomes(plan) == {
        0: "used",
        1: "left while uploading",
        2: "left while downloading",
        4: "left while uploading",
    }
    assert plan.clock.time == 100  # when the last phone is seen to leave
    assert plan.succeeded


def test_synchronous_waits_for_somebody_to_come() -> None:
    world = make_world(SECONDS, [[], [], [(400, 500)], [], []])
    plan = play(Synchronous(), world, 1, cohort=3)[0]
    assert plan.ended.begin.tolist() == [400]
    assert plan.clock.time == 409


@pytest.mark.parametrize("protocol", [Synchronous(), Readiness(), Buffered(buffer_size=1), Deadline()])
def test_nobody_ever_available_ends_with_a_sentence(protocol) -> None:
    with pytest.raises(RunFailedError, match="nobody is left who is ever available"):
        play(protocol, make_world(SECONDS, [[]] * 5), 3, cohort=3)


def test_a_deadline() -> None:
    plan = play(Deadline(seconds=10), make_world(SECONDS), 1, cohort=5)[0]
    assert outcomes(plan) == {0: "used", 1: "used", 2: "used", 3: "late", 4: "late"}
    assert plan.clock.time == 10
    generous = play(Deadline(seconds=1000), make_world(SECONDS), 1, cohort=5)[0]
    assert generous.clock.time == 150  # nobody waits when all are there


def test_a_deadline_nobody_meets_costs_time_but_no_step() -> None:
    first, second = play(Deadline(seconds=2), make_world(SECONDS), 2, cohort=5)
    assert not first.succeeded
    assert (first.clock.time, first.clock.version) == (2, 0)
    assert set(outcomes(first).values()) == {"late"}
    assert second.clock.time == 4


def test_whoever_would_leave_or_crash_after_the_deadline_is_late() -> None:
    world = make_world([10.0] * 3, [[(0, 5)], [(0, 25)], [(0, 1000)]], crash_rate=0.999)
    plan = play(Deadline(seconds=0.01), world, 1, cohort=3)[0]
    assert set(outcomes(plan).values()) == {"late"}
    plan = play(Deadline(seconds=20), make_world([10.0] * 3, [[(0, 5)], [(0, 25)], [(0, 1000)]]), 1, cohort=3)[0]
    assert outcomes(plan) == {0: "left while downloading", 1: "late", 2: "late"}


def test_a_deadline_needs_a_share_of_successes() -> None:
    one_in_time = [1.0] + [100.0] * 19
    assert not play(Deadline(seconds=10), make_world(one_in_time), 1, cohort=20)[0].succeeded
    assert play(Deadline(seconds=10, minimum_success_share=0.05), make_world(one_in_time), 1, cohort=20)[0].succeeded


def test_a_deadline_needs_two_to_invite() -> None:
    world = make_world(SECONDS, [[(0, 1000)], [(30, 900)], [], [], []])
    first, second = play(Deadline(seconds=20), world, 2, cohort=4)
    assert len(first.ended) == 0
    assert not first.succeeded
    assert first.clock.time == 20
    third = play(Deadline(seconds=20), world, 3, cohort=4)[2]
    assert not second.succeeded
    assert len(third.ended) == 2


def test_readiness_waits_for_a_share() -> None:
    assert play(Readiness(), make_world(SECONDS), 1, cohort=5)[0].clock.time == 150
    plan = play(Readiness(share=0.8), make_world(SECONDS), 1, cohort=5)[0]
    assert plan.clock.time == 12
    assert outcomes(plan)[4] == "late"


def test_readiness_with_failures_waits_until_nobody_is_left() -> None:
    world = make_world(SECONDS, [[(0, 1000)], [(0, 1000)], [(0, 2)], [(0, 5)], [(0, 1000)]])
    plan = play(Readiness(share=0.8), world, 1, cohort=5)[0]
    assert plan.clock.time == 150
    assert (plan.steps >= 0).sum() == 3


@pytest.mark.parametrize("protocol", [Ideal(), Synchronous(), Readiness(), Deadline(seconds=1000)])
def test_the_server_takes_its_time_before_every_round(protocol) -> None:
    world = make_world([2.0] * 6, overhead_seconds=11, always_on=protocol.ignores_availability)
    plans = play(protocol, world, 3, cohort=3)
    assert [plan.clock.time for plan in plans] == [17, 34, 51]


def test_a_deadline_with_nobody_there_waits_for_the_first() -> None:
    world = make_world(SECONDS, [[(400, 900)]] * 5)
    first, second = play(Deadline(seconds=20), world, 2, cohort=4)
    assert (first.succeeded, first.clock.time) == (False, 400)
    assert second.succeeded


def test_a_cohort_of_one_is_enough_for_itself() -> None:
    assert play(Deadline(seconds=1000), make_world(SECONDS), 1, cohort=1)[0].succeeded


def test_shares_are_not_lost_to_rounding() -> None:
    world = make_world([1.0] * 55 + [900.0] * 45)
    assert play(Deadline(seconds=10, minimum_success_share=0.55), world, 1, cohort=100)[0].succeeded
    assert len(play(Readiness(share=1e-11), make_world(SECONDS), 1, cohort=5)[0].ended) == 5


def test_a_selector_made_from_uniform_is_asked() -> None:
    class OnlyEven(SELECTORS.get("uniform")):  # type: ignore[misc]
        def select(self, number, candidates, round):
            return candidates.draw(number, accept=lambda clients: clients % 2 == 0)

    world = make_world([1.0] * 20)
    even = type(world)(**{**vars(world), "selector": OnlyEven()})
    for plan in play(Buffered(buffer_size=2), even, 5, cohort=3):
        assert (plan.ended.clients % 2 == 0).all()


def test_buffered_goes_on_while_some_are_slow() -> None:
    # three at a time; a step with every two updates
    plans = play(Buffered(buffer_size=2, max_staleness=None), make_world(SECONDS), 30, cohort=3)
    ended = join_jobs([plan.ended for plan in plans])
    assert all((plan.steps >= 0).sum() == 2 for plan in plans)
    slow = ended.take((ended.clients == 4) & (ended.outcomes == Outcome.USED))
    if len(slow):
        staleness = np.concatenate([plan.staleness for plan in plans])[ended.clients == 4]
        assert staleness.max() > 3
        np.testing.assert_allclose(Mean().factors(staleness), (1 + staleness) ** -0.5)


def test_updates_that_are_too_old_are_dropped() -> None:
    plans = play(Buffered(buffer_size=2, max_staleness=1), make_world(SECONDS), 40, cohort=4)
    stale = [outcome for plan in plans for outcome in outcomes(plan).values() if outcome == "stale"]
    assert stale
    for plan in plans:
        assert plan.staleness[plan.steps >= 0].max() <= 1


class Slow:
    """Asynchronous rounds event by event: whoever ends first is dealt with, then somebody is invited."""

    def __init__(self, protocol, world, cohort: int):
        self.protocol, self.world, self.cohort = protocol, world, cohort
        self.time, self.version, self.next_job, self.running = 0.0, 0, 0, []

    def fill(self, round: int, ended, after_a_step: bool = True) -> None:
        free = self.cohort - len(self.running)
        if free:
            busy = np.sort(np.array([int(job.clients[0]) for job in [*self.running, *ended]], dtype=np.int64))
            if free == 1 and not after_a_step:
                invited = self.world.invite_each(np.array([self.time]), round, busy, self.next_job)
            else:
                invited = self.world.invite(free, self.time, round, busy, turn=self.next_job)
            jobs = self.world.plan(invited, self.time, self.version, self.next_job)
            self.running += [jobs.take([i]) for i in range(len(jobs))]
            self.next_job += len(jobs)

    def round(self, round: int):
        protocol, ended, steps, staleness = self.protocol, [], [], []
        wanted = protocol.updates_per_step * protocol.steps_per_round
        first_version, used, time = self.version, 0, self.time
        self.fill(round, [])
        while not self.running:
            self.time = self.world.next_available(self.time)
            self.fill(round, [])
        while used < wanted and self.running and len(ended) - used < 20 * (self.cohort + wanted):
            job = min(self.running, key=lambda job: (float(job.end[0]), int(job.numbers[0])))
            self.running.remove(job)
            self.time = time = float(job.end[0])
            old = self.version - int(job.versions[0])
            too_old = protocol.max_staleness is not None and old > protocol.max_staleness
            usable = bool(job.arrive[0]) and not too_old
            ended.append(job.stopped(np.array([True]), np.inf, Outcome.STALE) if not usable else job)
            steps.append(self.version - first_version if usable else -1)
            staleness.append(old)
            used += usable
            completes = usable and used % protocol.updates_per_step == 0
            self.version += completes
            if used < wanted:
                self.fill(round, ended, after_a_step=completes)
        if used % protocol.updates_per_step:
            self.version += 1
        self.time = time
        return join_jobs([no_jobs(), *ended]), steps, staleness


SLOTS = st.lists(st.integers(0, 199), min_size=0, max_size=6, unique=True).map(
    lambda bounds: list(zip(*[iter(sorted(bounds))] * 2, strict=False))
)


@settings(max_examples=60, deadline=None)
@given(
    phones=st.lists(st.tuples(st.floats(0.05, 40), SLOTS), min_size=4, max_size=14),
    protocol=st.one_of(
        st.builds(Buffered, buffer_size=st.integers(1, 4), max_staleness=st.sampled_from([None, 0, 2])),
        st.builds(Asynchronous, updates_per_round=st.integers(1, 4), max_staleness=st.sampled_from([None, 1])),
    ),
    cohort=st.integers(1, 6),
    overhead=st.sampled_from([0.0, 3.0]),
    crash_rate=st.sampled_from([0.0, 0.3]),
    selector=st.sampled_from(["uniform", "by_size", "leaving_soon"]),
    leaving=st.sampled_from(["abort", "pause"]),
)
def test_asynchronous_rounds_are_those_of_one_event_after_the_other(
    phones, protocol, cohort, overhead, crash_rate, selector, leaving
) -> None:
    seconds, slots = zip(*phones, strict=True)
    if not any(slots):
        return
    world = make_world(
        list(seconds),
        list(slots),
        period=200,
        selector=selector,
        crash_rate=crash_rate,
        overhead_seconds=overhead,
        leaving=leaving,
    )
    slow = Slow(protocol, world, cohort)
    for number, plan in enumerate(play(protocol, world, 6, cohort), start=1):
        ended, steps, staleness = slow.round(number)
        for name, expected in vars(ended).items():
            np.testing.assert_array_equal(getattr(plan.ended, name), expected, err_msg=f"round {number}: {name}")
        assert plan.steps.tolist() == steps
        assert plan.staleness.tolist() == staleness
        assert (plan.clock.time, plan.clock.version, plan.clock.next_job) == (slow.time, slow.version, slow.next_job)


def test_clients_invited_one_at_a_time_are_equally_likely() -> None:
    """Of six phones, one is busy and one is away; the others are all as likely, also those that come later."""
    slots = [[(0, 1000)], [(0, 1000)], [(0, 1000)], [(0, 1000)], [], [(500, 1000)]]
    world = make_world([1.0] * 6, slots)
    first, second, both = np.zeros(6), np.zeros(6), set()
    for turn in range(3000):
        one, other = world.invite_each(np.array([100.0, 600.0]), 1, np.array([2]), 2 * turn).tolist()
        assert one != other
        first[one] += 1
        second[other] += 1
        both.add((one, other))
    assert first[[2, 4, 5]].sum() == 0
    assert abs(first[[0, 1, 3]] - 1000).max() < 120
    assert second[[2, 4]].sum() == 0
    # whoever was not invited first: 1 in 3 of the time each of two others; or the one who came
    assert abs(second[[0, 1, 3]] - 2000 / 3).max() < 110
    assert abs(second[5] - 1000) < 120
    assert len(both) == 9
    assert len(world.invite_each(np.array([100.0] * 9), 1, np.array([2]), 0)) == 3  # then nobody is left


def check_laws(plans, world, cohort: int) -> None:
    """What holds under every protocol."""
    running_until: dict[int, float] = {}
    everything = join_jobs([plan.ended for plan in plans])
    assert len(np.unique(everything.numbers)) == len(everything)
    order = np.lexsort((everything.numbers, everything.begin))
    for job in (everything.take([i]) for i in order):
        client = int(job.clients[0])
        assert job.begin[0] >= running_until.get(client, -1.0)  # never twice at once
        running_until[client] = float(job.end[0])
    before = 0.0
    for plan in plans:
        used = plan.steps >= 0
        assert plan.clock.time >= before
        assert (plan.ended.end <= plan.clock.time + 1e-9).all()
        assert ((plan.ended.outcomes == Outcome.USED) == used).all()
        assert np.isfinite(plan.ended.uploaded[used]).all()
        left = (plan.ended.outcomes >= Outcome.LEFT_DOWNLOADING) & (plan.ended.outcomes <= Outcome.LEFT_UPLOADING)
        assert not world.phones.is_available(plan.ended.clients[left], plan.ended.end[left]).any()
        assert len(np.unique(plan.ended.clients[used])) == used.sum()
        assert len(plan.clock.running) <= cohort
        before = plan.clock.time


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(PROTOCOLS.names()),
    selector=st.sampled_from(["uniform", "by_size", "oort", "leaving_soon"]),
    phones=st.lists(st.tuples(st.floats(0.05, 40), SLOTS), min_size=12, max_size=16),
    cohort=st.integers(1, 6),
    crash_rate=st.sampled_from([0.0, 0.3]),
)
def test_laws_of_every_protocol(name, selector, phones, cohort, crash_rate) -> None:
    seconds, slots = zip(*phones, strict=True)
    if not any(slots):
        return
    protocol = PROTOCOLS.get(name)()
    world = make_world(
        list(seconds),
        list(slots),
        period=200,
        selector=selector,
        crash_rate=crash_rate,
        always_on=protocol.ignores_availability,
    )
    plans = play(protocol, world, 5, cohort)
    check_laws(plans, world, cohort)
    again = play(PROTOCOLS.get(name)(), world, 5, cohort)
    for one, other in zip(plans, again, strict=True):
        assert all(np.array_equal(getattr(one.ended, f), getattr(other.ended, f)) for f in vars(one.ended))


def test_a_selector_that_breaks_the_rules_is_told_so() -> None:
    world = make_world(SECONDS)
    for chosen, complaint in (
        ([0, 0], "different"),
        ([0, 1, 2, 3], "at most 3"),
        ([17], "not a candidate"),
        ([], "chose nobody, although somebody is available"),
        (None, "must return an array of clients' indexes, not None"),
        ([0.5], "must return an array of clients' indexes"),
    ):
        selector = SELECTORS.get("uniform")()
        selector.select = lambda *_, chosen=chosen: chosen  # type: ignore[method-assign]
        broken = type(world)(**{**vars(world), "selector": selector})
        for protocol in (Readiness(), Buffered(buffer_size=2)):
            with pytest.raises(RunFailedError, match=complaint):
                play(protocol, broken, 1, cohort=3)


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        (Synchronous, {"over_commit": 0.5}, "over_commit must be from 1"),
        (Deadline, {"seconds": 0}, "seconds must be above 0"),
        (Deadline, {"minimum_invited": 0}, "minimum_invited must be at least 1"),
        (Deadline, {"minimum_success_share": 0}, "minimum_success_share must be above 0"),
        (Readiness, {"share": 1.5}, "share must be above 0 and at most 1"),
        (Buffered, {"buffer_size": 0}, "buffer_size must be at least 1"),
        (Buffered, {"max_staleness": -1}, "max_staleness must not be negative"),
        (Buffered, {"buffer_size": 6}, "the updates of 6 different clients.*choose a smaller protocol.buffer_size"),
        (Asynchronous, {"updates_per_round": 6}, "choose a smaller protocol.updates_per_round"),
        (Asynchronous, {"updates_per_round": 0}, "updates_per_round must be at least 1"),
    ],
)
def test_options_that_make_no_sense(kind, options, complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        kind(**options).prepare(3, 5)


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        (Mean, {"staleness_exponent": -1}, "staleness_exponent must not be negative"),
        (Mixing, {"share": 0}, "share must be above 0"),
        (Mixing, {"staleness_exponent": -1}, "staleness_exponent must not be negative"),
    ],
)
def test_options_of_aggregators_that_make_no_sense(kind, options, complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        kind(**options)


def test_a_clock_starts_empty() -> None:
    clock = Clock()
    assert (clock.time, clock.version, clock.next_job, len(clock.running)) == (0.0, 0, 0, 0)
