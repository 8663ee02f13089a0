"""Dense layers that are not written down, against the reference engine, which writes everything down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_runs import config, content
from test_cohort import FAMILIES, FEATURES, SIZES, ClientsInMemory, assert_same, make_engine, train
from torch import Tensor, nn

from fedarena.algorithms import FedAvg, FedProx
from fedarena.core.errors import NotFiniteError
from fedarena.models import make_task
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.train import Algorithm, CohortEngine, Groups, Job, JobArrays, LocalTraining, ReferenceEngine, train_jobs
from fedarena.train import cohort as cohort_module
from fedarena.train import unwritten as unwritten_module
from fedarena.train import unwritten_training as training_module
from fedarena.train.execution import SMALL_OPERATIONS
from fedarena.train.product_rows import ProductRows
from fedarena.train.unwritten import find_dense_layers
from fedarena.train.unwritten_lanes import _Bound
from fedarena.transforms import Clip, TopK
from fedarena.transforms.aggregators import NormBound, Partial
from fedarena.transforms.aggregators.fixed_mean import FixedMean
from fedarena.transforms.clip_and_noise import ClipAndNoise
from fedarena.transforms.path import UpdatePath, train_and_collect
from fedarena.transforms.rows import Rows

PLAIN = LocalTraining(epochs=2, batch_size=8, lr=0.1)
LOCALS = {
    "plain": PLAIN,
    "steps": LocalTraining(epochs=None, steps=5, batch_size=4, lr=0.1),
    "decay": LocalTraining(epochs=2, batch_size=5, lr=0.1, weight_decay=0.3),
    "momentum": LocalTraining(epochs=3, batch_size=5, lr=0.1, momentum=0.9),
    "momentum, decay": LocalTraining(epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.1),
}
CLIENTS = list(range(len(SIZES)))


@pytest.fixture(autouse=True)
def every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are small."""
    monkeypatch.setattr(unwritten_module, "_FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(unwritten_module, "_WORTHWHILE_SHARE", 1e9)
    monkeypatch.setattr(training_module, "_DOMINATING_SHARE", 0)


def engine_for(kind: Any, module: nn.Module, local: LocalTraining, **options: Any) -> Any:
    task = make_task(module, FEATURES)
    algorithm = options.pop("algorithm", FedAvg())
    algorithm.prepare(len(SIZES), local)
    return kind(task, algorithm, local, ClientsInMemory(FEATURES), seed=3, dtype="float64", **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", [m for m in FAMILIES if m not in {"bag_of_words", "lstm", "lstm, one label"}])
@pytest.mark.parametrize("local", list(LOCALS))
def test_every_client_learns_the_same(model: str, local: str) -> None:
    reference = make_engine(ReferenceEngine, model, FedAvg(), LOCALS[local])
    cohort = make_engine(CohortEngine, model, FedAvg(), LOCALS[local], dense="factored")
    assert cohort._unwritten.layers, "nothing of this model was left unwritten"
    broadcast = {"params": reference.initial_params()}
    assert_same(train(reference, CLIENTS, broadcast, {}), train(cohort, CLIENTS, broadcast, {}))


def test_after_an_error_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), PLAIN, dense="factored")
    broadcast = {"params": engine.initial_params()}
    with monkeypatch.context() as broken:
        broken.setattr(_Bound, "run", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(engine, CLIENTS, broadcast, {})
    assert not SMALL_OPERATIONS._lock.locked()
    train(engine, CLIENTS, broadcast, {})


class _Network(nn.Module):
    """Dense layers of any sizes, with or without biases, some of them frozen."""

    def __init__(self, widths: list[int], bias: bool, frozen: list[bool]):
        super().__init__()
        sizes = zip([6, *widths], [*widths, 3], strict=True)
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=bias) for inputs, outputs in sizes)
        for layer, is_frozen in zip(self.layers, frozen, strict=False):
            layer.requires_grad_(not is_frozen)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        scores: Tensor = self.layers[-1](x)
        return scores


class _Looks(nn.Module):
    """A dense layer whose rows are what a function makes of samples, and something else that may look at them."""

    def __init__(self, rows: Any, besides: Any = None):
        super().__init__()
        self.dense, self.rows, self.besides = nn.Linear(6, 3), rows, besides

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.dense(self.rows(x))
        return scores if self.besides is None else scores + self.besides(x)


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (_Looks(lambda x: x), True),
        (_Looks(lambda x: x.flatten(1)), True),
        (_Looks(lambda x: x.flip(1)), False),
        (_Looks(lambda x: torch.relu(x)), False),
        (_Looks(lambda x: x.clone().relu_()), False),
        (_Looks(lambda x: x.relu_()), False),  # which changes none of the example's numbers
        (_Looks(lambda x: x, lambda x: x.mean(1, keepdim=True)), False),
        (_Looks(lambda x: x, lambda x: x.mean(1, keepdim=True) * 0), False),
        (_Looks(lambda x: x, lambda x: (x != 0).sum(1, keepdim=True).to(x.dtype)), False),  # true of NaN as well
        (_Looks(lambda x: x, lambda x: (x < 0).to(x.dtype).sum(1, keepdim=True)), False),  # and this is false
        (
            _Looks(lambda x: x, lambda x: x.new_ones(len(x), x.shape[1] // 2)),
            False,
        ),  # nothing but its form, but who knows
    ],
)
def test_layers_that_see_nothing_but_samples_are_found(module: _Looks, known: bool) -> None:
    task = make_task(module, FEATURES)
    params = {name: p.detach() for name, p in module.named_parameters()}
    assert ("x" in [layer.column for layer in find_dense_layers(task, params)]) == known


class _SeldomLooks(nn.Module):
    """Uses the weights of a layer otherwise, for samples that an example does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        scores: Tensor = self.second(hidden) + torch.where(x[:, :1] < -1, self.second.weight.mean(), 0.0)
        return scores


def test_weights_that_something_else_looks_at_are_written_down() -> None:
    module = _SeldomLooks()
    params = {name: p.detach() for name, p in module.named_parameters()}
    (found,) = find_dense_layers(make_task(module, FEATURES), params)
    assert (found.name, found.column) == ("first.weight", None)  # as something looks at samples, too


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_layers_of_any_size_and_any_training(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(1, 9), max_size=2), "widths")
    bias, frozen = data.draw(st.booleans(), "bias"), data.draw(st.lists(st.booleans(), min_size=2, max_size=2))
    frozen = frozen[: len(widths)]  # the last layer learns
    epochs = data.draw(st.one_of(st.none(), st.integers(1, 3)), "epochs")
    local = LocalTraining(
        epochs=epochs,
        steps=None if epochs else data.draw(st.integers(1, 6), "steps"),
        batch_size=data.draw(st.integers(1, 12), "batch size"),
        lr=data.draw(st.sampled_from([0.05, 0.3]), "lr"),
        momentum=data.draw(st.sampled_from([0.0, 0.5, 0.9]), "momentum"),
        weight_decay=data.draw(st.sampled_from([0.0, 0.01, 0.5]), "decay"),
    )
    clients = data.draw(st.lists(st.sampled_from(CLIENTS), min_size=1, unique=True), "clients")
    scaled = data.draw(st.booleans(), "a schedule")
    jobs = [
        Job(
            client,
            1,
            share=data.draw(st.sampled_from([1.0, 0.6, 0.25])),
            lr_scale=data.draw(st.sampled_from([1.0, 0.5])) if scaled else None,
        )
        for client in clients
    ]
    share = data.draw(st.sampled_from([1e9, 10.0]), "worthwhile")  # of few samples only
    torch.manual_seed(0)
    module = _Network(widths, bias, frozen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unwritten_module, "_WORTHWHILE_SHARE", share)
        patch.setattr(training_module, "_MOST_BYTES", data.draw(st.sampled_from([1, 4000, 1 << 25]), "most bytes"))
        reference = engine_for(ReferenceEngine, module, local)
        cohort = engine_for(CohortEngine, module, local, dense="factored", lanes=3)
        assert cohort._unwritten.layers
        broadcasts = {0: {"params": reference.initial_params()}}
        expected, found = (_by_client(engine, jobs, broadcasts) for engine in (reference, cohort))
        for client, (update, loss) in expected.items():
            np.testing.assert_allclose(found[client][1], loss, rtol=0, atol=1e-10)
            for name, t in update.items():
                torch.testing.assert_close(found[client][0][name], t, rtol=0, atol=1e-10)
        # Added up without ever being written down; who has no sample has no loss, and is never asked.
        jobs = [job for job in jobs if job.client] or [Job(3, 1)]
        path, sums = UpdatePath(FedAvg()), []
        for engine in (reference, cohort):
            shards = engine.divide(JobArrays.of(jobs), broadcasts, {})
            total = None
            for result in train_and_collect(engine, path, shards, []):
                total = result.partials[0] if total is None else path.merge(total, result.partials[0])
            sums.append(total)
        assert sums[0].numbers == pytest.approx(sums[1].numbers)
        for name, t in sums[0].tensors["change:params"].items():
            torch.testing.assert_close(sums[1].tensors["change:params"][name], t, rtol=0, atol=1e-9)


def _by_client(engine: Any, jobs: list[Job], broadcasts: Any) -> dict[int, Any]:
    found = {}
    for results in train_jobs(engine, jobs, broadcasts, {}):
        for row, client in enumerate(results.clients.tolist()):
            update = {name: t[row].clone() for name, t in results.update["params"].items()}
            found[client] = update, results.losses[row]
    return found


def summed(engine: Any, jobs: list[Job] | None = None, path: UpdatePath | None = None) -> dict[str, Tensor]:
    """The sum of what clients learn."""
    path = path or UpdatePath(engine.algorithm)
    jobs = jobs or [Job(client, 1) for client in CLIENTS[1:]]
    params = engine.initial_params()
    broadcasts = {job.version: {"params": {n: p + job.version for n, p in params.items()}} for job in jobs}
    shards = engine.divide(JobArrays.of(jobs), broadcasts, {})
    kept = path.server_init({"params": params})
    total = None
    for result in train_and_collect(engine, path, shards, kept):
        total = result.partials[0] if total is None else path.merge(total, result.partials[0])
    assert total is not None
    found: dict[str, Tensor] = total.tensors["change:params" if "change:params" in total.tensors else "params"]
    return found


def test_the_same_bits_twice_and_with_any_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort_module, "_CLIENTS_PER_LANE", 1)
    sums = []
    for workers in (1, 1, 2, 4):
        engine = make_engine(CohortEngine, "mlp", FedAvg(), PLAIN, dense="factored", lanes=2, workers=workers)
        assert len(engine.divide(JobArrays.of([Job(c, 1) for c in CLIENTS]), {0: {}}, {})) > 2
        sums += [summed(engine), summed(engine)]
    for other in sums[1:]:
        assert all(torch.equal(t, sums[0][name]) for name, t in other.items())


class _Watched(UpdatePath):
    """Notes whether an update came in products."""

    in_products = False

    def collect(self, results: Any, *others: Any) -> Any:
        results = list(results)
        for result in results:
            self.in_products |= any(isinstance(t, ProductRows) for t in result.update["params"].values())
        return super().collect(results, *others)


class _CountsClipped(ClipAndNoise):
    """Looks at what clients send, in a way of its own."""

    def observe(self, before: Rows, after: Groups) -> dict[str, float | Tensor]:
        return {"length": sum(float(t.norm()) for t in before.update["params"].values())}


class _Halved(FixedMean):
    """Adds up in a way of its own."""

    def add_up(self, rows: Rows) -> Partial:
        return super().add_up(replace(rows, update={"params": {n: t / 2 for n, t in rows.update["params"].items()}}))


def _clipping(kind: type[ClipAndNoise] = ClipAndNoise, **options: Any) -> ClipAndNoise:
    return kind(norm=0.5, noise_multiplier=1.0, clients=8, **options)


_PATHS: dict[str, tuple[bool, Any]] = {
    "nothing else": (True, {}),
    "clipped": (True, {"transforms": [_clipping()], "aggregator": FixedMean(8)}),
    "clipped per layer": (True, {"transforms": [_clipping(per_layer=True)], "aggregator": FixedMean(8)}),
    "shortened": (True, {"transforms": [Clip(bound=0.5)]}),
    "norm bound": (True, {"aggregator": NormBound(bound=0.5)}),
    "another transform": (False, {"transforms": [TopK(share=0.5)]}),
    "clipped twice": (False, {"transforms": [_clipping(), _clipping()], "aggregator": FixedMean(8)}),
    "clipped for the mean": (True, {"transforms": [_clipping()]}),
    "own observation": (False, {"transforms": [_clipping(_CountsClipped)], "aggregator": FixedMean(8)}),
    "own sum": (False, {"aggregator": _Halved(8)}),
    "own sum, shortened": (False, {"transforms": [Clip(bound=0.5)], "aggregator": _Halved(8)}),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("local", [PLAIN, replace(PLAIN, weight_decay=0.2, momentum=0.5)], ids=["plain", "decay"])
@pytest.mark.parametrize(("in_products", "parts"), _PATHS.values(), ids=list(_PATHS))
def test_products_are_for_those_who_only_add_up(in_products: bool, parts: Any, local: LocalTraining) -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), local, dense="factored", workers=1)
    path = _Watched(FedAvg(), **parts)
    found = summed(engine, path=path)
    assert path.in_products == in_products
    expected = summed(make_engine(CohortEngine, "mlp", FedAvg(), local, dense="written"), path=path)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=1e-9)


class _OwnLoss(Algorithm):
    def local_loss(self, task: Any, params: Any, batch: Any, client: Any) -> Tensor:
        penalty = sum(p.square().sum() for p in params.values())
        return task.loss(params, batch) + 0.1 * penalty


@pytest.mark.parametrize(
    ("algorithm", "local"),
    [
        (FedProx(mu=0.1), PLAIN),
        (_OwnLoss(), PLAIN),
        (FedAvg(), LocalTraining(optimizer="adam", lr=0.01)),
        (FedAvg(), LocalTraining(clip_norm=0.1)),
    ],
    ids=["FedProx", "own loss", "adam", "clipped gradients"],
)
def test_who_must_see_the_weights_gets_them(algorithm: Algorithm, local: LocalTraining) -> None:
    engine = make_engine(CohortEngine, "mlp", algorithm, local, dense="factored")
    assert not engine._unwritten.layers
    assert "dense" not in engine.choices


class _UsesWeightsElsewhere(nn.Module):
    def __init__(self, how: str):
        super().__init__()
        self.how, self.layer, self.last = how, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        if self.how == "twice":
            x = torch.tanh(self.layer(x))
        elif self.how == "transposed":
            x = x @ self.layer.weight
        elif self.how == "norm":
            x = x / self.layer.weight.norm()
        elif self.how == "hidden":  # in a computation that swallows what is not a number
            x = x + torch.nan_to_num(self.layer.weight).mean()
        scores: Tensor = self.last(x)
        return scores


@pytest.mark.parametrize("how", ["twice", "transposed", "norm", "hidden"])
def test_weights_with_another_use_are_written_down(how: str) -> None:
    torch.manual_seed(0)
    module = _UsesWeightsElsewhere(how)
    engine = engine_for(CohortEngine, module, PLAIN, dense="factored")
    assert "layer.weight" not in {layer.name for layer in engine._unwritten.layers}
    reference = engine_for(ReferenceEngine, module, PLAIN)
    broadcast = {"params": reference.initial_params()}
    assert_same(train(reference, CLIENTS, broadcast, {}), train(engine, CLIENTS, broadcast, {}))


def test_jobs_that_differ_train_as_usual() -> None:
    """From different versions, or with settings of their own."""
    engine, usual = (
        make_engine(CohortEngine, "mlp", FedAvg(), PLAIN, dense=dense, lanes=4) for dense in ("factored", "written")
    )
    own = [Job(client, 1, hyperparameters={"local.lr": 0.1 * (1 + client)}) for client in CLIENTS[1:]]
    expected = summed(usual, own)
    assert all(torch.equal(t, expected[name]) for name, t in summed(engine, own).items())
    versions = [Job(client, 1, version=client % 2) for client in CLIENTS[1:]]
    expected, found = summed(usual, versions), summed(engine, versions)  # some shards are of a single version
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, rtol=0, atol=1e-9)


def test_what_is_not_finite_is_named() -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), PLAIN, dense="factored", workers=1)
    engine.data.columns[5]["x"][3] = np.inf
    with pytest.raises(NotFiniteError) as caught:
        summed(engine)
    assert caught.value.client == 5


def test_products_of_some_clients() -> None:
    torch.manual_seed(0)
    counts = np.array([3, 0, 4, 1])
    rows = ProductRows(
        torch.randn(8, 2), torch.randn(8, 5), torch.randn(8), counts, torch.randn(4), torch.randn(2, 5)
    ).__getitem__([2, 0, 3])
    weights = torch.tensor([0.5, 2.0, -1.0])
    written = rows.written()
    assert written.shape == (3, 2, 5)
    torch.testing.assert_close(rows.weighted_sum(weights), torch.einsum("c,coi->oi", weights, written))
    torch.testing.assert_close(rows[np.array([1])].written(), written[1:2])


def test_norms_with_what_training_knows_already() -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["steps"], dense="factored", workers=1)
    full = [client for client in CLIENTS if SIZES[client] % 4 == 0 and SIZES[client]]
    assert len(full) > 1
    broadcast = {"params": engine.initial_params()}
    shards = engine.divide(JobArrays.of([Job(client, 1) for client in full]), {0: broadcast}, {})
    products = [
        t
        for shard in shards
        for results in engine.train_in_products(shard)
        for t in results.update["params"].values()
        if isinstance(t, ProductRows)
    ]
    assert products
    for rows in products:
        assert rows.overlaps is not None
        expected = torch.linalg.vector_norm(rows.written().flatten(1), dim=1)
        torch.testing.assert_close(rows.norms(), expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(replace(rows, overlaps=None).norms(), expected, rtol=1e-10, atol=0)
        batch, products = rows.overlaps.batch, rows.overlaps.products.clone()
        for begin in range(0, products.shape[1], batch):  # what is not of an earlier batch is not looked at
            products[:, begin : begin + batch, begin:] = torch.nan
        known = replace(rows.overlaps, products=products)
        assert torch.equal(replace(rows, overlaps=known).norms(), rows.norms())


def test_the_choice_is_part_of_a_run(tmp_path: Path) -> None:
    plain = config(engine="cohort", algorithm="fedavg", model="mlp", rounds=4)
    start_run(plain, tmp_path / "one go")
    run = Run.create(plain, tmp_path)
    run.advance(2)
    assert run.close().status == "interrupted"
    assert load_engine(tmp_path / "small")["dense"] == "factored"
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")


def load_engine(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())["engine"]
    return found


def test_runs_from_before_the_choice_go_on_as_they_began() -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), PLAIN, lanes=4)
    assert not engine._unwritten.layers
    assert "dense" not in engine.choices
    assert make_engine(CohortEngine, "mlp", FedAvg(), PLAIN).choices["dense"] == "factored"
