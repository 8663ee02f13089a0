"""Clients that would be late do a part of their work: FedProx leaves out steps, TimelyFL layers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import LOCAL, SIZES, flat, local_sgd, logistic_simulation, make_clients
from small_worlds import make_world
from torch.nn import functional as F

from fedarena.algorithms import FedAvg, FedProx, TimelyFL
from fedarena.errors import BadInputError
from fedarena.fleet import Availability, Devices, Fleet
from fedarena.simulate import ClockOptions, Simulation, simulate
from fedarena.simulate.phones import Phones
from fedarena.simulate.protocols import Buffered, Deadline, Readiness
from fedarena.train import CohortEngine, LocalTraining, PartialWork, ReferenceEngine
from fedarena.train.batches import batch_indices

RUN_NUMBERS = itertools.count()
STEPS = 5  # of ten samples in batches of two
LAYERS = np.array([0.1, 0.4, 1.0])  # possible shares of a model of three layers


def shrinking_phones(seconds: list[float], partial: PartialWork, deadline: float) -> Phones:
    """Phones of `make_world` with jobs of ten samples; by layers, the last one is a tenth of the model."""
    phones = make_world(seconds).phones

    def possible(clients: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        if partial.part == "layers":
            return np.array([max([s for s in LAYERS if s <= share], default=LAYERS[0]) for share in wanted])
        return FedProx(partial_work=True).possible_shares(wanted, np.full(len(clients), STEPS), {})

    def processed(clients: np.ndarray, shares: np.ndarray) -> np.ndarray:
        return np.round(10 * shares).astype(int) if partial.part == "steps" else np.full(len(clients), 10)

    load = replace(phones.load, processed_samples=processed, partial_work=partial, possible_shares=possible)
    return replace(phones, load=load, deadline_seconds=deadline)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=6), st.floats(1, 100))
def test_as_many_steps_as_fit_and_one_at_least(seconds: list[float], deadline: float) -> None:
    clients = np.arange(len(seconds))
    jobs = shrinking_phones(seconds, PartialWork("steps"), deadline).plan(clients, clients, np.zeros(len(clients)), 0)
    for each, share, samples, end in zip(seconds, jobs.shares, jobs.samples, jobs.end, strict=True):
        fitting = [k for k in range(1, STEPS + 1) if each + each * k / STEPS + each <= deadline + 1e-7]
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
        share = max((share for share, length in lengths.items() if length <= deadline), default=LAYERS[0])
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


def speeds_apart(upload_bits_per_second: float = 1e4) -> Fleet:
    count = len(SIZES)
    devices = Devices.from_columns(
        seconds_per_sample=0.2 * 1.7 ** np.arange(count),
        download_bits_per_second=np.full(count, 1e4),
        upload_bits_per_second=np.full(count, upload_bits_per_second),
    )
    return Fleet("speeds apart", devices, Availability.always(count), paired=True).match(np.arange(count), None, seed=1)


def simulation_of(make_federation, algorithm, local, engine_kind, protocol, **model) -> Simulation:
    federation = make_federation(make_clients(), 3, name=f"run {next(RUN_NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm, local, engine_kind, rounds=4, cohort=5, **model)
    return replace(simulation, protocol=protocol, fleet=speeds_apart())


def used_jobs(outcome):
    rows = zip(*outcome.jobs.values(), strict=True)
    jobs = [dict(zip(outcome.jobs, row, strict=True)) for row in rows]
    return [job for job in jobs if job["outcome"] == "used"]


@pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
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
@pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
def test_timelyfl_averages_every_layer_over_those_who_trained_it(make_federation, engine_kind, decay: float) -> None:
    local = replace(LOCAL, weight_decay=decay)
    simulation = simulation_of(
        make_federation, TimelyFL(), local, engine_kind, Deadline(seconds=30), model="mlp", hidden=(4,)
    )
    first, *rounds = simulate(replace(simulation, fleet=speeds_apart(upload_bits_per_second=200)))
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


def test_timelyfl_uploads_less_and_leaves_layers_nobody_trained_as_they_are(make_federation) -> None:
    simulation = simulation_of(
        make_federation, TimelyFL(whole_jobs=0.01), LOCAL, CohortEngine, Readiness(), model="mlp", hidden=(4,)
    )
    _, *rounds = simulate(simulation)
    assert any((np.array(outcome.jobs["share"]) < 1).any() for outcome in rounds)
    for outcome in rounds:
        whole = max(outcome.jobs["bytes_up"])
        for share, up in zip(outcome.jobs["share"], outcome.jobs["bytes_up"], strict=True):
            assert up == np.ceil(whole * share)
    state = {"params": {"a.weight": torch.ones(2), "b.weight": torch.ones(3)}}
    trained = {"a.weight": torch.tensor(0.0), "b.weight": torch.tensor(0.5)}
    update = {"params": {"a.weight": torch.zeros(2), "b.weight": torch.full((3,), 0.25)}, "trained": trained}
    after = TimelyFL().server_step(state, update, 1)["params"]
    assert after["a.weight"].tolist() == [1, 1]
    assert after["b.weight"].tolist() == [1.5, 1.5, 1.5]


def test_timelyfl_works_in_asynchronous_rounds(make_federation) -> None:
    results = []
    for engine_kind in (CohortEngine, ReferenceEngine):
        simulation = simulation_of(
            make_federation, TimelyFL(), LOCAL, engine_kind, Buffered(buffer_size=2), model="mlp", hidden=(4,)
        )
        *_, last = simulate(simulation)
        results.append(last.snapshot.state["params"])
    for name, p in results[0].items():
        torch.testing.assert_close(results[1][name], p, rtol=0, atol=1e-10)


def test_a_model_of_another_size_on_its_way(make_federation) -> None:
    sizes = []
    for model_bytes in (None, 1_000_000):
        simulation = simulation_of(make_federation, FedAvg(), LOCAL, CohortEngine, Readiness())
        simulation = replace(simulation, clock=ClockOptions(model_bytes=model_bytes))
        load = simulation.load()
        sizes.append((load.download_bytes, load.upload_bytes))
    assert sizes == [(18 * 8, 18 * 8), (1_000_000, 1_000_000)]


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_shares_that_make_no_sense_are_refused(share: float) -> None:
    with pytest.raises(BadInputError, match=r"algorithm\.whole_jobs must be above 0 and at most 1"):
        TimelyFL(whole_jobs=share)
