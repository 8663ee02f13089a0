"""Every algorithm against its paper, written down once more as a plain loop over clients on flat vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logistic_clients import (
    ENGINES,
    LOCAL,
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

from fedarena import algorithms
from fedarena.core.errors import BadInputError
from fedarena.train import Algorithm, LocalTraining


def fedavgm(w, rounds, local):
    v = np.zeros_like(w)
    for round, cohort in rounds:
        v = 0.7 * v + mean_change(w, cohort, round, local)
        w = w + 0.5 * v
    return w


def adaptive(rule):
    def oracle(w, rounds, local):
        m, v = np.zeros_like(w), np.full_like(w, 0.01**2)
        for round, cohort in rounds:
            u = mean_change(w, cohort, round, local)
            m = 0.8 * m + 0.2 * u
            v = rule(v, u**2)
            w = w + 0.1 * m / (np.sqrt(v) + 0.01)
        return w

    return oracle


def times_counted(steps: int, rho: float) -> float:
    """How much the first, second, … gradient of a client counts in its change, added up."""
    return sum(sum(rho**k for k in range(steps - s)) for s in range(steps))


def scaffold(w, rounds, local):
    c, controls = np.zeros_like(w), {i: np.zeros_like(w) for i in range(len(SIZES))}
    for round, cohort in rounds:
        moves, control_moves = [], []
        for i in cohort:
            correction = c - controls[i]
            end, steps = local_sgd(w, i, round, lambda g, _, correction=correction: g + correction, local)
            new_control = controls[i] - c + (w - end) / (times_counted(steps, local.momentum) * local.lr)
            moves.append(end - w)
            control_moves.append(new_control - controls[i])
            controls[i] = new_control
        w = w + 0.9 * np.mean(moves, axis=0)
        c = c + np.sum(control_moves, axis=0) / len(SIZES)
    return w


def feddyn(w, rounds, local):
    alpha, h = 0.3, np.zeros_like(w)
    linear = {i: np.zeros_like(w) for i in range(len(SIZES))}
    for round, cohort in rounds:
        ends = []
        for i in cohort:
            term = linear[i]
            correct = lambda g, at, term=term, start=w: g - term + alpha * (at - start)  # noqa: E731
            ends.append(local_sgd(w, i, round, correct, local)[0])
            linear[i] = linear[i] - alpha * (ends[-1] - w)
        h = h - alpha / len(SIZES) * sum(end - w for end in ends)
        w = np.mean(ends, axis=0) - h / alpha
    return w


def fednova(w, rounds, local):
    for round, cohort in rounds:
        p = by_samples(cohort)
        ends = [local_sgd(w, i, round, plain, local) for i in cohort]
        effective = [times_counted(steps, local.momentum) for _, steps in ends]
        direction = sum(share * (end - w) / a for share, (end, _), a in zip(p, ends, effective, strict=True))
        w = w + (p @ np.array(effective)) * direction
    return w


def qfedavg(w, rounds, local):
    q, smoothness = 2.0, 1 / local.lr
    everybody = list(make_clients().values())
    for round, cohort in rounds:
        numerator, denominator = np.zeros_like(w), 0.0
        for i in cohort:
            loss = losses_and_gradient(w, *everybody[i])[0]
            d = smoothness * (w - local_sgd(w, i, round, plain, local)[0])
            numerator += loss**q * d
            denominator += q * loss ** (q - 1) * (d @ d) + smoothness * loss**q
        w = w - numerator / denominator
    return w


MOMENTUM = LocalTraining(epochs=2, batch_size=5, lr=0.1, momentum=0.6)
CASES = {
    "fedavgm": (algorithms.FedAvgM(server_lr=0.5, beta=0.7), fedavgm, LOCAL),
    "fedadam": (
        algorithms.FedAdam(server_lr=0.1, beta1=0.8, beta2=0.9, tau=0.01),
        adaptive(lambda v, square: 0.9 * v + 0.1 * square),
        LOCAL,
    ),
    "fedadagrad": (
        algorithms.FedAdagrad(server_lr=0.1, beta1=0.8, tau=0.01),
        adaptive(lambda v, square: v + square),
        LOCAL,
    ),
    "fedyogi": (
        algorithms.FedYogi(server_lr=0.1, beta1=0.8, beta2=0.9, tau=0.01),
        adaptive(lambda v, square: np.where(v > square, v - 0.1 * square, v + 0.1 * square)),
        LOCAL,
    ),
    "scaffold": (algorithms.Scaffold(server_lr=0.9), scaffold, LOCAL),
    "scaffold with momentum": (algorithms.Scaffold(server_lr=0.9), scaffold, MOMENTUM),
    "feddyn": (algorithms.FedDyn(alpha=0.3), feddyn, LOCAL),
    "fednova": (algorithms.FedNova(), fednova, LOCAL),
    "fednova with momentum": (algorithms.FedNova(), fednova, MOMENTUM),
    "qfedavg": (algorithms.QFedAvg(q=2.0), qfedavg, LOCAL),
}


@pytest.mark.sampled(5)
@ENGINES
@pytest.mark.parametrize(("algorithm", "oracle", "local"), CASES.values(), ids=CASES)
def test_against_the_paper(make_federation, algorithm: Algorithm, oracle, local: LocalTraining, engine_kind) -> None:
    first, last = run_simulation(make_federation, algorithm, local, engine_kind)
    start, end = (flat(outcome.snapshot.state["params"]) for outcome in (first, last))
    np.testing.assert_allclose(end, oracle(start, cohorts(), local), rtol=0, atol=1e-10)
    assert np.abs(end - start).max() > 0.05


def test_with_q_zero_everybody_counts_the_same() -> None:
    algorithm = algorithms.QFedAvg(q=0.0)
    algorithm.prepare(10, LocalTraining(lr=0.5))
    from fedarena.train import Work
    from fedarena.train.jobs import newcomer

    work = Work(samples=3, steps=1, processed_samples=3, start_loss=torch.tensor(7.0))
    client = newcomer({"params": {"w": torch.zeros(2)}}, {})
    update, _ = algorithm.client_update({"w": torch.ones(2)}, client, work)
    assert update["params"]["w"].tolist() == [-2.0, -2.0]
    assert update["normalizer"]["sum"] == 2.0


def test_the_mean_of_equal_gradients_is_this_gradient_also_with_momentum() -> None:
    algorithm = algorithms.Scaffold()
    algorithm.prepare(10, LocalTraining(lr=0.5, momentum=0.9))
    from fedarena.train import Work
    from fedarena.train.jobs import newcomer

    gradient, w, velocity = torch.tensor([1.0, -3.0]), torch.zeros(2), torch.zeros(2)
    for _ in range(7):
        velocity = 0.9 * velocity + gradient
        w = w - 0.5 * velocity
    start = {"w": torch.zeros(2)}
    client = newcomer({"params": start, "control": start}, {"control": start})
    _, kept = algorithm.client_update({"w": w}, client, Work(samples=3, steps=7, processed_samples=21))
    torch.testing.assert_close(kept["control"]["w"], gradient)


@pytest.mark.parametrize("algorithm", [algorithms.FedNova, algorithms.Scaffold])
def test_adam_is_refused_where_steps_tell_gradients(algorithm: type[Algorithm]) -> None:
    with pytest.raises(BadInputError, match=r"local\.optimizer=sgd, not for adam"):
        algorithm().prepare(3, LocalTraining(optimizer="adam"))
