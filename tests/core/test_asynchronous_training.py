"""What servers learn from updates that arrive late: FedBuff and FedAsync written down once more, in NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
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
from small_runs import config, content

from fedarena.algorithms import FedAvg, FedAvgM, FedKD, FedNova, FetchSGD, QFedAvg, Reptile, Scaffold
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.simulate import simulate
from fedarena.simulate.protocols import Asynchronous, Buffered, Synchronous
from fedarena.simulate.schedules import Exponential
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.transforms.aggregators import Mean, Mixing

ROUNDS = 12
RUN_NUMBERS = itertools.count()


def run(make_federation, protocol, engine_kind, algorithm=None, cohort: int = 4, aggregator=None, rounds=ROUNDS):
    federation = make_federation(make_clients(), 3, name=f"run {next(RUN_NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm or FedAvg(), LOCAL, engine_kind, rounds, cohort)
    parts = {"protocol": protocol, "aggregator": aggregator, "fleet": phones_of_different_speeds()}
    return list(simulate(replace(simulation, **parts)))


def jobs_of(outcome):
    columns = outcome.jobs
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def trained(versions, job) -> np.ndarray:
    return local_sgd(versions[job["start_version"]], int(job["index"]), int(job["job"]), plain, LOCAL)[0]


@ENGINES
@pytest.mark.parametrize("rescale", [False, True])
def test_buffered_is_the_mean_of_updates_that_shrink_with_age(make_federation, engine_kind, rescale: bool) -> None:
    protocol = Buffered(buffer_size=3, max_staleness=2)
    first, *rounds = run(make_federation, protocol, engine_kind, aggregator=Mean(rescale=rescale))
    versions = [flat(first.snapshot.state["params"])]
    ages = set()
    for outcome in rounds:
        total, weights = np.zeros_like(versions[0]), 0.0
        for job in jobs_of(outcome):
            age = len(versions) - 1 - job["start_version"]
            assert job["staleness"] == age
            assert (job["outcome"] == "used") == (age <= 2)
            if job["outcome"] != "used":
                continue
            ages.add(age)
            change = trained(versions, job) - versions[job["start_version"]]
            weight = SIZES[job["index"]]
            total += weight * (1 + age) ** -0.5 * change
            weights += weight * (1 + age) ** -0.5 if rescale else weight
        versions.append(versions[-1] + total / weights)
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), versions[-1], rtol=1e-9, atol=1e-12)
    assert ages == {0, 1, 2}
    assert len(versions) == ROUNDS + 1


@ENGINES
def test_asynchronous_moves_towards_every_model(make_federation, engine_kind) -> None:
    aggregator = Mixing(share=0.6, staleness_exponent=0.5)
    first, *rounds = run(make_federation, Asynchronous(updates_per_round=4), engine_kind, aggregator=aggregator)
    versions = [flat(first.snapshot.state["params"])]
    within_the_round = 0
    for outcome in rounds:
        begins_with = len(versions) - 1
        for job in jobs_of(outcome):
            age = len(versions) - 1 - job["start_version"]
            within_the_round += job["start_version"] > begins_with
            share = 0.6 * (1 + age) ** -0.5
            assert job["weight"] == pytest.approx(share)
            versions.append((1 - share) * versions[-1] + share * trained(versions, job))
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), versions[-1], rtol=1e-9, atol=1e-12)
    assert len(versions) == 4 * ROUNDS + 1
    assert within_the_round  # some begin with a model that the same round has made


@pytest.mark.sampled(4)
@pytest.mark.parametrize("algorithm", [FedAvgM, Scaffold, FetchSGD, FedKD])
@pytest.mark.parametrize(
    "protocol", [Buffered(buffer_size=2), Asynchronous(updates_per_round=3), Synchronous(over_commit=1.75)]
)
def test_both_engines_agree(make_federation, algorithm, protocol) -> None:
    *_, one = run(make_federation, protocol, CohortEngine, algorithm(), rounds=6)
    *_, other = run(make_federation, protocol, ReferenceEngine, algorithm(), rounds=6)
    np.testing.assert_allclose(
        flat(one.snapshot.state["params"]), flat(other.snapshot.state["params"]), rtol=1e-9, atol=1e-11
    )


def test_only_used_updates_are_computed_and_remembered(make_federation) -> None:
    """Of seven invited, four are used; the others' phones worked in vain, and so they keep nothing."""
    outcomes = run(make_federation, Synchronous(over_commit=1.75), CohortEngine, Scaffold())
    used = {job["index"] for outcome in outcomes for job in jobs_of(outcome) if job["outcome"] == "used"}
    late = {job["index"] for outcome in outcomes for job in jobs_of(outcome) if job["outcome"] == "late"}
    assert late - used
    memories = outcomes[-1].snapshot.client_states
    assert all(memories.get(int(client)) is not None for client in used)
    assert all(memories.get(int(client)) is None for client in late - used)
    row = outcomes[-1].row
    assert (row["invited"], row["clients"], row["failed"]) == (7, 4, 3)
    assert row["wasted_seconds"] > 0
    assert row["bytes_up"] < row["bytes_down"]


def test_older_models_are_kept_as_long_as_somebody_trains_from_them(make_federation) -> None:
    for outcome in run(make_federation, Buffered(buffer_size=2, max_staleness=3), CohortEngine)[1:]:
        clock, kept = outcome.snapshot.clock, outcome.snapshot.broadcasts
        wanted = {int(v) for v in clock.running.versions if clock.version - 3 <= v < clock.version}
        assert set(kept) == wanted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("protocol", [Buffered(buffer_size=1, max_staleness=None), Asynchronous(updates_per_round=4)])
def test_methods_that_send_something_else_move_as_far_as_fedavg(make_federation, protocol) -> None:
    """With one client a step, these methods are FedAvg; so must they be with updates of any age."""

    class AsLongAsQFedAvg(FedAvg):
        """Asks for losses and sends a number more, so that updates arrive in the same order."""

        needs_start_loss = True

        def client_update(self, params, client, work):
            update, state = super().client_update(params, client, work)
            return {**update, "more": {"number": next(iter(params.values())).new_zeros(())}}, state

    for algorithm, usual in (
        (FedNova(), FedAvg()),
        (QFedAvg(q=0.0), AsLongAsQFedAvg()),
        (Reptile(meta_lr=1.0, final_meta_lr=1.0), FedAvg()),
    ):
        *_, plain_average = run(make_federation, protocol, CohortEngine, usual)
        expected = flat(plain_average.snapshot.state["params"])
        *_, ours = run(make_federation, protocol, CohortEngine, algorithm)
        np.testing.assert_allclose(
            flat(ours.snapshot.state["params"]), expected, rtol=1e-6, atol=1e-8, err_msg=str(algorithm)
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("kind", [Buffered, Asynchronous])
def test_scaffold_knows_the_mean_of_the_control_variates(make_federation, kind, rescale: bool) -> None:
    protocol = Buffered(buffer_size=3) if kind is Buffered else Asynchronous(updates_per_round=3)
    aggregator = Mean(rescale=rescale) if kind is Buffered else None
    *_, last = run(make_federation, protocol, CohortEngine, Scaffold(), aggregator=aggregator)
    memories = last.snapshot.client_states
    own = [memories.get(client) for client in range(len(SIZES))]
    (group,) = {group for memory in own if memory for group in memory}
    total = sum(memory[group]["1.weight"] for memory in own if memory)
    (server,) = [group for group in last.snapshot.state if group != "params"]
    np.testing.assert_allclose(last.snapshot.state[server]["1.weight"], total / len(SIZES), rtol=1e-6, atol=1e-9)


@ENGINES
def test_clients_learn_at_the_rate_of_the_round_in_which_they_began(make_federation, engine_kind) -> None:
    parts = {"protocol": Buffered(buffer_size=2), "aggregator": Mean(), "client_lr_schedule": Exponential(decay=0.7)}
    federation = make_federation(make_clients(), 3)
    simulation = logistic_simulation(federation, FedAvg(), LOCAL, engine_kind, 6, 4)
    first, *rounds = simulate(replace(simulation, fleet=phones_of_different_speeds(), **parts))
    versions, ages = [flat(first.snapshot.state["params"])], set()
    for outcome in rounds:
        changes, weights = [], []
        for job in jobs_of(outcome):
            began, start = int(job["start_version"]) + 1, versions[job["start_version"]]  # a round is a step here
            local = replace(LOCAL, lr=LOCAL.lr * 0.7 ** (began - 1))
            there = local_sgd(start, int(job["index"]), int(job["job"]), plain, local)[0]
            changes.append((there - start) * (1 + job["staleness"]) ** -0.5)
            weights.append(SIZES[int(job["index"])])
            ages.add(job["staleness"])
        versions.append(versions[-1] + np.average(changes, axis=0, weights=weights))
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), versions[-1], atol=1e-10)
    assert len(ages) > 1


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "buffered", "buffer_size": 2},
        {"name": "asynchronous", "updates_per_round": 2},
        {"name": "staleness_aware", "seconds": 10.0},
    ],
)
def test_a_resumed_run_knows_in_which_round_jobs_began(tmp_path: Path, protocol) -> None:
    settings = {
        "algorithm": "fedavg",
        "rounds": 6,
        "protocol": protocol,
        "fleet": {"name": "uniform", "seconds_per_sample": [0.05, 1.5]},
        "client_lr_schedule": {"name": "exponential", "decay": 0.5},
    }
    start_run(config(**settings), tmp_path / "whole")
    with Run.create(config(**settings), tmp_path) as run:
        run.advance(3)
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "whole" / "small")
