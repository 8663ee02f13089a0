"""Minibatch SGD against gradient descent on pooled samples, written in NumPy."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from logistic_clients import (
    CLASSES,
    COHORT,
    SEED,
    SIZES,
    flat,
    logistic_simulation,
    losses_and_gradient,
    make_clients,
)
from small_candidates import select_uniform

from fedarena.algorithms import MinibatchSGD
from fedarena.core.errors import BadInputError
from fedarena.data import Federation
from fedarena.simulate import simulate
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine
from fedarena.train.batches import sample_order


@pytest.fixture
def federation(make_federation) -> Federation:
    return make_federation(make_clients(), CLASSES)


def run(federation: Federation, engine_kind, algorithm: MinibatchSGD, local: LocalTraining, rounds: int):
    return list(simulate(logistic_simulation(federation, algorithm, local, engine_kind, rounds)))


def pooled(round: int, used: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What the cohort uses in a round, as one set: of each client the first samples of its shuffle."""
    clients = list(make_clients().values())
    cohort = select_uniform(np.arange(len(SIZES)), COHORT, SEED, round).tolist()
    chosen = [sample_order(SIZES[c], SEED, round, c, 0)[: used[c]] for c in cohort]
    x, y = ([clients[c][i][rows] for c, rows in zip(cohort, chosen, strict=True)] for i in (0, 1))
    return np.concatenate(x), np.concatenate(y)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("engine_kind", [ReferenceEngine, CohortEngine])
@pytest.mark.parametrize(
    ("fraction", "batch_size", "used"),
    [
        (1.0, 5, SIZES),
        (1.0, 64, SIZES),
        (0.4, 1, [ceil(0.4 * n) for n in SIZES]),
        (0.4, 5, [min(n, 5 * ceil(0.4 * n / 5)) for n in SIZES]),
        (0.001, 1, [1] * len(SIZES)),
    ],
)
def test_is_gradient_descent_on_the_pooled_samples(
    federation: Federation, engine_kind, fraction: float, batch_size: int, used: list[int]
) -> None:
    local = LocalTraining(batch_size=batch_size, lr=0.7)
    first, *outcomes = run(federation, engine_kind, MinibatchSGD(fraction=fraction), local, rounds=4)
    w = flat(first.snapshot.state["params"])
    for outcome in outcomes:
        x, y = pooled(outcome.snapshot.round, used)
        loss, gradient = losses_and_gradient(w, x, y)
        w = w - 0.7 * gradient
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), w, rtol=0, atol=1e-12)
        assert outcome.row["train_loss"] == pytest.approx(loss, abs=1e-12)
        assert outcome.row["samples"] == len(x)
    assert np.abs(w - flat(first.snapshot.state["params"])).max() > 0.1


def test_local_epochs_change_nothing(federation: Federation) -> None:
    ends = [
        run(federation, ReferenceEngine, MinibatchSGD(), LocalTraining(**work, batch_size=5), rounds=1)[-1]
        for work in ({"epochs": 1}, {"epochs": 3}, {"epochs": None, "steps": 9})
    ]
    one, *others = (flat(end.snapshot.state["params"]) for end in ends)
    for other in others:
        np.testing.assert_array_equal(other, one)


def test_the_fraction_is_not_rounded_up_because_of_binary_fractions() -> None:
    steps = MinibatchSGD(fraction=0.07).local_steps(np.array([100, 101, 0, 1]), LocalTraining(batch_size=1))
    assert steps.tolist() == [7, 8, 0, 1]


@pytest.mark.parametrize("local", [{"optimizer": "adam"}, {"momentum": 0.9}, {"weight_decay": 0.1}], ids=str)
def test_other_optimizers_are_refused(local) -> None:
    with pytest.raises(BadInputError, match=r"needs local\.optimizer=sgd without momentum, weight_decay and clip_norm"):
        MinibatchSGD().prepare(3, LocalTraining(**local))


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan")])
def test_fractions_out_of_range_are_refused(fraction: float) -> None:
    with pytest.raises(BadInputError, match=r"algorithm\.fraction must be above 0 and at most 1, not"):
        MinibatchSGD(fraction=fraction)
