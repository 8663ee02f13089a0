"""Rounds with a deadline whose late updates are used later, and how those are merged with fresh ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import (
    ENGINES,
    LOCAL,
    SIZES,
    flat,
    local_sgd,
    logistic_simulation,
    make_clients,
    phones_of_different_speeds,
    plain,
)
from small_worlds import make_world, play

from fedarena.algorithms import FedAvg, LocalOnly, Scaffold
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.simulate import Outcome, simulate
from fedarena.simulate.protocols import StalenessAware
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.transforms.aggregators import ByAge, Mean
from fedarena.transforms.aggregators.by_age import merge_by_age, without_contradiction

RUN_NUMBERS = itertools.count()
ROUNDS = 12
SECONDS = [1.0, 2.0, 8.0, 30.0]  # a job takes three times that
VECTORS = st.lists(st.integers(-4, 4).map(float), min_size=4, max_size=4).map(np.array)


def labels(plan) -> list[tuple[int, str, int]]:
    ended = plan.ended
    return [
        (int(client), Outcome(outcome).label, int(age))
        for client, outcome, age in zip(ended.clients, ended.outcomes, plan.staleness, strict=True)
    ]


def test_who_is_late_goes_on_and_is_used_when_it_arrives() -> None:
    first, second, third = play(StalenessAware(seconds=10, minimum_invited=1), make_world(SECONDS), 3, cohort=4)
    assert first.clock.time == 10
    assert labels(first) == [(0, "used", 0), (1, "used", 0)]
    assert first.clock.running.clients.tolist() == [2, 3]
    # Only those two are free; nobody else is late in this round, so it ends with them.
    assert second.clock.time == 16
    assert labels(second) == [(0, "used", 0), (1, "used", 0)]
    assert labels(third) == [(0, "used", 0), (1, "used", 0)]
    assert third.clock.time == 22


def test_stale_updates_are_used_in_the_round_they_arrive_in() -> None:
    plans = play(StalenessAware(seconds=10, minimum_invited=1), make_world(SECONDS), 4, cohort=4)
    # Client 2 needs 24 seconds: it began with the first round and arrives in the fourth, three steps later.
    assert (2, "used", 3) in labels(plans[3])
    assert ByAge().factors(plans[3].staleness).tolist() == [1.0] * len(plans[3].ended)
    assert plans[3].clock.running.clients.tolist() == [3]


@pytest.mark.parametrize("aggregator", [ByAge(merging="sum"), Mean()])
def test_age_shrinks_updates_if_they_are_not_operated_on(aggregator) -> None:
    plans = play(StalenessAware(seconds=10, minimum_invited=1), make_world(SECONDS), 4, cohort=4)
    old = [place for place, (client, *_) in enumerate(labels(plans[3])) if client == 2]
    assert aggregator.factors(plans[3].staleness)[old].tolist() == [4**-0.5]


def test_updates_that_can_no_longer_be_used_are_not_waited_for() -> None:
    plans = play(StalenessAware(seconds=10, minimum_invited=1, max_staleness=1), make_world(SECONDS), 3, cohort=4)
    assert plans[1].clock.version == 2
    assert {entry for entry in labels(plans[1]) if entry[0] > 1} == {(2, "stale", 1), (3, "stale", 1)}
    assert plans[1].ended.end.max() == plans[1].clock.time
    assert set(plans[2].ended.clients.tolist()) | set(plans[2].clock.running.clients.tolist()) == {0, 1, 2, 3}


def test_what_arrives_in_a_round_that_fails_waits_for_the_next() -> None:
    protocol = StalenessAware(seconds=10, minimum_invited=1, minimum_success_share=1.0)
    first, second, third = play(protocol, make_world([1.0, 5.0]), 3, cohort=2)
    assert not first.succeeded
    assert first.clock.version == 0
    assert sorted(first.clock.running.clients.tolist()) == [0, 1]
    # Nobody is free. When both are there, the server makes its step.
    assert second.succeeded
    assert sorted(labels(second)) == [(0, "used", 0), (1, "used", 0)]
    assert third.clock.version == 1


def test_old_updates_count_for_success() -> None:
    protocol = StalenessAware(seconds=10, minimum_invited=1, minimum_success_share=0.75)
    first, second, _ = play(protocol, make_world([1.0, 2.0, 4.0, 100.0]), 3, cohort=4)
    assert not first.succeeded
    # Nobody but client 2 arrives in the second round, but two updates have been waiting since the first.
    assert sorted(labels(second)) == [(0, "used", 0), (1, "used", 0), (2, "used", 0)]


def test_the_server_sleeps_if_nobody_is_there_and_nobody_is_training() -> None:
    world = make_world([1.0, 2.0, 3.0, 4.0], [[(0, 60)], [(0, 60)], [(500, 560)], []], period=10_000)
    protocol = StalenessAware(seconds=10, minimum_invited=1, minimum_success_share=0.75)
    first, second, third = play(protocol, world, 3, cohort=4)
    assert not first.succeeded  # two of three are there, and wait at the server
    assert not second.succeeded
    assert second.clock.time == 500
    assert third.succeeded
    assert sorted(labels(third)) == [(0, "used", 0), (1, "used", 0), (2, "used", 0)]


def test_one_who_is_free_is_enough_where_all_others_are_training() -> None:
    protocol = StalenessAware(seconds=10, minimum_invited=2, minimum_success_share=0.3)
    plans = play(protocol, make_world([1.0, 50.0, 60.0]), 3, cohort=3)
    assert [labels(plan) for plan in plans] == [[(0, "used", 0)]] * 3


def test_late_is_not_impossible() -> None:
    assert StalenessAware(seconds=10).patience_seconds == np.inf
    assert StalenessAware(seconds=10).deadline_seconds == 10


def test_methods_that_share_nothing_run_as_well(make_federation) -> None:
    *_, last = run(make_federation, StalenessAware(seconds=6, minimum_invited=1), CohortEngine, LocalOnly())
    assert last.row["staleness"] > 0


def test_nobody_ever_available_ends_with_a_sentence() -> None:
    with pytest.raises(RunFailedError, match="nobody is left who is ever available"):
        play(StalenessAware(), make_world(SECONDS, [[]] * 4), 3, cohort=3)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: StalenessAware(max_staleness=-1), "protocol.max_staleness"),
        (lambda: ByAge(staleness_exponent=-1), "aggregator.staleness_exponent"),
    ],
)
def test_negative_options_are_refused(make, option: str) -> None:
    with pytest.raises(BadInputError, match=rf"{option} must not be negative"):
        make()


def groups(vector: np.ndarray) -> dict:
    return {"params": {"a": torch.tensor(vector[:1]), "b": torch.tensor(vector[1:]).reshape(3, 1)}}


def vector(changes: dict) -> np.ndarray:
    return np.concatenate([t.numpy().ravel() for t in changes["params"].values()])


def plain_projection(change: np.ndarray, other: np.ndarray) -> np.ndarray:
    along = change @ other
    return change - along / (other @ other) * other if along < 0 else change


def plain_surgery(by_age: dict[int, np.ndarray]) -> np.ndarray:
    old = sorted(age for age in by_age if age)[::-1]
    if not old:
        return by_age[0]
    total = np.zeros_like(by_age[old[0]])
    for age in old:
        total = plain_projection(total, by_age[age]) + by_age[age]
    total = total / len(old)
    return plain_projection(total, by_age[0]) + by_age[0] if 0 in by_age else total


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 5), VECTORS, min_size=1))
def test_surgery_as_it_is_written_down(by_age: dict[int, np.ndarray]) -> None:
    merged = vector(merge_by_age({age: groups(change) for age, change in by_age.items()}))
    np.testing.assert_allclose(merged, plain_surgery(by_age), rtol=1e-12, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(VECTORS, VECTORS)
def test_what_is_left_contradicts_nothing(change: np.ndarray, other: np.ndarray) -> None:
    left = vector(without_contradiction(groups(change), groups(other)))
    assert left @ other >= -1e-9
    if change @ other >= 0:
        np.testing.assert_array_equal(left, change)


def run(make_federation, protocol, engine_kind, algorithm, aggregator=None):
    federation = make_federation(make_clients(), 3, name=f"run {next(RUN_NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm, LOCAL, engine_kind, ROUNDS, cohort=4)
    parts = {"protocol": protocol, "aggregator": aggregator, "fleet": phones_of_different_speeds(growth=1.6)}
    return list(simulate(replace(simulation, **parts)))


@pytest.mark.sampled(2)
@ENGINES
@pytest.mark.parametrize("merging", ["surgery", "sum", "shrink"])
def test_the_server_merges_the_means_of_every_age(make_federation, engine_kind, merging) -> None:
    aggregator = Mean() if merging == "shrink" else ByAge(merging=merging)
    protocol = StalenessAware(seconds=6, minimum_invited=1)
    first, *rounds = run(make_federation, protocol, engine_kind, FedAvg(), aggregator)
    versions = [flat(first.snapshot.state["params"])]
    ages_seen = set()
    for outcome in rounds:
        changes: dict[int, list] = {}
        for row in zip(*outcome.jobs.values(), strict=True):
            job = dict(zip(outcome.jobs, row, strict=True))
            if job["outcome"] != "used":
                continue
            client, start = int(job["index"]), versions[job["start_version"]]
            change = local_sgd(start, client, int(job["job"]), plain, LOCAL)[0] - start
            changes.setdefault(int(job["staleness"]), []).append((SIZES[client], change))
        if changes:
            ages_seen |= set(changes)
            if merging == "surgery":
                means = {age: sum(n * c for n, c in parts) / sum(n for n, _ in parts) for age, parts in changes.items()}
                merged = plain_surgery(means)
            else:
                shrunk = {age: [(n, (1 + age) ** -0.5 * c) for n, c in parts] for age, parts in changes.items()}
                if merging == "shrink":
                    parts = [part for parts in shrunk.values() for part in parts]
                    merged = sum(n * c for n, c in parts) / sum(n for n, _ in parts)
                else:
                    old = [part for age, parts in shrunk.items() if age for part in parts]
                    fresh = shrunk.get(0, [])
                    both = {
                        age: sum(n * c for n, c in parts) / sum(n for n, _ in parts)
                        for age, parts in ((1, old), (0, fresh))
                        if parts
                    }
                    merged = plain_surgery(both)
            versions.append(versions[-1] + merged)
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), versions[-1], rtol=1e-9, atol=1e-12)
    assert len(ages_seen) > 2


def test_both_engines_agree_on_what_clients_know_of_each_other(make_federation) -> None:
    protocol = StalenessAware(seconds=6, minimum_invited=1)
    states = [
        run(make_federation, protocol, kind, Scaffold())[-1].snapshot.state for kind in (CohortEngine, ReferenceEngine)
    ]
    for group, tensors in states[0].items():
        for name, t in tensors.items():
            torch.testing.assert_close(states[1][group][name], t, rtol=0, atol=1e-10)
