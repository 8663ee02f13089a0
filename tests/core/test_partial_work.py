"""Clients that would be late do a part of their work: FedProx leaves out steps, TimelyFL layers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
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
)
from small_worlds import make_world
from torch.nn import functional as F

from fedarena.algorithms import FedAvg, FedProx, TimelyFL
from fedarena.core.errors import BadInputError
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.simulate import ClockOptions, Simulation, simulate
from fedarena.simulate.phones import Phones
from fedarena.simulate.protocols import Asynchronous, Buffered, Deadline, Readiness, StalenessAware
from fedarena.train import COVERAGE, CohortEngine, LocalTraining, PartialWork, ReferenceEngine
from fedarena.train.batches import batch_indices
from fedarena.transforms.aggregators import ByAge, Mixing
from fedarena.transforms.aggregators.by_age import merge_by_age

RUN_NUMBERS = itertools.count()
STEPS = 5  # of ten samples in batches of two
LAYERS = np.array([0.1, 0.4, 1.0])  # possible shares of a model of three layers


def shrinking_phones(seconds: list[float], partial: PartialWork, deadline: float) -> Phones:
    """Phones of `make_world` with jobs of ten samples; by layers, the last one is a tenth of the model."""
    phones = make_world(seconds).phones

    def possible(clients: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        if partial.part == "layers":
            return np.array([max([s for s in LAYERS if s <= share + 1e-9], default=LAYERS[0]) for share in wanted])
        algorithm = FedProx(partial_work=True)
        algorithm.prepare(10, LocalTraining(batch_size=2))
        return algorithm.possible_shares(wanted, np.full(len(clients), 10), {})

    def processed(clients: np.ndarray, shares: np.ndarray) -> np.ndarray:
        return np.round(10 * shares).astype(int) if partial.part == "steps" else np.full(len(clients), 10)

    load = replace(phones.load, processed_samples=processed, partial_work=partial, possible_shares=possible)
    return replace(phones, load=load, deadline_seconds=deadline)


def fits_clearly(length: float, deadline: float) -> bool:
    """Exactly, up to rounding, or by so much that rounding does not matter."""
    return not 1e-11 < abs(length - deadline) < 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=6), st.floats(1, 100))
def test_as_many_steps_as_fit_and_one_at_least(seconds: list[float], deadline: float) -> None:
    clients = np.arange(len(seconds))
    jobs = shrinking_phones(seconds, PartialWork("steps"), deadline).plan(clients, clients, np.zeros(len(clients)), 0)
    for each, share, samples, end in zip(seconds, jobs.shares, jobs.samples, jobs.end, strict=True):
        lengths = [each + each * k / STEPS + each for k in range(1, STEPS + 1)]
        assume(all(fits_clearly(length, deadline) for length in lengths))
        fitting = [k for k, length in enumerate(lengths, start=1) if length <= deadline + 1e-11]
        steps = max(fitting, default=1)
        assert share == steps / STEPS
        assert samples == 2 * steps
        assert end == pytest.approx(2 * each + each * steps / STEPS)
    assert jobs.upload_bytes.tolist() == [1000] * len(seconds)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=6), st.floats(1, 100))
def test_as_many_layers_as_fit_and_the_last_at_least(seconds: list[float], deadline: float) -> None:
    clients = np.arange(len(seconds))
    phones = shrinking_phones(seconds, PartialWork("layers"), deadline)
    jobs = phones.plan(clients, clients, np.zeros(len(clients)), 0)
    for row, each in enumerate(seconds):
        lengths = {share: each + each * (1 + 2 * share) / 3 + each * share for share in LAYERS}
        assume(all(fits_clearly(length, deadline) for length in lengths.values()))
        share = max((share for share, length in lengths.items() if length <= deadline + 1e-11), default=LAYERS[0])
        assert jobs.shares[row] == share
        assert jobs.end[row] == pytest.approx(lengths[share])
        assert jobs.upload_bytes[row] == np.ceil(1000 * share)
    done = phones.done(jobs)
    np.testing.assert_allclose(done.flops, 10 * (1 + 2 * jobs.shares) / 3)
    assert done.bytes_up.tolist() == jobs.upload_bytes.tolist()
    assert (jobs.samples == 10).all()


def test_without_a_deadline_the_fast_ones_set_the_pace() -> None:
    seconds = [1.0, 2.0, 4.0, 40.0]
    clients = np.arange(4)
    jobs = shrinking_phones(seconds, PartialWork("layers", 0.5), np.inf).plan(clients, clients, np.zeros(4), 0)
    # The median job, rounded up, takes 12 seconds: three whole ones, and the last one cannot help being late.
    assert jobs.shares.tolist() == [1, 1, 1, LAYERS[0]]
    everybody = shrinking_phones(seconds, PartialWork("steps"), np.inf).plan(clients, clients, np.zeros(4), 0)
    assert everybody.shares.tolist() == [1, 1, 1, 1]


slow_and_fast_phones = partial(phones_of_different_speeds, growth=1.7, seconds_per_sample=0.2)


def simulation_of(make_federation, algorithm, local, engine_kind, protocol, **model) -> Simulation:
    federation = make_federation(make_clients(), 3, name=f"run {next(RUN_NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm, local, engine_kind, rounds=4, cohort=5, **model)
    return replace(simulation, protocol=protocol, fleet=slow_and_fast_phones())


def used_jobs(outcome):
    rows = zip(*outcome.jobs.values(), strict=True)
    jobs = [dict(zip(outcome.jobs, row, strict=True)) for row in rows]
    return [job for job in jobs if job["outcome"] == "used"]


@ENGINES
def test_fedprox_averages_what_clients_had_the_time_for(make_federation, engine_kind) -> None:
    protocol = Deadline(seconds=12)
    algorithm = FedProx(mu=0.3, partial_work=True)
    first, *rounds = simulate(simulation_of(make_federation, algorithm, LOCAL, engine_kind, protocol))
    w = flat(first.snapshot.state["params"])
    shares = set()
    for outcome in rounds:
        changes, weights, used = [], [], used_jobs(outcome)
        for job in used:
            client = int(job["index"])
            all_steps = 2 * -(-SIZES[client] // LOCAL.batch_size)
            steps = round(job["share"] * all_steps)
            assert steps == pytest.approx(job["share"] * all_steps)
            shares.add(job["share"])
            start = w.copy()

            def pull(gradient, at, start=start):
                return gradient + 0.3 * (at - start)

            changes.append(local_sgd(w, client, outcome.row["round"], pull, LOCAL, steps=steps)[0] - w)
            weights.append(SIZES[client])
        w = w + np.array(weights) @ np.array(changes) / sum(weights)
        assert outcome.row["steps"] == sum(
            round(job["share"] * 2 * -(-SIZES[int(job["index"])] // LOCAL.batch_size)) for job in used
        )
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), w, rtol=1e-9, atol=1e-12)
    assert len(shares) > 2


def test_without_partial_work_the_same_clients_are_late(make_federation) -> None:
    used = {}
    for name, algorithm in (("whole", FedProx()), ("partial", FedProx(partial_work=True))):
        simulation = simulation_of(make_federation, algorithm, LOCAL, CohortEngine, Deadline(seconds=12))
        used[name] = sum(len(used_jobs(outcome)) for outcome in simulate(simulation) if outcome.jobs)
    assert used["partial"] > used["whole"] > 0


def plain_timelyfl(params, client: int, round: int, share: float, local: LocalTraining):
    """One client's training of the last layers of a network with one hidden layer; which layers these are."""
    sizes = {layer: sum(p.numel() for name, p in params.items() if name.startswith(layer)) for layer in ("1.", "3.")}
    trains_all = share > sizes["3."] / sum(sizes.values()) + 1e-9
    leaves = {name: p.clone() for name, p in params.items()}
    x, y = (torch.from_numpy(values) for values in list(make_clients().values())[client])
    for rows in batch_indices(len(x), local, 2, round, client):
        for p in leaves.values():
            p.requires_grad_()
        hidden = torch.relu(x[rows] @ leaves["1.weight"].T + leaves["1.bias"])
        loss = F.cross_entropy(hidden @ leaves["3.weight"].T + leaves["3.bias"], y[rows])
        loss = loss + local.weight_decay / 2 * sum((p**2).sum() for p in leaves.values())
        gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        leaves = {
            name: (p - local.lr * gradient[name] if trains_all or name.startswith("3.") else p).detach()
            for name, p in leaves.items()
        }
    return leaves, trains_all


@pytest.mark.parametrize("decay", [0.0, 0.1])
@ENGINES
def test_timelyfl_averages_every_layer_over_those_who_trained_it(make_federation, engine_kind, decay: float) -> None:
    local = replace(LOCAL, weight_decay=decay)
    simulation = simulation_of(
        make_federation, TimelyFL(), local, engine_kind, Deadline(seconds=30), model="mlp", hidden=(4,)
    )
    first, *rounds = simulate(replace(simulation, fleet=slow_and_fast_phones(upload_bits_per_second=200)))
    params = first.snapshot.state["params"]
    kinds = set()
    for outcome in rounds:
        sums = {name: torch.zeros_like(p) for name, p in params.items()}
        weights = dict.fromkeys(params, 0)
        for job in used_jobs(outcome):
            client = int(job["index"])
            trained, whole = plain_timelyfl(params, client, outcome.row["round"], job["share"], local)
            kinds.add(whole)
            for name in params:
                if whole or name.startswith("3."):
                    sums[name] += SIZES[client] * (trained[name] - params[name])
                    weights[name] += SIZES[client]
        params = {name: p + sums[name] / max(weights[name], 1) for name, p in params.items()}
        for name, p in outcome.snapshot.state["params"].items():
            torch.testing.assert_close(p, params[name], rtol=1e-9, atol=1e-12)
    assert kinds == {True, False}


def test_timelyfl_uploads_less(make_federation) -> None:
    simulation = simulation_of(
        make_federation, TimelyFL(whole_jobs=0.01), LOCAL, CohortEngine, Readiness(), model="mlp", hidden=(4,)
    )
    _, *rounds = simulate(simulation)
    assert any((np.array(outcome.jobs["share"]) < 1).any() for outcome in rounds)
    for outcome in rounds:
        whole = max(outcome.jobs["bytes_up"])
        for share, up in zip(outcome.jobs["share"], outcome.jobs["bytes_up"], strict=True):
            assert up == np.ceil(whole * share)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.floats(0, 1))
def test_shares_are_of_samples_though_last_batches_are_short(
    samples: int, batch_size: int, epochs: int, wanted: float
) -> None:
    algorithm = FedProx(partial_work=True)
    algorithm.prepare(1, LocalTraining(epochs=epochs, batch_size=batch_size))
    sizes = [len(batch) for batch in batch_indices(samples, algorithm.local, 0, 0, 0)]
    share = algorithm.possible_shares(np.array([wanted]), np.array([samples]), {})[0]
    fitting = [k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) <= wanted * sum(sizes) + 1e-9]
    assert round(share * len(sizes), 9) == max(fitting, default=1)


def test_in_asynchronous_rounds_everybody_does_a_whole_job(make_federation) -> None:
    results = []
    for engine_kind in (CohortEngine, ReferenceEngine):
        simulation = simulation_of(
            make_federation, TimelyFL(), LOCAL, engine_kind, Buffered(buffer_size=2), model="mlp", hidden=(4,)
        )
        _, *rounds = simulate(simulation)
        assert all((np.array(outcome.jobs["share"]) == 1).all() for outcome in rounds)
        together = replace(simulation, protocol=Readiness()).world(None).phones
        alone = simulation.world(None).phones
        everybody = np.arange(len(SIZES))
        for phones, are_whole in ((together, False), (alone, True)):
            shares = phones.plan(everybody, everybody, np.zeros(len(SIZES)), 0).shares
            assert (shares == 1).all() == are_whole
        results.append(rounds[-1].snapshot.state["params"])
    for name, p in results[0].items():
        torch.testing.assert_close(results[1][name], p, rtol=0, atol=1e-10)


def test_a_deadline_counts_more_than_the_pace_of_others() -> None:
    clients = np.arange(3)
    phones = shrinking_phones([1.0, 2.0, 3.0], PartialWork("layers", 0.1), deadline=100)
    assert phones.plan(clients, clients, np.zeros(3), 0).shares.tolist() == [1, 1, 1]


class LastLayerOfSome(FedAvg):
    """Clients with an odd number of samples train all layers, the others the last one alone."""

    def client_update(self, params, client, work):
        whole = (work.samples % 2 != 0) * torch.ones(()).double()
        trained = {name: whole if name.startswith("1.") else torch.ones_like(whole) for name in params}
        change = {name: trained[name] * (p - client.broadcast["params"][name]) for name, p in params.items()}
        return {"params": change, COVERAGE: trained}, client.state


def trains_whole(client: int) -> bool:
    return SIZES[client] % 2 != 0


@pytest.mark.parametrize("merging", ["surgery", "sum"])
def test_what_nobody_of_an_age_trained_is_not_part_of_its_mean(make_federation, merging) -> None:
    protocol = StalenessAware(seconds=9, minimum_invited=1)
    simulation = simulation_of(
        make_federation, LastLayerOfSome(), LOCAL, ReferenceEngine, protocol, model="mlp", hidden=(4,)
    )
    first, *rounds = simulate(replace(simulation, rounds=8, aggregator=ByAge(merging=merging)))
    versions, ages_seen = [first.snapshot.state["params"]], set()
    for outcome in rounds:
        by_age: dict[int, list] = {}
        for job in used_jobs(outcome):
            client, start, age = int(job["index"]), versions[job["start_version"]], int(job["staleness"])
            trained, _ = plain_timelyfl(start, client, int(job["job"]), 1.0, LOCAL)
            factor = 1.0 if merging == "surgery" else (1 + age) ** -0.5
            change = {name: factor * (trained[name] - start[name]) for name in start}
            by_age.setdefault(age if merging == "surgery" else min(age, 1), []).append((client, change))
            ages_seen.add(age)
        means = {}
        for age, parts in by_age.items():
            mean = {}
            for name, p in versions[-1].items():
                who = [(SIZES[c], change[name]) for c, change in parts if trains_whole(c) or name.startswith("3.")]
                mean[name] = sum((n * c for n, c in who), torch.zeros_like(p)) / max(sum(n for n, _ in who), 1)
            means[age] = {"params": mean}
        if means:
            merged = merge_by_age(means)["params"]
            versions.append({name: p + merged[name] for name, p in versions[-1].items()})
        for name, p in outcome.snapshot.state["params"].items():
            torch.testing.assert_close(p, versions[-1][name], rtol=1e-9, atol=1e-12)
    assert len(ages_seen) > 1


def test_layers_that_were_not_trained_are_not_rolled_back(make_federation) -> None:
    protocol = Asynchronous(updates_per_round=1)
    simulation = simulation_of(
        make_federation, LastLayerOfSome(), LOCAL, ReferenceEngine, protocol, model="mlp", hidden=(4,)
    )
    mixing = Mixing(share=1.0, staleness_exponent=0.0)
    before, *rounds = simulate(replace(simulation, rounds=8, aggregator=mixing))
    stayed = 0
    for outcome in rounds:
        (job,) = used_jobs(outcome)
        same = torch.equal(outcome.snapshot.state["params"]["1.weight"], before.snapshot.state["params"]["1.weight"])
        assert same == (not trains_whole(int(job["index"])))
        stayed += same
        before = outcome
    assert stayed


def test_phones_take_longer_for_methods_that_compute_more() -> None:
    seconds = {}
    for name in ("fedavg", "ditto", "biasprompt"):
        config = resolve(
            {
                "federation": {"name": "digits", "partition": {"name": "iid", "clients": 4}},
                "model": {"name": "mlp", "hidden": [20]},
                "algorithm": name,
                "fleet": "uniform",
                "protocol": "readiness",
                "cohort": 2,
            }
        )
        simulation = prepare(config, Observer()).simulation
        jobs = simulation.world(None).phones.plan(np.arange(4), np.arange(4), np.zeros(4), 0)
        seconds[name] = jobs.compute_seconds
        assert simulation.compute_factor == {"fedavg": 1.0, "ditto": 2.0}.get(name, simulation.compute_factor)
    np.testing.assert_allclose(seconds["ditto"], 2 * seconds["fedavg"])
    assert (seconds["biasprompt"] < seconds["fedavg"]).all()


def test_a_model_of_another_size_on_its_way(make_federation) -> None:
    sizes = []
    for model_bytes in (None, 1_000_000):
        simulation = simulation_of(make_federation, FedAvg(), LOCAL, CohortEngine, Readiness())
        simulation = replace(simulation, clock=ClockOptions(model_bytes=model_bytes))
        load = simulation.load()
        sizes.append((load.download_bytes, load.upload_bytes))
    assert sizes == [(18 * 8, 18 * 8), (1_000_000, 1_000_000)]


class KnowsHowMuch(FedAvg):
    """Clients are expected to upload nine bytes."""

    def expected_upload_bytes(self, state):
        return 9


def test_expected_uploads_are_of_the_size_of_the_model_on_its_way(make_federation) -> None:
    simulation = simulation_of(make_federation, KnowsHowMuch(), LOCAL, CohortEngine, Readiness())
    for model_bytes, expected in ((None, 9), (1440, 90)):
        _, *rounds = simulate(replace(simulation, clock=ClockOptions(model_bytes=model_bytes)))
        assert {int(up) for outcome in rounds for up in outcome.jobs["bytes_up"]} == {expected}


def test_a_server_can_train_with_timelyfl_too() -> None:
    config = resolve({"federation": "digits", "training": "centralized", "algorithm": "timelyfl", "model": "mlp"})
    assert prepare(config, Observer()).simulation.cohort == 1


def test_a_single_layer_cannot_be_divided() -> None:
    assert "single layer" in TimelyFL().notes({"1.weight": torch.zeros(2, 3), "1.bias": torch.zeros(2)})[0]
    assert TimelyFL().notes({"1.weight": torch.zeros(2, 3), "2.bias": torch.zeros(2)}) == []


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_shares_that_make_no_sense_are_refused(share: float) -> None:
    with pytest.raises(BadInputError, match=r"algorithm\.whole_jobs must be above 0 and at most 1"):
        TimelyFL(whole_jobs=share)
