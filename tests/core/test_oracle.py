"""The reference engine against FedAvg written in NumPy, to the last bit.

Two libraries add many terms in different orders, and every library has its own last bit of exp and log. So the problem
that is compared bit by bit has sums of two numbers only (one-hot features plus a bias, two classes, batches of two),
where the order does not matter, and takes the softmax from torch; all else is NumPy's. On general data everything is
NumPy's and the two agree to rounding.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from logistic_clients import SEED, logistic_simulation
from small_candidates import select_uniform

from fedarena.algorithms import FedAvg, FedProx
from fedarena.data import Federation
from fedarena.simulate import simulate
from fedarena.train import LocalTraining, ReferenceEngine
from fedarena.train.batches import batch_indices

FEATURES, CLASSES, ROUNDS, COHORT = 6, 2, 25, 4


def softmax_error(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Gradient of the mean cross-entropy with respect to the logits."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return (shifted / shifted.sum(1, keepdims=True) - np.eye(CLASSES)[labels]) / len(labels)


def torch_softmax_error(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The same with torch's exp and log, whose last bit is not NumPy's."""
    leaf = torch.from_numpy(logits).requires_grad_()
    torch.nn.functional.cross_entropy(leaf, torch.from_numpy(labels)).backward()
    return leaf.grad.numpy()


def numpy_oracle(clients, w, b, local: LocalTraining, mu: float, softmax_error) -> tuple[np.ndarray, np.ndarray]:
    for round in range(1, ROUNDS + 1):
        sum_w, sum_b, samples = np.zeros_like(w), np.zeros_like(b), 0
        for client in select_uniform(np.arange(len(clients)), COHORT, SEED, round):
            x, y = clients[client]
            local_w, local_b = w, b
            for rows in batch_indices(len(x), local, SEED, round, int(client)):
                error = softmax_error(x[rows] @ local_w.T + local_b, y[rows])
                grad_w, grad_b = error.T @ x[rows], error.sum(0)
                grad_w, grad_b = grad_w + mu * (local_w - w), grad_b + mu * (local_b - b)
                local_w, local_b = local_w - local.lr * grad_w, local_b - local.lr * grad_b
            sum_w, sum_b = sum_w + len(x) * (local_w - w), sum_b + len(x) * (local_b - b)
            samples += len(x)
        w, b = w + sum_w / samples, b + sum_b / samples
    return w, b


def one_hot_clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(1)
    clients = {}
    for number in range(10):
        size = int(generator.integers(1, 12))
        x = np.eye(FEATURES)[generator.integers(FEATURES, size=size)]
        clients[f"client {number}"] = (x, generator.integers(CLASSES, size=size))
    return clients


def run_reference(federation: Federation, algorithm: FedAvg, local: LocalTraining):
    first, *_, last = simulate(logistic_simulation(federation, algorithm, local, ReferenceEngine, ROUNDS, COHORT))
    return first.snapshot.state["params"], last.snapshot.state["params"]


@pytest.mark.parametrize("mu", [0.0, 0.25], ids=["fedavg", "fedprox"])
def test_to_the_last_bit(make_federation, mu: float) -> None:
    clients = one_hot_clients()
    local = LocalTraining(epochs=2, batch_size=2, lr=0.7)
    algorithm = FedProx(mu=mu) if mu else FedAvg()
    start, end = run_reference(make_federation(clients, CLASSES), algorithm, local)
    w, b = (start[name].numpy() for name in ("1.weight", "1.bias"))
    expected_w, expected_b = numpy_oracle(list(clients.values()), w, b, local, mu, torch_softmax_error)
    assert np.abs(expected_w - w).max() > 0.1
    assert (end["1.weight"].numpy() == expected_w).all()
    assert (end["1.bias"].numpy() == expected_b).all()


def test_on_general_data_to_rounding(make_federation) -> None:
    generator = np.random.default_rng(2)
    clients = {
        str(i): (generator.normal(size=(n, FEATURES)), generator.integers(CLASSES, size=n))
        for i, n in enumerate([3, 40, 1, 17, 8])
    }
    local = LocalTraining(epochs=3, batch_size=5, lr=0.3)
    start, end = run_reference(make_federation(clients, CLASSES), FedAvg(), local)
    w, b = (start[name].numpy() for name in ("1.weight", "1.bias"))
    expected_w, expected_b = numpy_oracle(list(clients.values()), w, b, local, 0, softmax_error)
    np.testing.assert_allclose(end["1.weight"].numpy(), expected_w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(end["1.bias"].numpy(), expected_b, rtol=0, atol=1e-12)
