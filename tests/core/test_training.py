from __future__ import annotations

import copy
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from fedarena.algorithms import FedAvg, FedProx, FedYogi
from fedarena.models import DataSpec, build_model, make_task
from fedarena.train import (
    Algorithm,
    Job,
    JobArrays,
    LocalTraining,
    ReferenceEngine,
    Work,
    count_training_flops,
    is_finite,
    train_jobs,
)
from fedarena.train.batches import batch_indices
from fedarena.train.execution import without_gradients
from fedarena.train.jobs import newcomer
from fedarena.train.optimizers import optimizer_init, optimizer_step
from fedarena.transforms import Rows
from fedarena.transforms.aggregators import Mean


@given(samples=st.integers(0, 50), epochs=st.integers(1, 4), batch_size=st.integers(1, 60), seed=st.integers(0, 5))
def test_every_epoch_sees_every_sample_once(samples: int, epochs: int, batch_size: int, seed: int) -> None:
    batches = batch_indices(samples, LocalTraining(epochs=epochs, batch_size=batch_size), seed, round=1, client=2)
    per_epoch = ceil(samples / batch_size)
    assert len(batches) == epochs * per_epoch
    for epoch in range(epochs):
        seen = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(batch) == batch_size for batch in seen[:-1])
        assert sorted(int(i) for batch in seen for i in batch) == list(range(samples))


@given(samples=st.integers(0, 30), steps=st.integers(1, 40), batch_size=st.integers(1, 40))
def test_steps_repeat_the_data_as_often_as_needed(samples: int, steps: int, batch_size: int) -> None:
    local = LocalTraining(epochs=None, steps=steps, batch_size=batch_size)
    batches = batch_indices(samples, local, seed=0, round=1, client=2)
    assert len(batches) == (steps if samples else 0)
    whole = batch_indices(samples, LocalTraining(epochs=steps, batch_size=batch_size), seed=0, round=1, client=2)
    assert all((a == b).all() for a, b in zip(batches, whole, strict=False))


def test_shuffles_differ_between_epochs_rounds_clients_and_seeds() -> None:
    local = LocalTraining(epochs=2, batch_size=100)
    first, second = batch_indices(100, local, seed=0, round=1, client=2)
    others = [batch_indices(100, local, *keys)[0] for keys in [(1, 1, 2), (0, 2, 2), (0, 1, 3)]]
    assert all((first != other).any() for other in [second, *others])


@pytest.mark.parametrize(
    ("local", "theirs"),
    [
        (LocalTraining(lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3)),
        (
            LocalTraining(lr=0.3, momentum=0.9, weight_decay=0.1),
            lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, weight_decay=0.1),
        ),
        (LocalTraining(lr=0.3, optimizer="adam"), lambda p: torch.optim.Adam(p, lr=0.3)),
        (
            LocalTraining(lr=0.3, optimizer="adam", weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.3, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "sgd momentum decay", "adam", "adam decay"],
)
def test_optimizers_agree_with_torch(local: LocalTraining, theirs) -> None:
    generator = torch.Generator().manual_seed(0)
    params = {"w": torch.randn(4, 3, generator=generator, dtype=torch.float64)}
    leaf = params["w"].clone().requires_grad_()
    optimizer = theirs([leaf])
    state = optimizer_init(local, params)
    for number in range(1, 8):
        grad = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        leaf.grad = grad.clone()
        optimizer.step()
        params, state = optimizer_step(local, params, {"w": grad}, state, number)
        torch.testing.assert_close(params["w"], leaf.detach(), rtol=0, atol=1e-12)


def test_weighted_mean_golden() -> None:
    aggregator = Mean()
    updates = torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 8.0]])
    before = updates.clone()
    parts = []
    for first, last, weights in ((0, 2, np.array([1.0, 2.0])), (2, 3, np.array([5.0]))):
        some = {"params": {"w": updates[first:last]}, "extra": {"c": updates[first:last, :1]}}
        jobs = JobArrays.of([Job(client, 1) for client in range(first, last)])
        parts.append(aggregator.add_up(Rows(some, jobs, Work(None, None, None), weights, ("params",))))
    mean = aggregator.finish(aggregator.merge(*parts))
    assert torch.equal(updates, before)
    assert mean["params"]["w"].tolist() == [7 / 8, 38 / 8]
    assert mean["extra"]["c"].tolist() == [7 / 8]
    assert mean["cohort"]["clients"] == 3


def test_fedavg_golden() -> None:
    state = {"params": {"w": torch.tensor([1.0, 2.0])}}
    mean = {"params": {"w": torch.tensor([0.5, -1.0])}}
    assert FedAvg().server_step(state, mean, 1)["params"]["w"].tolist() == [1.5, 1.0]
    assert FedAvg(server_lr=2).server_step(state, mean, 1)["params"]["w"].tolist() == [2.0, 0.0]
    assert state["params"]["w"].tolist() == [1.0, 2.0]


def test_fedprox_adds_the_gradient_of_its_proximal_term() -> None:
    start, point = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64).requires_grad_()
    (expected,) = torch.autograd.grad(0.7 / 2 * (point - start).square().sum(), point)
    grad = {"w": torch.randn(5, dtype=torch.float64)}
    client = newcomer({"params": {"w": start}}, {})
    corrected = FedProx(mu=0.7).local_gradient(grad, {"w": point.detach()}, client)
    torch.testing.assert_close(corrected["w"], grad["w"] + expected, rtol=0, atol=1e-12)


def test_fedyogi_against_numpy() -> None:
    algorithm = FedYogi(server_lr=0.1, beta1=0.8, beta2=0.9, tau=0.01)
    generator = np.random.default_rng(0)
    w = generator.normal(size=6)
    state = algorithm.server_init({"w": torch.from_numpy(w.copy())})
    m, v = np.zeros(6), np.full(6, 1e-4)
    for round in range(1, 6):
        u = generator.normal(size=6) * 10.0 ** generator.integers(-3, 1, size=6)
        state = algorithm.server_step(state, {"params": {"w": torch.from_numpy(u)}}, round)
        m = 0.8 * m + 0.2 * u
        v = np.where(v > u**2, v - 0.1 * u**2, v + 0.1 * u**2)
        w = w + 0.1 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(state["params"]["w"].numpy(), w, rtol=0, atol=1e-12)
    assert set(algorithm.broadcast(state)) == {"params"}  # the moments stay on the server


class Samples:
    """Client data in memory that remembers who was asked for."""

    def __init__(self, clients: list[tuple[np.ndarray, np.ndarray]]):
        self.clients, self.asked = clients, []

    def samples(self, clients, part):
        self.asked += [int(c) for c in clients]
        chosen = [self.clients[c] for c in clients]
        self.columns = {"x": np.concatenate([x for x, _ in chosen]), "y": np.concatenate([y for _, y in chosen])}
        self.offsets = np.cumsum([0] + [len(x) for x, _ in chosen])
        return copy.copy(self)

    def counts(self, clients, part):
        return np.array([len(self.clients[c][0]) for c in clients])


def make_clients(sizes: list[int], features: int, classes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(generator.normal(size=(n, features)), generator.integers(classes, size=n)) for n in sizes]


def engine_for(data: Samples, algorithm: Algorithm, local: LocalTraining, features: int, classes: int, seed: int = 0):
    spec = DataSpec("classification", classes, (features,))
    task = make_task(build_model("logistic_regression", spec, {}, seed), spec)
    return ReferenceEngine(task, algorithm, local, data, seed, dtype="float64")


def test_an_engine_touches_only_the_cohort() -> None:
    data = Samples(make_clients([4] * 1000, 3, 2))
    engine = engine_for(data, FedAvg(), LocalTraining(), 3, 2)
    list(train_jobs(engine, [Job(7, 1), Job(500, 1)], {0: {"params": engine.initial_params()}}, {}))
    assert data.asked == [7, 500]


def test_clients_with_few_samples_or_none() -> None:
    data = Samples(make_clients([0, 1, 3], 3, 2))
    engine = engine_for(data, FedAvg(), LocalTraining(batch_size=8, epochs=2), 3, 2)
    none, one, three = train_jobs(
        engine, [Job(0, 1), Job(1, 1), Job(2, 1)], {0: {"params": engine.initial_params()}}, {}
    )
    assert [int(r.work.steps[0]) for r in (none, one, three)] == [0, 2, 2]
    assert three.work.processed_samples[0] == 6
    assert all(not t.any() for t in none.update["params"].values())
    assert all(t.any() for t in one.update["params"].values())


def test_evaluation_in_blocks_equals_one_client_at_a_time() -> None:
    sizes = [1, 300, 2, 70, 64, 1, 5000, 3]
    data = Samples(make_clients(sizes, 4, 3))
    engine = engine_for(data, FedAvg(), LocalTraining(), 4, 3)
    scores = engine.evaluate(engine.initial_params(), np.arange(len(sizes)), "test")
    weight, bias = (p.numpy() for p in engine.initial_params().values())
    for client, (x, y) in enumerate(data.clients):
        logits = x @ weight.T + bias
        loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
        assert scores.means("accuracy")[client] == (logits.argmax(1) == y).mean()
        np.testing.assert_allclose(scores.means("loss")[client], loss.mean(), atol=1e-12)
    assert scores.samples.tolist() == sizes


class Counting(FedAvg):
    """Clients remember how often they took part and report it."""

    def client_init(self, broadcast):
        return {"visits": {"n": torch.zeros(1)}}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        visits = {"n": client.state["visits"]["n"] + 1}
        return {**update, "visits": visits}, {"visits": visits}


def test_memory_is_kept_between_rounds() -> None:
    data = Samples(make_clients([4, 4], 3, 2))
    engine = engine_for(data, Counting(), LocalTraining(), 3, 2)
    broadcast = {"params": engine.initial_params()}
    (first,) = train_jobs(engine, [Job(1, 1)], {0: broadcast}, {})
    kept = {"visits": {"n": first.client_states["visits"]["n"][0]}}
    (again, new) = train_jobs(engine, [Job(1, 2), Job(0, 2)], {0: broadcast}, {1: kept})
    assert (again.update["visits"]["n"].item(), new.update["visits"]["n"].item()) == (2, 1)


class OwnLoop(FedAvg):
    """Plain SGD written as a loop of one's own."""

    def train(self, client, model, data):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in data:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
            optimizer.step()


def test_a_free_training_loop_gives_what_the_hooks_give() -> None:
    data = Samples(make_clients([9, 5], 3, 2))
    results = []
    for algorithm in (FedAvg(), OwnLoop()):
        engine = engine_for(data, algorithm, LocalTraining(epochs=2, batch_size=4, lr=0.1), 3, 2)
        results.append(list(train_jobs(engine, [Job(0, 1), Job(1, 1)], {0: {"params": engine.initial_params()}}, {})))
    for hooks, loop in zip(*results, strict=True):
        assert hooks.work.steps == loop.work.steps
        for name, update in hooks.update["params"].items():
            torch.testing.assert_close(loop.update["params"][name], update, rtol=0, atol=1e-12)


def test_flops_of_a_linear_layer() -> None:
    spec = DataSpec("classification", 5, (60,))
    task = make_task(build_model("logistic_regression", spec, {}, 0), spec)
    # forward and the gradient of the weights; the inputs need no gradient
    assert count_training_flops(task) == 2 * (2 * 60 * 5)


@pytest.mark.parametrize("name", ["logistic_regression", "mlp", "cnn"])
def test_flops_are_those_of_torchs_counter(name: str) -> None:
    spec = DataSpec("classification", 5, (1, 8, 8))
    task = make_task(build_model(name, spec, {}, 0), spec)
    batch = task.batch(task.example(1))
    params = {name: p.detach().requires_grad_() for name, p in task.module.named_parameters()}
    with FlopCounterMode(display=False) as counter:
        task.loss({name: p.clone() for name, p in params.items()}, batch).backward()
    assert 0 < count_training_flops(task) == counter.get_total_flops()


def test_sums_that_overflow_are_not_mistaken_for_divergence() -> None:
    huge = torch.full((4,), 3e38)
    assert torch.isinf(huge.sum())
    assert is_finite({"params": {"w": huge}, "none": {}})
    assert not is_finite({"params": {"w": torch.tensor([1.0, torch.nan])}})
    assert not is_finite({"params": {"w": torch.tensor([torch.inf, -torch.inf])}})
    assert is_finite({})


def test_items_are_computed_without_gradients_and_used_with_them() -> None:
    def modes():
        for _ in range(3):
            yield torch.is_grad_enabled()

    for computed_with in without_gradients(modes()):
        assert not computed_with
        assert torch.is_grad_enabled()
