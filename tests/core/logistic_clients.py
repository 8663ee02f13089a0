"""Logistic regression of a few clients in plain NumPy, to write algorithms down once more, and runs to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_candidates import select_uniform

from fedarena.data import Federation
from fedarena.fleet import Availability, ClientFleet, Devices, Fleet
from fedarena.models import DataSpec, build_model, make_task
from fedarena.simulate import RoundOutcome, Simulation, simulate
from fedarena.train import Algorithm, CohortEngine, LocalTraining, ReferenceEngine
from fedarena.train.batches import batch_indices

SEED, ROUNDS, COHORT, FEATURES, CLASSES = 2, 6, 4, 5, 3
SIZES = [3, 17, 8, 1, 30, 12, 6]
LOCAL = LocalTraining(epochs=2, batch_size=5, lr=0.2)
Vector = np.ndarray
ENGINES = pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
_RUN_NUMBERS = itertools.count()


def make_clients(sizes: list[int] | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return {
        f"c{i}": (generator.normal(size=(n, FEATURES)) + i / 5, generator.integers(CLASSES, size=n))
        for i, n in enumerate(sizes or SIZES)
    }


def losses_and_gradient(w: Vector, x: np.ndarray, y: np.ndarray) -> tuple[float, Vector]:
    """Mean cross-entropy of logistic regression and its gradient; w holds weights, then biases."""
    weights, bias = w[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), w[CLASSES * FEATURES :]
    logits = x @ weights.T + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(CLASSES)[y]) / len(y)
    return float(-np.log(p[np.arange(len(y)), y]).mean()), np.concatenate([(error.T @ x).ravel(), error.sum(0)])


def largest(update: np.ndarray, count: int) -> np.ndarray:
    """So many of the largest coordinates, and zeros elsewhere."""
    kept = np.argsort(-np.abs(update), kind="stable")[:count]
    sent = np.zeros_like(update)
    sent[kept] = update[kept]
    return sent


def local_sgd(
    w: Vector,
    client: int,
    round: int,
    correct: Callable[[Vector, Vector], Vector],
    local: LocalTraining,
    seed: int = SEED,
    steps: int | None = None,
) -> tuple[Vector, int]:
    """Plain local training: where it ends, and how many steps it took."""
    x, y = list(make_clients().values())[client]
    batches = batch_indices(len(x), local, seed, round, client, steps)
    velocity = np.zeros_like(w)
    for rows in batches:
        velocity = local.momentum * velocity + correct(losses_and_gradient(w, x[rows], y[rows])[1], w)
        w = w - local.lr * velocity
    return w, len(batches)


def plain(gradient: Vector, w: Vector) -> Vector:
    return gradient


def by_samples(cohort: list[int]) -> np.ndarray:
    sizes = np.array([SIZES[client] for client in cohort], dtype=float)
    return sizes / sizes.sum()


def mean_change(w: Vector, cohort: list[int], round: int, local: LocalTraining) -> Vector:
    changes = [local_sgd(w, client, round, plain, local)[0] - w for client in cohort]
    return by_samples(cohort) @ np.array(changes)


def flat(params: dict[str, torch.Tensor]) -> Vector:
    return np.concatenate([params["1.weight"].numpy().ravel(), params["1.bias"].numpy()])


def cohorts() -> list[tuple[int, list[int]]]:
    """Who trains in which round."""
    everybody = np.arange(len(SIZES))
    return [(r, select_uniform(everybody, COHORT, SEED, r).tolist()) for r in range(1, ROUNDS + 1)]


def phones_of_different_speeds(
    growth: float = 2.0, seconds_per_sample: float = 0.1, upload_bits_per_second: float = 1e4
) -> ClientFleet:
    """Phones that are always there, each `growth` times as slow as the one before."""
    count = len(SIZES)
    devices = Devices.from_columns(
        seconds_per_sample=seconds_per_sample * growth ** np.arange(count),
        download_bits_per_second=np.full(count, 1e4),
        upload_bits_per_second=np.full(count, upload_bits_per_second),
    )
    fleet = Fleet("of different speeds", devices, Availability.always(count), paired=True)
    return fleet.match(np.arange(count), None, seed=1)


def run_simulation(
    make_federation: Any, algorithm: Algorithm, local: LocalTraining, engine_kind: Any, sizes: list[int] | None = None
) -> tuple[RoundOutcome, RoundOutcome]:
    """The first and the last round of a run of the same problem."""
    federation = make_federation(make_clients(sizes), CLASSES, name=f"run {next(_RUN_NUMBERS)}")
    first, *_, last = simulate(logistic_simulation(federation, algorithm, local, engine_kind))
    return first, last


def logistic_simulation(
    federation: Federation,
    algorithm: Algorithm,
    local: LocalTraining,
    engine_kind: Any,
    rounds: int = ROUNDS,
    cohort: int = COHORT,
    model: str = "logistic_regression",
    **options: Any,
) -> Simulation:
    """Logistic regression, or another model, on all clients of a federation, in float64."""
    everybody = federation.clients("all")
    spec = DataSpec("classification", federation.task.classes, federation.columns["x"].shape)
    task = make_task(build_model(model, spec, options, SEED), spec)
    algorithm.prepare(len(everybody), local, rounds)
    return Simulation(
        seed=SEED,
        rounds=rounds,
        cohort=cohort,
        task=task,
        algorithm=algorithm,
        engine=engine_kind(task, algorithm, local, federation, SEED, dtype="float64"),
        training_clients=everybody,
        evaluation_clients=everybody,
        evaluation_part="test",
        evaluate_every=rounds,
        flops_per_sample=0,
        client_ids=federation.client_ids,
    )
