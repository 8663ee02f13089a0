"""Algorithms with personal models against plain loops: what the server has, what clients keep, how they are scored."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from logistic_clients import (
    CLASSES,
    ENGINES,
    FEATURES,
    LOCAL,
    ROUNDS,
    SEED,
    SIZES,
    by_samples,
    cohorts,
    flat,
    local_sgd,
    losses_and_gradient,
    make_clients,
    mean_change,
    plain,
    run_simulation,
)

from fedarena.algorithms import Ditto, FedAvg, FedAvgM, FedBN, LocalHead, LocalOnly, Mocha, Reptile
from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import DataSpec, build_model, make_task
from fedarena.train import Algorithm, CohortEngine, LocalTraining, count_training_flops

BIAS = np.arange(CLASSES * FEATURES + CLASSES) >= CLASSES * FEATURES
DECAY = LocalTraining(epochs=2, batch_size=5, lr=0.2, momentum=0.5, weight_decay=0.02)


def loss_of(w: np.ndarray, client: int) -> float:
    return losses_and_gradient(w, *list(make_clients().values())[client])[0]


def run(make_federation, algorithm: Algorithm, engine_kind, local: LocalTraining = LOCAL):
    """The first and last server parameters, the last memories and every client's loss with its own model."""
    first, last = run_simulation(make_federation, algorithm, local, engine_kind)
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, last))
    memories = {i: last.snapshot.client_states.get(i) for i in range(len(SIZES))}
    assert last.personal_scores.clients.tolist() == list(range(len(SIZES)))
    return start, end, memories, last


def assert_close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def assert_scored_with(last, models: dict[int, np.ndarray]) -> None:
    assert_close(last.personal_scores.means("loss"), [loss_of(models[i], i) for i in range(len(SIZES))])
    assert np.abs(last.personal_scores.means("loss") - last.scores.means("loss")).max() > 0.01


def test_somebody_never_took_part_and_somebody_did_more_than_once() -> None:
    """So that the runs below say something about both."""
    times = np.bincount([i for _, cohort in cohorts() for i in cohort], minlength=len(SIZES))
    assert times.max() > 1
    assert len(SIZES) > len({i for _, cohort in cohorts()[:2] for i in cohort})


@ENGINES
def test_ditto(make_federation, engine_kind) -> None:
    start, end, memories, last = run(make_federation, Ditto(lam=0.3, server_lr=0.8), engine_kind)
    w, own = start, {}
    for round, cohort in cohorts():
        for i in cohort:
            pull = lambda g, at, w=w: g + 0.3 * (at - w)  # noqa: E731
            own[i] = local_sgd(own.get(i, w), i, round, pull, LOCAL)[0]
        w = w + 0.8 * mean_change(w, cohort, round, LOCAL)
    assert_close(end, w)
    for i, model in own.items():
        assert_close(flat(memories[i]["personal"]), model)
    assert_scored_with(last, {i: own.get(i, w) for i in range(len(SIZES))})


@pytest.mark.sampled(1)
@ENGINES
def test_the_global_model_of_ditto_is_that_of_fedavg_to_the_last_bit(make_federation, engine_kind) -> None:
    for local in (LOCAL, DECAY):
        outcomes = [run_simulation(make_federation, a, local, engine_kind)[1] for a in (FedAvg(), Ditto(lam=0.5))]
        fedavg, ditto = (outcome.snapshot.state["params"] for outcome in outcomes)
        assert all(torch.equal(fedavg[name], ditto[name]) for name in fedavg)
        common = {name: value for name, value in outcomes[1].row.items() if not name.startswith("personal")}
        assert common == outcomes[0].row


@ENGINES
def test_fedbn(make_federation, engine_kind) -> None:
    start, end, memories, last = run(make_federation, FedBN(local_layers=["*.bias"]), engine_kind)
    w, own = start, {}
    for round, cohort in cohorts():
        ends = [local_sgd(np.where(BIAS, own.get(i, start), w), i, round, plain, LOCAL)[0] for i in cohort]
        own |= dict(zip(cohort, ends, strict=True))
        w = np.where(BIAS, start, by_samples(cohort) @ np.array(ends))
    assert_close(end, w)
    for i, model in own.items():
        assert_close(memories[i]["local"]["1.bias"].numpy(), model[BIAS])
    assert_scored_with(last, {i: np.where(BIAS, own.get(i, start), w) for i in range(len(SIZES))})
    sent = CLASSES * FEATURES * 8 * 4  # weights only, float64, four clients
    assert (last.row["bytes_up"], last.row["bytes_down"]) == (sent, sent)


@ENGINES
def test_fedbn_without_local_layers_is_fedavg(make_federation, engine_kind) -> None:
    fedavg, fedbn = (
        run_simulation(make_federation, a, LOCAL, engine_kind)[1].snapshot.state["params"]
        for a in (FedAvg(), FedBN(local_layers=[]))
    )
    assert all(torch.equal(fedavg[name], fedbn[name]) for name in fedavg)


def test_fedbn_with_momentum_is_fedavgm_of_what_is_shared(make_federation) -> None:
    options = {"server_lr": 0.7, "beta": 0.6}
    fedavgm, fedbn = (
        run_simulation(make_federation, a, LOCAL, CohortEngine)[1].snapshot.state
        for a in (FedAvgM(**options), FedBN(local_layers=[], **options))
    )
    for group in ("params", "velocity"):
        assert all(torch.equal(t, fedbn[group][name]) for name, t in fedavgm[group].items())
    start, end, _, last = run(make_federation, FedBN(local_layers=["*.bias"], **options), CohortEngine)
    assert_close(end[BIAS], start[BIAS])
    assert list(last.snapshot.state["velocity"]) == ["1.weight"]


@ENGINES
def test_fedbn_with_nothing_shared_trains_alone(make_federation, engine_kind) -> None:
    start, end, _, last = run(make_federation, FedBN(local_layers=["*"]), engine_kind)
    own = dict.fromkeys(range(len(SIZES)), start)
    for round, cohort in cohorts():
        own |= {i: local_sgd(own[i], i, round, plain, LOCAL)[0] for i in cohort}
    assert_close(end, start)
    assert_scored_with(last, own)
    assert last.row["bytes_up"] == 0


@ENGINES
def test_fedper(make_federation, engine_kind) -> None:
    """Trained together, a head that stays is a local layer of FedBN."""
    ours, fedbn = (
        run_simulation(make_federation, a, DECAY, engine_kind)[1].snapshot
        for a in (LocalHead(head_layers=["*.bias"]), FedBN(local_layers=["*.bias"]))
    )
    assert all(torch.equal(t, fedbn.state["params"][name]) for name, t in ours.state["params"].items())
    for i in range(len(SIZES)):
        mine, theirs = (snapshot.client_states.get(i) for snapshot in (ours, fedbn))
        assert (mine is None and theirs is None) or torch.equal(mine["local"]["1.bias"], theirs["local"]["1.bias"])


@ENGINES
def test_fedrep(make_federation, engine_kind) -> None:
    head_steps, decaying = 3, LocalTraining(epochs=2, batch_size=5, lr=0.2, weight_decay=0.02)
    algorithm = LocalHead(head_layers=["*.bias"], head_steps=head_steps)
    start, end, memories, last = run(make_federation, algorithm, engine_kind, decaying)
    w, own = start, {}
    for round, cohort in cohorts():
        ends = []
        for i in cohort:
            steps = itertools.count()

            def in_turn(gradient, present, steps=steps):
                trained = BIAS if next(steps) < head_steps else ~BIAS
                return np.where(trained, gradient + decaying.weight_decay * present, 0)

            all_steps = head_steps + 2 * -(-SIZES[i] // 5)
            ends.append(
                local_sgd(np.where(BIAS, own.get(i, start), w), i, round, in_turn, decaying, steps=all_steps)[0]
            )
        own |= dict(zip(cohort, ends, strict=True))
        w = np.where(BIAS, start, by_samples(cohort) @ np.array(ends))
    assert_close(end, w)
    for i, model in own.items():
        assert_close(memories[i]["local"]["1.bias"].numpy(), model[BIAS])
    assert_scored_with(last, {i: np.where(BIAS, own.get(i, start), w) for i in range(len(SIZES))})


def test_the_head_is_the_last_layer() -> None:
    params = {name: torch.ones(2) for name in ("0.weight", "1.norm.weight", "2.weight", "2.bias")}
    assert list(LocalHead().client_init({"params": params})["local"]) == ["2.weight", "2.bias"]
    assert list(LocalHead().download({"params": params})["params"]) == ["0.weight", "1.norm.weight"]
    assert LocalHead().notes(params) == []
    assert "they share nothing" in LocalHead(head_layers=["*"]).notes(params)[0]
    head = {"2.weight": torch.ones(3, 2), "2.bias": torch.ones(3)}  # as head_only trains it
    last_stays, nothing_shared = FedBN().notes(head)
    assert "No normalization layers are trained" in last_stays
    assert "they share nothing" in nothing_shared
    with pytest.raises(BadInputError, match=r"algorithm\.head_layers: no parameter of the model matches '9\.\*'"):
        LocalHead(head_layers=["9.*"]).server_init(params)


def test_fedbn_finds_normalization_layers_or_the_last_layer() -> None:
    params = {
        "0.weight": torch.ones(3, 2),
        "0.bias": torch.ones(3),
        "1.norm.weight": torch.ones(3),
        "1.norm.bias": torch.ones(3),
        "2.weight": torch.ones(4, 3),
        "2.bias": torch.ones(4),
    }
    assert list(FedBN().client_init({"params": params})["local"]) == ["1.norm.weight", "1.norm.bias"]
    assert FedBN().notes(params) == []
    with_own = params | {"personal.level": torch.ones(2)}
    assert list(FedBN().client_init({"params": with_own})["local"]) == ["personal.level"]
    assert FedBN().notes(with_own) == []
    without = {name: p for name, p in params.items() if "norm" not in name}
    assert list(FedBN().client_init({"params": without})["local"]) == ["2.weight", "2.bias"]
    assert "last layer stays on the clients (2.weight, 2.bias)" in FedBN().notes(without)[0]
    with pytest.raises(BadInputError, match=r"no parameter of the model matches '9\.\*'; it has 0\.weight, 0\.bias"):
        FedBN(local_layers=["0.*", "9.*"]).server_init(without)


@pytest.mark.sampled(2)
@ENGINES
@pytest.mark.parametrize("local", [LOCAL, DECAY], ids=["plain", "momentum, decay"])
def test_local_only(make_federation, engine_kind, local: LocalTraining) -> None:
    rates = (0.02, 0.5, 1e-6)
    start, end, memories, last = run(make_federation, LocalOnly(learning_rates=rates), engine_kind, local)
    own = {i: [start] * 3 for i in range(len(SIZES))}
    decay = lambda g, at: g + local.weight_decay * at  # noqa: E731
    for round, cohort in cohorts():
        for i in cohort:
            settings = [LocalTraining(**vars(local) | {"lr": rate}) for rate in rates]
            own[i] = [local_sgd(w, i, round, decay, s)[0] for w, s in zip(own[i], settings, strict=True)]
    assert (end == start).all()
    for i, memory in memories.items():
        for name, w in zip(("0.02", "0.5", "1e-06"), own[i], strict=True):
            if memory is not None:
                assert_close(flat(memory[name]), w)
    best = {i: min(models, key=lambda w, i=i: loss_of(w, i)) for i, models in own.items()}
    chosen = {next(k for k, w in enumerate(own[i]) if w is best[i]) for i in own}
    assert len(chosen) > 1
    assert_scored_with(last, best)
    assert (last.row["bytes_up"], last.row["bytes_down"]) == (0, 0)


@ENGINES
def test_a_rate_that_is_too_high_harms_nobody(make_federation, engine_kind) -> None:
    """One of the models becomes infinite; the other is as if it were alone."""
    overflowing = LocalTraining(epochs=2, batch_size=5, lr=0.2, weight_decay=1e-3)
    both, alone = LocalOnly(learning_rates=(1e300, 0.1)), LocalOnly(learning_rates=(0.1,))
    _, last = run_simulation(make_federation, both, overflowing, engine_kind)
    _, expected = run_simulation(make_federation, alone, overflowing, engine_kind)
    assert any(
        not torch.isfinite(memory["1e+300"]["1.weight"]).all()
        for i in range(len(SIZES))
        if (memory := last.snapshot.client_states.get(i)) is not None
    )
    assert_close(last.personal_scores.means("loss"), expected.personal_scores.means("loss"))


@ENGINES
def test_reptile(make_federation, engine_kind) -> None:
    algorithm = Reptile(meta_lr=1.5, final_meta_lr=0.5, fine_tune_steps=7, fine_tune_batch_size=4, fine_tune_lr=0.05)
    start, end, _, last = run(make_federation, algorithm, engine_kind)
    w = start
    for round, cohort in cohorts():
        rate = 1.5 - (round - 1) / ROUNDS
        w = w + rate * np.mean([local_sgd(w, i, round, plain, LOCAL)[0] - w for i in cohort], axis=0)
    assert_close(end, w)
    tuning = LocalTraining(epochs=None, steps=7, batch_size=4, lr=0.05)
    seed = streams.torch_seed(SEED, "fine-tuning")
    assert_scored_with(last, {i: local_sgd(w, i, ROUNDS, plain, tuning, seed)[0] for i in range(len(SIZES))})


@ENGINES
def test_reptile_is_fedavg_when_clients_are_of_one_size_and_it_goes_to_their_mean(make_federation, engine_kind) -> None:
    reptile = Reptile(meta_lr=1, final_meta_lr=1, fine_tune_steps=1)
    found = [run_simulation(make_federation, a, LOCAL, engine_kind, [9] * len(SIZES))[1] for a in (FedAvg(), reptile)]
    assert_close(*(flat(outcome.snapshot.state["params"]) for outcome in found))


@ENGINES
def test_mocha(make_federation, engine_kind) -> None:
    start, end, memories, last = run(make_federation, Mocha(lam=0.4, ridge=0.1), engine_kind)
    models = np.tile(start, (len(SIZES), 1))
    took_part = set()
    for round, cohort in cohorts():
        mean = models.mean(0)
        for i in cohort:
            gradient = lambda g, w, mean=mean: g + 0.4 * (w - mean) + 0.1 * w  # noqa: E731
            models[i] = local_sgd(models[i] if i in took_part else mean, i, round, gradient, LOCAL)[0]
        took_part |= set(cohort)
    assert_close(end, models.mean(0))
    for i in took_part:
        assert_close(flat(memories[i]["model"]), models[i])
    served = {i: models[i] if i in took_part else models.mean(0) for i in range(len(SIZES))}
    assert_scored_with(last, served)
    assert last.row["bytes_down"] == 4 * len(start) * 8  # the mean alone


def test_operations_of_all_models_count() -> None:
    spec = DataSpec("classification", CLASSES, (FEATURES,))
    task = make_task(build_model("logistic_regression", spec, {}, SEED), spec)
    one = count_training_flops(task)
    for algorithm, models in ((FedBN(), 1), (Mocha(), 1), (Ditto(), 2), (LocalOnly(learning_rates=(1, 2, 3)), 3)):
        algorithm.prepare(len(SIZES), LOCAL)
        assert count_training_flops(task, algorithm) == models * one


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ditto(lam=-1), r"algorithm\.lam must be at least 0"),
        (lambda: LocalHead(head_steps=-1), r"algorithm\.head_steps must be at least 0, not -1"),
        (lambda: LocalHead(head_steps=1).prepare(3, DECAY), r"local\.optimizer=sgd without momentum"),
        (lambda: Mocha(ridge=-1), r"algorithm\.ridge must be at least 0"),
        (lambda: Reptile(fine_tune_steps=0), r"algorithm\.fine_tune_steps must be above 0"),
        (lambda: Reptile(fine_tune_lr=0.0), r"algorithm\.fine_tune_lr must be above 0"),
        (lambda: LocalOnly(learning_rates=()), r"learning_rates must be different numbers, not \[\]"),
        (lambda: LocalOnly(learning_rates=(0.1, 0.1)), r"must be different numbers, not \[0\.1, 0\.1\]"),
        (lambda: LocalOnly(learning_rates=(0.1, 0.0)), r"algorithm\.learning_rates must be above 0, not 0\.0"),
        (lambda: LocalOnly().prepare(3, LocalTraining(optimizer="adam")), r"local\.optimizer=sgd, not for adam"),
    ],
)
def test_bad_options_get_a_sentence(make, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        make()
