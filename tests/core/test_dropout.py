from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedarena.algorithms import FedAvg, QFedAvg
from fedarena.core import streams
from fedarena.models import MODELS, DataSpec, build_model, make_task
from fedarena.models.dropout import KeyedDropout, dropout_key, with_keyed_dropout
from fedarena.models.keyed_random import _INCREMENT, _scramble
from fedarena.train import Job, LocalTraining, ReferenceEngine, train_jobs
from fedarena.train.batches import batch_indices, dropout_keys

SPEC = DataSpec("classification", 3, (6,))
SAMPLES = {"x": np.random.default_rng(0).normal(size=(10, 6)), "y": np.arange(10) % 3}


def key(*numbers: int) -> Tensor:
    return torch.tensor(dropout_keys(1, *numbers))


def drop(layer: nn.Module, x: Tensor, its_key: Tensor) -> Tensor:
    with dropout_key(its_key):
        return layer(x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_much_is_dropped_as_was_asked_for(p: float, dtype: torch.dtype) -> None:
    places, keys = 2000, 100
    masks = torch.stack([drop(KeyedDropout(p), torch.ones(places, dtype=dtype), key(1, c, 1)) for c in range(keys)])
    kept = masks > 0
    torch.testing.assert_close(masks, kept.to(dtype) / (1 - p))
    for dimension in (0, 1):  # of every place over the keys, and of every key over the places, as if drawn one by one
        shares = kept.double().mean(dimension)
        variance = p * (1 - p) / kept.shape[dimension]
        assert abs(shares.mean() - (1 - p)) < 4 * (p * (1 - p) / kept.numel()) ** 0.5
        assert shares.var() == pytest.approx(variance, rel=4 * (2 / (len(shares) - 1)) ** 0.5)


@pytest.mark.parametrize("distance", [1, 2, 64, 1024])
def test_places_layers_and_keys_are_independent(distance: int) -> None:
    layers = [KeyedDropout(0.5), KeyedDropout(0.5)]
    x = torch.ones(1 << 16)
    with dropout_key(key(1, 1, 1)):
        first, second = (layer(x) - 1 for layer in layers)
    other_step, other_client = (drop(layers[0], x, key(1, c, s)) - 1 for c, s in ((1, 2), (2, 1)))
    within = first[:-distance] * first[distance:]
    for product in (within, first * second, first * other_step, first * other_client):
        assert abs(product.mean()) < 4 / len(product) ** 0.5


def test_the_hash_is_the_one_of_the_streams() -> None:
    """splitmix64 in signed torch numbers against NumPy's unsigned ones: bit for bit, on negative keys, too."""
    keys = np.array([0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0], dtype=np.uint64)
    with np.errstate(over="ignore"):
        expected = streams._scramble(keys + np.uint64(_INCREMENT % 2**64))
    found = _scramble(torch.from_numpy(keys.view(np.int64)) + _INCREMENT)
    np.testing.assert_array_equal(found.numpy().view(np.uint64), expected)


def test_many_keys_at_once_and_traced_give_the_same_bits() -> None:
    layer = nn.Sequential(KeyedDropout(0.3), nn.Linear(5, 4), KeyedDropout(0.6, whole_channels=True))
    keys = torch.from_numpy(dropout_keys(1, 2, np.arange(7), 3))
    x = torch.randn(7, 4, 5)
    one_by_one = torch.stack([drop(layer, x[i], keys[i]) for i in range(7)])
    together = torch.func.vmap(lambda x, k: drop(layer, x, k))
    torch.testing.assert_close(together(x, keys), one_by_one)
    traced = make_fx(together)(x, keys)
    others = keys.flip(0)
    torch.testing.assert_close(traced(x, others), together(x, others), rtol=0, atol=0)
    assert not torch.allclose(traced(x, others), traced(x, keys))


def test_gradients_flow_through_what_is_kept() -> None:
    x = torch.ones(8, 9)
    gradient = torch.func.grad(lambda x: drop(KeyedDropout(0.5), x, key(1, 1, 1)).sum())(x)
    assert torch.equal(gradient, drop(KeyedDropout(0.5), x, key(1, 1, 1)))


def test_what_follows_in_the_batch_does_not_matter() -> None:
    x = torch.randn(6, 4, 3)
    for layer in (KeyedDropout(0.5), KeyedDropout(0.5, whole_channels=True)):
        assert torch.equal(drop(layer, x, key(1, 1, 1))[:4], drop(layer, x[:4], key(1, 1, 1)))


def test_channels_are_dropped_as_a_whole() -> None:
    dropped = drop(KeyedDropout(0.5, whole_channels=True), torch.ones(20, 30, 4, 5), key(1, 1, 1))
    channels = dropped.flatten(2)
    assert torch.equal(channels, channels[..., :1].expand_as(channels))
    assert 0.4 < (channels[..., 0] == 0).double().mean() < 0.6
    assert set(channels.unique().tolist()) == {0.0, 2.0}


def test_nothing_and_everything() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(drop(KeyedDropout(0.0), x, key(1, 1, 1)), x)
    assert torch.equal(drop(KeyedDropout(1.0), x, key(1, 1, 1)), torch.zeros(3, 4))
    assert torch.equal(drop(KeyedDropout(0.5).eval(), x, key(1, 1, 1)), x)


def test_without_a_key_it_is_torchs() -> None:
    x = torch.ones(100, 10)
    results = []
    for layer in (KeyedDropout(0.4), nn.Dropout(0.4)):
        torch.manual_seed(3)
        results.append(layer(x))
    assert torch.equal(*results)
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(KeyedDropout(0.5))(x)


def test_with_a_key_torchs_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    drop(KeyedDropout(0.5), torch.ones(5), key(1, 1, 1))
    assert torch.equal(torch.random.get_rng_state(), before)


class Own(nn.Dropout):
    """Somebody's own kind."""


def test_layers_are_replaced_wherever_they_are() -> None:
    shared = nn.Dropout(0.2)
    module = nn.Sequential(nn.Linear(2, 2), shared, nn.Sequential(nn.Dropout1d(0.3), shared), Own(0.5)).eval()
    module.append(nn.Dropout2d(0.4).train())
    module[2].again = shared
    assert with_keyed_dropout(module) is module
    assert [type(layer) for layer in module[1:2]] == [KeyedDropout]
    assert module[1] is module[2][1] is module[2].again
    assert [(m.p, m.whole_channels, m.training) for m in (module[1], module[2][0], module[4])] == [
        (0.2, False, False),
        (0.3, True, False),
        (0.4, True, True),
    ]
    assert type(module[3]) is Own
    assert repr(module[2][0]) == "KeyedDropout(p=0.3, whole_channels=True)"


class Everybody:
    """Client data: everybody has the same few samples."""

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.full(len(clients), 10)

    def samples(self, clients: Any, part: str) -> Any:
        return SimpleNamespace(columns=SAMPLES, offsets=np.array([0, 10]))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ReferenceEngine:
    def build(spec: DataSpec) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))

    monkeypatch.setitem(MODELS._parts, "dropping", build)
    task = make_task(build_model("dropping", SPEC, {}, seed=0), SPEC)
    local, algorithm = LocalTraining(epochs=2, batch_size=4, lr=0.1), getattr(request, "param", FedAvg)()
    algorithm.prepare(9, local)
    return ReferenceEngine(task, algorithm, local, Everybody(), seed=1, dtype="float64")


def train(engine: ReferenceEngine, clients: list[int], round: int = 1) -> dict[int, Tensor]:
    jobs = [Job(client, round) for client in clients]
    results = train_jobs(engine, jobs, {0: {"params": engine.initial_params()}}, {})
    return {int(r.clients[0]): r.update["params"]["0.weight"][0] for r in results}


def test_training_by_hand(engine: ReferenceEngine) -> None:
    """Every step draws from the key of its client, round and number, counted from 1."""
    params = {name: p.clone().requires_grad_() for name, p in engine.initial_params().items()}
    start = params["0.weight"].detach().clone()
    for number, rows in enumerate(batch_indices(10, engine.local, 1, 5, 7), start=1):
        x, y = (torch.from_numpy(SAMPLES[name][rows]) for name in ("x", "y"))
        hidden = nn.functional.linear(x, params["0.weight"], params["0.bias"])
        dropped = drop(KeyedDropout(0.5), hidden, torch.tensor(dropout_keys(1, 5, 7, number)))
        loss = nn.functional.cross_entropy(nn.functional.linear(dropped, params["2.weight"], params["2.bias"]), y)
        gradients = torch.autograd.grad(loss, list(params.values()))
        params = {
            n: (p - 0.1 * g).detach().requires_grad_() for (n, p), g in zip(params.items(), gradients, strict=True)
        }
    assert torch.equal(train(engine, [7], round=5)[7], params["0.weight"].detach() - start)


def test_training_depends_on_nobody_else_and_no_generator(engine: ReferenceEngine) -> None:
    together = train(engine, [1, 2, 3])
    torch.manual_seed(99)
    assert torch.equal(train(engine, [3])[3], together[3])
    assert not torch.equal(train(engine, [3], round=2)[3], together[3])


@pytest.mark.parametrize("engine", [QFedAvg], indirect=True)
def test_the_loss_at_the_start_is_that_of_the_whole_model(engine: ReferenceEngine) -> None:
    """And training goes on with dropout after it was computed."""
    params = engine.initial_params()
    scores = engine.evaluate(params, np.array([0]), "train")
    engine.task.module.train()
    assert float(engine._start_loss(0, {"params": params})) == scores.means("loss")[0]
    assert engine.task.module.training


def test_evaluation_drops_nothing(engine: ReferenceEngine) -> None:
    params = engine.initial_params()
    one, two = (engine.evaluate(params, np.array([0]), "test").means("loss") for _ in range(2))
    np.testing.assert_array_equal(one, two)
    batch = engine.task.batch({name: torch.from_numpy(v) for name, v in SAMPLES.items()})
    keyed = {**batch, "key": key(1, 1, 1)}
    assert engine.task.loss(params, keyed) == engine.task.loss(params, batch)
    engine.task.module.train()
    assert engine.task.loss(params, keyed) != engine.task.loss(params, {**batch, "key": key(1, 1, 2)})
