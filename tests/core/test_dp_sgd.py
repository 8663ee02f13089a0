"""DP-SGD at the client beside a plain loop over samples, on both engines."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from logistic_clients import (
    CLASSES,
    COHORT,
    ENGINES,
    FEATURES,
    LOCAL,
    ROUNDS,
    SEED,
    SIZES,
    by_samples,
    cohorts,
    flat,
    logistic_simulation,
    losses_and_gradient,
    make_clients,
)
from torch import nn

from fedarena.algorithms import Ditto, FedAvg, FedKD, FedProx, MinibatchSGD, Scaffold
from fedarena.models import MODELS, DataSpec, build_model, make_task
from fedarena.privacy.dp_sgd import PrivateTraining
from fedarena.privacy.extended import extended
from fedarena.simulate import simulate
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining, ReferenceEngine, count_training_flops
from fedarena.train.batches import batch_indices
from fedarena.train.jobs import newcomer

CLIP, NOISE = 0.8, 0.7


def noise_of(client: int, round: int, step: int) -> np.ndarray:
    """Standard normal numbers for weights and biases in a client's step."""
    shapes = {"1.weight": (CLASSES, FEATURES), "1.bias": (CLASSES,)}
    context = JobArrays.of([Job(client, round)]).contexts(torch.zeros((), dtype=torch.float64), SEED)
    drawn = [
        context.at_step(step).normal(f"dp-sgd {name}", torch.zeros((1, *shape), dtype=torch.float64))
        for name, shape in shapes.items()
    ]
    return np.concatenate([t.numpy().ravel() for t in drawn])


def private_sgd(w: np.ndarray, client: int, round: int, noise: float) -> np.ndarray:
    x, y = list(make_clients().values())[client]
    for step, rows in enumerate(batch_indices(len(x), LOCAL, SEED, round, client), start=1):
        total = np.zeros_like(w)
        for row in rows:
            gradient = losses_and_gradient(w, x[[row]], y[[row]])[1]
            total += gradient * min(1.0, CLIP / np.linalg.norm(gradient))
        total += noise * CLIP * noise_of(client, round, step)
        w = w - LOCAL.lr * total / len(rows)
    return w


@pytest.mark.sampled(2)
@ENGINES
@pytest.mark.parametrize("noise", [0.0, NOISE])
def test_steps_are_noisy_means_of_shortened_gradients_of_samples(make_federation, engine_kind, noise) -> None:
    algorithm = extended(FedAvg(), PrivateTraining, clip_norm=CLIP, noise_multiplier=noise)
    federation = make_federation(make_clients(), CLASSES, name=f"dp {noise}")
    first, *_, last = simulate(logistic_simulation(federation, algorithm, LOCAL, engine_kind))
    w = flat(first.snapshot.state["params"])
    for round, cohort in cohorts():
        w = w + by_samples(cohort) @ np.array([private_sgd(w, c, round, noise) - w for c in cohort])
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)
    assert (COHORT, ROUNDS, len(SIZES)) == (4, 6, 7)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedProx, Scaffold, Ditto, FedKD])
def test_both_engines_agree_whatever_the_algorithm(make_federation, algorithm) -> None:
    federation = make_federation(make_clients(), CLASSES)
    states = []
    for kind in (CohortEngine, ReferenceEngine):
        private = extended(algorithm(), PrivateTraining, clip_norm=CLIP, noise_multiplier=NOISE)
        *_, last = simulate(logistic_simulation(federation, private, LOCAL, kind, rounds=2))
        states.append(last.snapshot.state)
    for group, tensors in states[0].items():
        for name, t in tensors.items():
            torch.testing.assert_close(t, states[1][group][name], rtol=0, atol=1e-9)


@ENGINES
def test_minibatch_sgd_divides_the_noisy_sum_of_all_batches_once(make_federation, engine_kind) -> None:
    algorithm = extended(MinibatchSGD(fraction=0.7), PrivateTraining, clip_norm=CLIP, noise_multiplier=NOISE)
    federation = make_federation(make_clients(), CLASSES)
    first, *_, last = simulate(logistic_simulation(federation, algorithm, LOCAL, engine_kind, rounds=2))
    w = flat(first.snapshot.state["params"])
    for round, cohort in cohorts()[:2]:
        total, used = np.zeros_like(w), 0
        for client in cohort:
            x, y = list(make_clients().values())[client]
            batches = -(-math.ceil(0.7 * len(x)) // LOCAL.batch_size)
            for step, rows in enumerate(batch_indices(len(x), LOCAL, SEED, round, client)[:batches], start=1):
                for row in rows:
                    gradient = losses_and_gradient(w, x[[row]], y[[row]])[1]
                    total += gradient * min(1.0, CLIP / np.linalg.norm(gradient))
                total += NOISE * CLIP * noise_of(client, round, step)
                used += len(rows)
        w = w - LOCAL.lr * total / used
    np.testing.assert_allclose(flat(last.snapshot.state["params"]), w, atol=1e-10)


class Smoothed(FedAvg):
    """A loss of somebody's own, written the obvious way."""

    def local_loss(self, task, params, batch, client):
        mean = batch["x"].square().mean()
        return task.loss(params, batch) + 0.01 * mean * sum(p.square().sum() for p in params.values())


def test_own_losses_see_one_sample_at_a_time(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    ends = []
    for kind in (CohortEngine, ReferenceEngine):
        private = extended(Smoothed(), PrivateTraining, clip_norm=CLIP, noise_multiplier=NOISE)
        *_, last = simulate(logistic_simulation(federation, private, LOCAL, kind, rounds=2))
        ends.append(flat(last.snapshot.state["params"]))
    np.testing.assert_allclose(*ends, atol=1e-10)


def test_gradients_of_samples_take_memory_and_so_fewer_lanes(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    private = extended(FedAvg(), PrivateTraining, clip_norm=CLIP, noise_multiplier=NOISE)
    lanes = [
        logistic_simulation(federation, algorithm, LOCAL, CohortEngine, model="mlp").engine.lanes
        for algorithm in (FedAvg(), private)
    ]
    assert lanes[1] < lanes[0]


def end_of_both_engines(federation, monkeypatch, model) -> list[torch.Tensor]:
    """The parameters after two rounds of private training of a model of one's own."""
    monkeypatch.setitem(MODELS._parts, "own", model)
    ends = []
    for kind in (CohortEngine, ReferenceEngine):
        private = extended(FedAvg(), PrivateTraining, clip_norm=CLIP, noise_multiplier=NOISE)
        local = LocalTraining(steps=3, batch_size=4)
        simulation = logistic_simulation(federation, private, local, kind, rounds=2, model="own")
        assert count_training_flops(simulation.task, private) >= count_training_flops(simulation.task)
        *_, last = simulate(simulation)
        ends.append(torch.cat([t.ravel() for t in last.snapshot.state["params"].values()]))
    return ends


def test_dropout_is_the_same_on_both_engines(make_federation, monkeypatch) -> None:
    def dropping(spec: DataSpec) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, spec.classes))

    ends = end_of_both_engines(make_federation(make_clients(), CLASSES), monkeypatch, dropping)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


class Recurrent(nn.Module):
    """A recurrent layer of torch's own, which reads features one after the other."""

    def __init__(self, kind: type[nn.RNNBase], spec: DataSpec):
        super().__init__()
        self.layer = kind(1, 4, batch_first=True)
        self.output = nn.Linear(4, spec.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.output(self.layer(x.unsqueeze(-1))[0][:, -1])
        return scores


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.filterwarnings("ignore:.*cannot be vectorized")  # a plain RNN trains one client at a time
def test_own_recurrent_layers_train_privately_on_both_engines(make_federation, monkeypatch, kind) -> None:
    federation = make_federation(make_clients(), CLASSES)
    ends = end_of_both_engines(federation, monkeypatch, partial(Recurrent, kind))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-10)


@pytest.mark.parametrize("removed", range(6))
def test_one_sample_moves_the_sum_by_at_most_the_bound(removed: int) -> None:
    """Sensitivity: with a sample that has no gradient, the noiseless sum differs by the clipping norm at most."""
    generator = np.random.default_rng(removed)
    x, w = 5 * generator.normal(size=(6, FEATURES)), generator.normal(size=CLASSES * (FEATURES + 1))
    scores = x @ w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES).T + w[CLASSES * FEATURES :]
    y = scores.argmin(1)  # all are wrong, so that gradients are long

    spec = DataSpec("classification", CLASSES, (FEATURES,))
    task = make_task(build_model("logistic_regression", spec, {}, SEED).double(), spec)
    private = extended(FedAvg(), PrivateTraining, clip_norm=CLIP, noise_multiplier=0.0)
    params = {
        "1.weight": torch.tensor(w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES)),
        "1.bias": torch.tensor(w[CLASSES * FEATURES :]),
    }
    client = newcomer({"params": params}, {})
    sums = []
    for mask in (np.ones(6), 1.0 * (np.arange(6) != removed)):
        batch = {"x": torch.tensor(x), "y": torch.tensor(y), "mask": torch.tensor(mask)}
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        loss = private.local_loss(task, leaves, batch, client)
        gradient = torch.autograd.grad(loss, list(leaves.values()))
        sums.append(mask.sum() * np.concatenate([g.numpy().ravel() for g in gradient]))
    distance = np.linalg.norm(sums[0] - sums[1])
    assert distance <= CLIP * (1 + 1e-9)
    assert distance >= CLIP * (1 - 1e-9)  # or this test would show nothing
