"""The cohort engine against the reference engine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import MODELS, DataSpec, build_model, make_task
from fedarena.train import (
    Algorithm,
    CohortEngine,
    Engine,
    Groups,
    Job,
    LocalTraining,
    ReferenceEngine,
    take_row,
    train_jobs,
)
from fedarena.train import cohort as cohort_module
from fedarena.train import resident as resident_samples
from fedarena.train.execution import one_ahead
from fedarena.train.resident import ResidentSamples, pieces_of, rows_of

SIZES = [0, 1, 3, 25, 7, 40, 9, 16, 2, 11]
FEATURES = DataSpec("classification", 3, (6,))
IMAGES = DataSpec("classification", 4, (1, 8, 8))
TEXT = DataSpec("next_token", 12, (9,), padding=0, unknown=1)
TWEETS = DataSpec("classification", 3, (7,), padding=0, unknown=1, tokens=15)
FAMILIES = {
    "logistic_regression": (FEATURES, {}),
    "mlp": (FEATURES, {"hidden": (5,)}),
    "cnn": (IMAGES, {"channels": (3, 4), "hidden": 6}),
    "leaf_cnn": (IMAGES, {"hidden": 5}),
    "cnn, dropout": (IMAGES, {"channels": (3, 4), "hidden": 6, "dropout": 0.4}),
    "mlp, dropout": (FEATURES, {"depth": 2, "width": 5, "dropout": 0.3}),
    "bert_tiny": (TWEETS, {"layers": 2, "heads": 2, "width": 6, "positions": 9, "dropout": 0.2}),
    "bag_of_words": (TWEETS, {}),
    "lstm, one label": (TWEETS, {"embedding": 3, "hidden": 4}),
    "char_mlp": (TEXT, {"context": 3, "embedding": 4, "hidden": 6}),
    "lstm": (TEXT, {"embedding": 3, "hidden": 4}),
    "resnet18": (IMAGES, {"width": 4}),
    "transformer": (TEXT, {"layers": 2, "heads": 2, "width": 6}),
    "vit": (IMAGES, {"layers": 2, "heads": 2, "width": 6, "mlp_ratio": 1.5, "prompts": 2}),
}
LOCALS = {
    "epochs": LocalTraining(epochs=2, batch_size=8, lr=0.1),
    "steps, adam": LocalTraining(epochs=None, steps=7, batch_size=8, optimizer="adam", lr=0.01),
    "momentum, decay": LocalTraining(epochs=3, batch_size=5, lr=0.1, momentum=0.9, weight_decay=0.01),
}


@pytest.fixture(autouse=True)
def lanes_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few clients are one shard here, so that they follow each other in lanes; otherwise only large cohorts do."""
    monkeypatch.setattr(cohort_module, "_SHARDS_FOR_WORKERS", 1)


class ClientsInMemory:
    """Client data with random samples that fit a model."""

    def __init__(self, spec: DataSpec):
        generator = np.random.default_rng(0)
        self.columns = []
        for size in SIZES:
            if spec.kind == "next_token":
                tokens = generator.integers(1, spec.classes, size=(size, spec.input_shape[0] + 1))
                tokens[:, 6:] *= generator.integers(0, 2, size=(size, 1))  # some sequences end early
                self.columns.append({"tokens": tokens.astype(np.uint8)})
            elif spec.is_text:
                x = generator.integers(1, spec.vocabulary, size=(size, *spec.input_shape))
                x[:, :4] *= generator.integers(0, 2, size=(size, 1))  # some texts are short
                self.columns.append({"x": x.astype(np.uint16), "y": generator.integers(spec.classes, size=size)})
            else:
                x = generator.normal(size=(size, *spec.input_shape))
                self.columns.append({"x": x, "y": generator.integers(spec.classes, size=size)})

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([SIZES[c] for c in clients])

    def samples(self, clients: Any, part: str) -> Any:
        chosen = [self.columns[c] for c in clients]
        joined = {name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]}
        return SimpleNamespace(columns=joined, offsets=np.cumsum([0, *(SIZES[c] for c in clients)]))


def make_engine(kind: Any, model: str, algorithm: Algorithm, local: LocalTraining, **options: Any) -> Engine:
    spec, model_options = FAMILIES[model]
    task = make_task(build_model(model.partition(",")[0], spec, model_options, seed=0), spec)
    return kind(task, algorithm, local, ClientsInMemory(spec), seed=3, **{"dtype": "float64", **options})


def train(engine: Engine, clients: list[int], broadcast: Groups, memories: dict[int, Groups], round: int = 1):
    """Every client's update, memory, loss and work."""
    found = {}
    for results in train_jobs(engine, [Job(client, round) for client in clients], {0: broadcast}, memories):
        for row, client in enumerate(results.clients):
            amounts = (results.work.samples[row], results.work.steps[row], results.work.processed_samples[row])
            memory = take_row(results.client_states, row)
            found[int(client)] = (take_row(results.update, row), memory, results.losses[row], amounts)
    return found


def assert_same(reference: dict, other: dict, tolerance: float = 1e-10) -> None:
    assert set(reference) == set(other)
    for client, (update, memory, loss, amounts) in reference.items():
        assert other[client][3] == amounts
        np.testing.assert_allclose(other[client][2], loss, rtol=0, atol=tolerance)
        for ours, theirs in ((update, other[client][0]), (memory, other[client][1])):
            assert set(ours) == set(theirs)
            for group, tensors in ours.items():
                for name, t in tensors.items():
                    torch.testing.assert_close(theirs[group][name], t, rtol=0, atol=tolerance)


# A way of training knows nothing of the model, so that models which take long need not be trained in all ways.
DEEP = dict.fromkeys(
    (
        "bert_tiny",
        "cnn, dropout",
        "mlp, dropout",
        "lstm",
        "lstm, one label",
        "resnet18",
        "transformer",
        "vit",
        "leaf_cnn",
    )
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("local", "model"),
    [(local, model) for local in LOCALS for model in FAMILIES if local in ("epochs", DEEP.get(model, local))],
)
def test_models_train_as_one_at_a_time(local: str, model: str) -> None:
    reference, cohort = (
        make_engine(kind, model, FedAvg(), LOCALS[local], **options)
        for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 4}))
    )
    broadcast = {"params": reference.initial_params()}
    clients = list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    assert_same(expected, train(cohort, clients, broadcast, {}))
    assert max(t.abs().max() for update, *_ in expected.values() for t in update["params"].values()) > 1e-3


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_algorithms_train_as_one_at_a_time(name: str) -> None:
    """Two rounds with everything that an algorithm keeps in between."""
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    clients = list(range(1, len(SIZES)))
    outcomes = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 3})):
        algorithm = ALGORITHMS.get(name)()
        algorithm.prepare(len(SIZES), local)
        engine = make_engine(kind, "mlp", algorithm, local, **options)
        broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
        first = train(engine, clients, broadcast, {})
        memories = {client: memory for client, (_, memory, _, _) in first.items() if client % 2}
        outcomes.append((first, train(engine, clients, broadcast, memories, round=2)))
    for reference, cohort in zip(*outcomes, strict=True):
        assert_same(reference, cohort)


def test_lanes_change_rounding_only_and_workers_nothing() -> None:
    local = LOCALS["epochs"]
    broadcast = None
    results = []
    for lanes, workers in ((1, 2), (2, 2), (3, 1), (7, 4), (64, 1), (1, 1)):
        engine = make_engine(CohortEngine, "mlp", FedAvg(), local, lanes=lanes, workers=workers)
        broadcast = broadcast or {"params": engine.initial_params()}
        results.append(train(engine, list(range(len(SIZES))), broadcast, {}))
    for other in results[1:]:
        assert_same(results[0], other)
    assert_same(results[0], results[-1], tolerance=0)


def test_one_engine_serves_cohorts_of_any_size() -> None:
    reference, cohort = (
        make_engine(kind, "mlp", FedAvg(), LOCALS["epochs"]) for kind in (ReferenceEngine, CohortEngine)
    )
    broadcast = {"params": reference.initial_params()}
    for round, clients in enumerate([[5], [1, 2], [3, 4, 5, 6, 7, 8], [0], [9, 0]], start=1):
        assert_same(train(reference, clients, broadcast, {}, round), train(cohort, clients, broadcast, {}, round))


def test_cohorts_of_many_sizes_share_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    local = LOCALS["epochs"]
    reference, engine = (make_engine(kind, "mlp", FedAvg(), local) for kind in (ReferenceEngine, CohortEngine))
    engine.expect_varying_cohorts(4)
    assert "cohorts" not in engine.choices  # it makes no difference on a CPU
    monkeypatch.setattr(type(engine.hardware), "is_gpu", property(lambda self: True))
    engine.expect_varying_cohorts(4)
    monkeypatch.undo()
    assert engine.choices["cohorts"] == "varying"
    assert engine.usual_width == 8  # 4 + 2 * 2
    broadcast = {"params": reference.initial_params()}
    for clients in ([3, 4], [1, 2, 3, 5, 6], list(range(10))):
        assert_same(train(reference, clients, broadcast, {}), train(engine, clients, broadcast, {}))
    steps = [form for lanes in engine._pool._free.values() for one in lanes for form in one._several]
    assert {width for width, _, often, _ in steps if often} == {8}
    assert {width for width, *_ in steps} <= {1, 2, 4, 8}  # ten clients trained in two parts, none in a wider program
    assert len([lanes for free in engine._pool._free.values() for lanes in free]) == 1


def test_runs_from_before_there_was_a_choice_keep_their_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], lanes=8)
    monkeypatch.setattr(type(engine.hardware), "is_gpu", property(lambda self: True))
    engine.expect_varying_cohorts(4)
    assert "cohorts" not in engine.choices
    assert engine.usual_width is None


class ScaledLoss(FedAvg):
    """Overrides the loss and draws on both broadcast and memory."""

    def client_init(self, broadcast):
        return {"anchor": {name: 0.5 * p for name, p in broadcast["params"].items()}}

    def local_loss(self, task, params, batch, client):
        distance = sum((params[name] - client.state["anchor"][name]).square().sum() for name in params)
        return 2 * task.loss(params, batch) + 0.1 * distance

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        share = work.processed_samples / work.samples
        return {**update, "extra": {"share": share * next(iter(params.values())).sum()}}, {"anchor": params}


def test_hooks_see_the_right_tensors() -> None:
    clients = list(range(1, len(SIZES)))
    reference, cohort = (
        make_engine(kind, "mlp", ScaledLoss(), LOCALS["epochs"]) for kind in (ReferenceEngine, CohortEngine)
    )
    broadcast = {"params": reference.initial_params()}
    first = train(reference, clients, broadcast, {})
    memories = {client: memory for client, (_, memory, _, _) in first.items() if client < 5}
    assert_same(train(reference, clients, broadcast, memories, 2), train(cohort, clients, broadcast, memories, 2))


def test_what_it_cannot_do_it_says() -> None:
    class OwnLoop(FedAvg):
        def train(self, client, model, data):
            pass

    engine = make_engine(CohortEngine, "mlp", OwnLoop(), LOCALS["epochs"])
    assert engine.notes == ["Clients train one at a time, because OwnLoop has a training loop of its own"]
    assert len(train(engine, [1, 2], {"params": engine.initial_params()}, {})) == 2
    with pytest.raises(BadInputError, match=r"engine\.lanes must be from 1 to 65536, not 0"):
        make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], lanes=0)


class Branching(nn.Module):
    """A layer whose computation depends on its data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else 2 * x


class Noisy(nn.Module):
    """A layer that draws from torch's own generator while it is trained."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.training else x


def make_both_engines(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Engine]:
    """Engines for a model with this layer in the middle."""

    def build(spec: DataSpec) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), layer, nn.Linear(5, 3))

    monkeypatch.setitem(MODELS._parts, "odd", build)
    monkeypatch.setitem(FAMILIES, "odd", (FEATURES, {}))
    return (
        make_engine(ReferenceEngine, "odd", FedAvg(), LOCALS["epochs"]),
        make_engine(CohortEngine, "odd", FedAvg(), LOCALS["epochs"], lanes=3),
    )


def test_dropout_is_the_same_one_at_a_time_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, cohort = make_both_engines(nn.Dropout(0.5), monkeypatch)
    assert cohort.notes == []
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    first = train(reference, clients, broadcast, {})
    assert_same(first, train(cohort, clients, broadcast, {}))
    plain, _ = make_both_engines(nn.Identity(), monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(first, train(plain, clients, broadcast, {}))


@pytest.mark.parametrize("layer", [Branching(), Noisy()], ids=["branching", "noisy"])
def test_a_layer_that_cannot_be_vectorized_is_named(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, cohort = make_both_engines(layer, monkeypatch)
    assert len(cohort.notes) == 1
    assert f"the layer '1' ({type(layer).__name__}) cannot be vectorized" in cohort.notes[0]
    broadcast = {"params": reference.initial_params()}
    assert_same(train(reference, [1, 5], broadcast, {}), train(cohort, [1, 5], broadcast, {}), tolerance=0)


def test_lanes_suit_the_size_of_model_and_batch() -> None:
    # weights and biases, and four times, for every sample, the flattened features and the scores, 8 bytes each
    engine = make_engine(CohortEngine, "logistic_regression", FedAvg(), LocalTraining(batch_size=1000))
    per_lane = 8 * ((3 * 6 + 3) + 4 * 1000 * (6 + 3))
    assert engine.lanes <= 2**23 / per_lane < 2 * engine.lanes
    assert engine.lanes == 16
    assert engine.choices == {"device": "cpu", "lanes": engine.lanes}
    assert make_engine(CohortEngine, "logistic_regression", FedAvg(), LocalTraining(batch_size=10**6)).lanes == 1
    assert make_engine(CohortEngine, "mlp", FedAvg(), LocalTraining(batch_size=1)).lanes == 256


def test_models_that_can_be_vectorized_are_not_refused() -> None:
    for model in FAMILIES:
        assert make_engine(CohortEngine, model, FedAvg(), LOCALS["epochs"]).notes == []


def test_who_does_a_share_of_the_work_takes_fewer_steps() -> None:
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    found = []
    for kind in (ReferenceEngine, CohortEngine):
        engine = make_engine(kind, "mlp", FedAvg(), local)
        jobs = [Job(3, 1, share=0.5), Job(5, 1, share=0.01), Job(7, 1)]
        results = list(train_jobs(engine, jobs, {0: {"params": engine.initial_params()}}, {}))
        rows = {int(c): (r, i) for r in results for i, c in enumerate(r.clients)}
        found.append({c: (r.work.steps[i], take_row(r.update, i)["params"]["1.bias"]) for c, (r, i) in rows.items()})
    assert {client: int(steps) for client, (steps, _) in found[0].items()} == {3: 4, 5: 1, 7: 4}
    for client, (steps, bias) in found[0].items():
        assert found[1][client][0] == steps
        torch.testing.assert_close(found[1][client][1], bias, rtol=0, atol=1e-10)


def test_hardware_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BadInputError, match=r"engine\.device is cuda, but torch finds no CUDA GPU here"):
        make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], device="cuda")
    with pytest.raises(BadInputError, match=r"engine\.precision tf32 needs a GPU"):
        make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], precision="tf32")
    assert make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"]).choices["device"] == "cpu"


def test_bf16_rounds_products_only() -> None:
    with pytest.raises(BadInputError, match=r"engine\.precision bf16 needs engine\.dtype float32, not float64"):
        make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], precision="bf16")
    spec, options = FAMILIES["cnn"]
    found = []
    for kind, precision in ((ReferenceEngine, "full"), (ReferenceEngine, "bf16"), (CohortEngine, "bf16")):
        task = make_task(build_model("cnn", spec, options, seed=0), spec)
        engine = kind(task, FedAvg(), LOCALS["epochs"], ClientsInMemory(spec), seed=3, precision=precision)
        found.append(train(engine, [3, 5], {"params": engine.initial_params()}, {})[5][0]["params"]["7.weight"])
        assert found[-1].dtype == torch.float32
    size = found[0].norm()
    assert 1e-4 < (found[1] - found[0]).norm() / size < 0.1
    assert (found[2] - found[0]).norm() / size < 0.1


@settings(deadline=None)
@given(
    rounds=st.lists(st.lists(st.integers(0, 9), min_size=1, unique=True), min_size=1, max_size=8),
    limit_rows=st.integers(1, 150),
    piece_rows=st.integers(1, 60),
)
def test_resident_samples_are_those_of_the_clients(rounds: list[list[int]], limit_rows: int, piece_rows: int) -> None:
    data = ClientsInMemory(FEATURES)
    row_bytes = 6 * 8 + 8
    most_needed = 0
    resident = ResidentSamples(data, torch.device("cpu"), limit_rows * row_bytes)
    for clients in rounds:
        with patch.object(resident_samples, "_PIECE_BYTES", piece_rows * row_bytes):
            columns, begins = rows_of(resident, np.array(clients))
        for client, begin in zip(clients, begins, strict=True):
            for name, expected in data.columns[client].items():
                assert np.array_equal(columns[name][begin : begin + SIZES[client]].numpy(), expected)
        most_needed = max(most_needed, sum(SIZES[client] for client in clients))
        assert len(columns["x"]) <= max(limit_rows, most_needed)


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=30), most_rows=st.integers(1, 20))
def test_pieces_of_clients(counts: list[int], most_rows: int) -> None:
    pieces = pieces_of(np.array(counts), most_rows)
    assert [client for piece in pieces for client in range(len(counts))[piece]] == list(range(len(counts)))
    for piece in pieces:
        assert sum(counts[piece]) <= most_rows or len(counts[piece]) == 1
    for piece, following in itertools.pairwise(pieces):
        assert sum(counts[piece]) + counts[following.start] > most_rows


def test_one_ahead_keeps_the_order_and_raises_in_its_turn() -> None:
    def slow(task: int) -> int:
        started.append(task)
        if task == 3:
            raise ValueError("three")
        return task * task

    for tasks in ([], [5], [5, 1, 4]):
        started: list[int] = []
        assert list(one_ahead(slow, tasks)) == [task * task for task in tasks]
        assert started == tasks
    started = []
    results = one_ahead(slow, [1, 2, 3, 4, 5])
    assert [next(results), next(results)] == [1, 4]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert started[:3] == [1, 2, 3]
    assert 5 not in started
