"""Recurrent layers as operations for many clients, against torch's own layers for each of them."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.models import DataSpec, build_model, make_task
from fedarena.models.adaptation import ADAPTATIONS
from fedarena.train import (
    CohortEngine,
    Job,
    LocalTraining,
    ReferenceEngine,
    count_training_flops,
    library_lstm,
    take_row,
    train_jobs,
)
from fedarena.train.graphs import separate_updates
from fedarena.train.program import record
from fedarena.train.recurrent import RecurrentLayers
from fedarena.train.scripts import without_python

KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU}
SIZES = [1, 3, 9, 7, 12]
TEXT = DataSpec("next_token", 12, (9,), padding=0, unknown=1)


def weighed(module: nn.Module, params: dict[str, Tensor], x: Tensor, first: Any = None) -> Tensor:
    """A number in which everything that a layer puts out has another weight."""
    output, last = functional_call(module, params, (x,) if first is None else (x, first))
    total = x.new_zeros(())
    for t in (output, *(last if isinstance(last, tuple) else (last,))):
        weights = torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view(t.shape)
        total = total + (weights * t + t**2).sum()
    return total


def stacked(module: nn.Module, lanes: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(lanes)
    return {
        name: torch.randn(lanes, *p.shape, generator=generator, dtype=torch.float64).to(p.dtype) / 2
        for name, p in module.named_parameters()
    }


def operations(module: nn.Module, x: Tensor, **options: Any) -> list[str]:
    """Names of what is recorded of a gradient for two clients."""
    params = stacked(module, 2)

    def flat(tensors: list[Tensor]) -> list[Tensor]:
        with RecurrentLayers(**options):
            return list(
                vmap(grad(lambda p, x: weighed(module, p, x)))(dict(zip(params, tensors, strict=True)), x).values()
            )

    recorded = record(flat, list(params.values()))
    return [str(node.target) for node in recorded.graph.nodes]


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    sizes=st.tuples(*[st.integers(1, 4)] * 5),
    layers=st.integers(1, 3),
    both=st.booleans(),
    samples_first=st.booleans(),
    bias=st.booleans(),
    starts=st.booleans(),
)
def test_layers_and_their_gradients_are_torchs(kind, sizes, layers, both, samples_first, bias, starts) -> None:
    lanes, length, samples, inputs, width = sizes
    options: dict[str, Any] = {"bidirectional": both, "batch_first": samples_first, "bias": bias}
    module = KINDS[kind](inputs, width, layers, **options).double()
    params = stacked(module, lanes)
    generator = torch.Generator().manual_seed(1)
    shape = (samples, length) if samples_first else (length, samples)
    x = torch.randn(lanes, *shape, inputs, generator=generator, dtype=torch.float64)
    first: Any = None
    if starts:
        each = (lanes, layers * (2 if both else 1), samples, width)
        first = tuple(torch.randn(each, generator=generator, dtype=torch.float64) for _ in range(2))
        first = first if kind == "LSTM" else first[0]

    def loss(params: dict[str, Tensor], x: Tensor, first: Any) -> Tensor:
        return weighed(module, params, x, first)

    everything = grad_and_value(loss, argnums=(0, 1, 2) if starts else (0, 1))
    with RecurrentLayers():
        found, values = vmap(everything, in_dims=(0, 0, 0 if starts else None))(params, x, first)
    for lane in range(lanes):

        def own(t: Tensor | None, lane: int = lane) -> Tensor | None:
            return None if t is None else t[lane]

        arguments = torch.utils._pytree.tree_map(own, (params, x, first))
        expected, value = everything(*arguments)
        torch.testing.assert_close(values[lane], value, rtol=0, atol=1e-10)
        torch.testing.assert_close(torch.utils._pytree.tree_map(own, found), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_samples_with_the_same_weights(kind: str) -> None:
    module = KINDS[kind](3, 4, 2, batch_first=True).double()
    params = stacked(module, 2)
    x = torch.randn(2, 5, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def of_one(params: dict[str, Tensor], sample: Tensor) -> Tensor:
        return weighed(module, params, sample.unsqueeze(0))

    with RecurrentLayers(of_samples=True):
        found = vmap(lambda params, x: vmap(grad(of_one), in_dims=(None, 0))(params, x))(params, x)
    for lane in range(2):
        for sample in range(5):
            expected = grad(of_one)({name: p[lane] for name, p in params.items()}, x[lane, sample])
            for name, g in expected.items():
                torch.testing.assert_close(found[name][lane, sample], g, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_library_computes_the_same_in_single_precision(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_lstm, "_FEWEST_FLOPS", 0)
    module = nn.LSTM(5, 16, 2, batch_first=True, bidirectional=True)
    exact = copy.deepcopy(module).double()
    params = {name: p / 4 for name, p in stacked(module, lanes).items()}
    x = torch.randn(lanes, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    assert operations(module, x[:2].expand(2, 3, 7, 5)).count("fedarena.library_lstm_back.default") == 4
    with RecurrentLayers():
        found = vmap(grad(lambda p, x: weighed(module, p, x)))(params, x)
    for lane in range(lanes):
        own = {name: p[lane].double() for name, p in params.items()}
        expected = grad(lambda p, x: weighed(exact, p, x))(own, x[lane].double())
        for name, g in expected.items():
            torch.testing.assert_close(found[name][lane].double(), g, rtol=1e-4, atol=1e-4)


def test_which_layers_are_one_operation() -> None:
    x = torch.randn(2, 3, 7, 5)
    wide = torch.randn(2, 10, 80, 128)
    assert operations(nn.LSTM(5, 4, 2), x).count("fedarena.lstm.default") == 2
    assert operations(nn.GRU(5, 4, 2, bidirectional=True), x).count("fedarena.gru_back.default") == 4
    assert operations(nn.LSTM(128, 64), wide).count("fedarena.library_lstm.default") == 1
    assert operations(nn.LSTM(128, 64), wide, of_samples=True).count("fedarena.lstm.default") == 1
    assert operations(nn.LSTM(128, 64).double(), wide.double()).count("fedarena.lstm.default") == 1


@pytest.mark.parametrize(
    "module", [nn.LSTM(5, 4, proj_size=2), nn.RNN(5, 4), nn.GRU(5, 4, 2, dropout=0.5).eval()], ids=lambda m: str(m)
)
def test_what_is_not_replaced_stays_torchs(module: nn.Module) -> None:
    module = module.double()
    params, x = stacked(module, 2), torch.randn(2, 3, 7, 5, dtype=torch.float64)
    with RecurrentLayers():
        found = vmap(grad(lambda p, x: weighed(module, p, x)))(params, x)
    for lane in range(2):
        expected = grad(lambda p, x: weighed(module, p, x))({n: p[lane] for n, p in params.items()}, x[lane])
        torch.testing.assert_close({n: g[lane] for n, g in found.items()}, expected, rtol=0, atol=1e-10)


def test_a_recorded_step_has_no_python_between_steps_of_the_sequence() -> None:
    module = nn.GRU(5, 4).double()
    params, x = stacked(module, 2), torch.randn(2, 3, 7, 5, dtype=torch.float64)

    def flat(tensors: list[Tensor]) -> list[Tensor]:
        with RecurrentLayers():
            return list(
                vmap(grad(lambda p, x: weighed(module, p, x)))(dict(zip(params, tensors, strict=True)), x).values()
            )

    recorded, _ = separate_updates(record(flat, list(params.values())), 0)
    made: Any = without_python(recorded, [], list(params.values()))
    text = str(made.inlined_graph)
    assert "prim::Loop" in text
    assert "fedarena::" not in text
    assert "PythonOp" not in text


class Clients:
    """Clients with random texts of the sizes above."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.tokens = [generator.integers(1, TEXT.classes, size=(size, 10)).astype(np.uint8) for size in SIZES]

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([SIZES[c] for c in clients])

    def samples(self, clients: Any, part: str) -> Any:
        columns = {"tokens": np.concatenate([self.tokens[c] for c in clients])}
        return SimpleNamespace(columns=columns, offsets=np.cumsum([0, *(SIZES[c] for c in clients)]))


class Own(nn.Module):
    """As people write it."""

    def __init__(self, kind: type[nn.Module], **options: Any):
        super().__init__()
        self.embed = nn.Embedding(TEXT.vocabulary, 4)
        self.layers = kind(4, 5, batch_first=True, **options)
        self.output = nn.Linear(10 if options.get("bidirectional") else 5, TEXT.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.layers(self.embed(tokens))[0])


class Outputs(nn.Module):
    """What a recurrent layer puts out, without its last states."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def make_engine(kind: Any, module: nn.Module, algorithm: Any, dtype: str = "float64", **options: Any) -> Any:
    local = LocalTraining(epochs=1, batch_size=5, lr=0.3)
    algorithm.prepare(len(SIZES), local)
    task = make_task(copy.deepcopy(module), TEXT)
    return kind(task, algorithm, local, Clients(), seed=3, dtype=dtype, **options)


def two_rounds(engine: Any) -> list[dict[int, Any]]:
    """What clients upload and keep, and how their own models score; half of them start from another version."""
    algorithm, clients = engine.algorithm, range(len(SIZES))
    state = algorithm.server_init(engine.initial_params())
    broadcasts = {0: algorithm.broadcast(state)}
    broadcasts[1] = {group: {name: 0.9 * t for name, t in tensors.items()} for group, tensors in broadcasts[0].items()}
    kept: dict[int, Any] = {}
    found = []
    for round in (1, 2):
        rows: dict[int, Any] = {}
        jobs = [Job(client, round, version=client % 2) for client in clients]
        for results in train_jobs(engine, jobs, broadcasts, kept):
            for row, client in enumerate(results.clients):
                kept[int(client)] = take_row(results.client_states, row)
                rows[int(client)] = (take_row(results.update, row), kept[int(client)], float(results.losses[row]))
        found.append(rows)
    scores = engine.evaluate_personal(broadcasts[0], kept, np.arange(len(SIZES)), "train", 2)
    found.append(dict(enumerate(scores.means("loss"))))
    return found


def assert_equal(one: Any, other: Any, tolerance: float) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "ditto"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_train_alike(algorithm: str, kind: str) -> None:
    torch.manual_seed(0)
    module = Own(KINDS[kind], num_layers=2, bidirectional=algorithm == "fedavg")
    reference, cohort = (
        make_engine(engine, module, ALGORITHMS.get(algorithm)(), **options)
        for engine, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 2}))
    )
    assert not cohort.notes
    expected = two_rounds(reference)
    assert_equal(two_rounds(cohort), expected, 1e-10)
    assert max(float(t.abs().max()) for update, *_ in expected[0].values() for t in update["params"].values()) > 1e-3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("library", [True, False])
def test_the_same_bits_for_any_number_of_workers(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_lstm, "_FEWEST_FLOPS", 0 if library else 1e18)
    torch.manual_seed(0)
    module = Own(nn.LSTM, num_layers=2)
    found = [
        two_rounds(make_engine(CohortEngine, module, FedAvg(), "float32", lanes=2, workers=workers))
        for workers in (1, 1, 3)
    ]
    assert_equal(found[1], found[0], 0)
    assert_equal(found[2], found[0], 0)
    assert_equal(found[0], two_rounds(make_engine(ReferenceEngine, module, FedAvg(), "float32")), 1e-5)


def test_layers_that_ask_where_their_weights_lie_are_left_alone() -> None:
    """As they do on a GPU, where many clients' weights must not be moved for cuDNN."""
    places = []

    def of_one(weight: Tensor) -> Tensor:
        places.append(weight.data_ptr())
        return (weight**2).sum()

    with RecurrentLayers():
        vmap(grad(of_one))(torch.ones(2, 3))
        alone = torch.ones(3)
        assert alone.data_ptr() != 0
    assert places == [0]


def test_dropout_between_layers_trains_one_client_at_a_time() -> None:
    engine = make_engine(CohortEngine, Own(nn.LSTM, num_layers=2, dropout=0.3), FedAvg())
    assert "the layer 'layers' (LSTM) cannot be vectorized" in engine.notes[0]


def test_low_rank_changes_of_our_layer_count() -> None:
    module = build_model("lstm", TEXT, {"embedding": 3, "hidden": 4, "layers": 1}, seed=0)
    task = make_task(module, TEXT)
    ADAPTATIONS.get("lora")(rank=2).adapt(task)
    reference = make_engine(ReferenceEngine, module, FedAvg())
    cohort = make_engine(CohortEngine, module, FedAvg(), lanes=1)  # every number of them takes long to record
    assert any("lora" in name for name in reference.initial_params())
    assert_equal(two_rounds(cohort), two_rounds(reference), 1e-10)


def test_how_many_train_at_once_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEAF's model as we have it and as torch does, on a GPU with much memory and with little."""
    text = DataSpec("next_token", 90, (80,))
    local = LocalTraining(batch_size=10)
    theirs = nn.Sequential(nn.Embedding(90, 8), Outputs(nn.LSTM(8, 256, 2, batch_first=True)), nn.Linear(256, 90))
    engines = [
        CohortEngine(make_task(module, text), FedAvg(), local, Clients(), seed=0, lanes=1)
        for module in (build_model("lstm", text, {}, seed=0), theirs)
    ]
    monkeypatch.setattr(type(engines[0].hardware), "is_gpu", property(lambda self: True))
    for free_bytes, lanes in ((130 << 30, 256), (24 << 30, 32)):
        monkeypatch.setattr(type(engines[0].hardware), "free_bytes", lambda self, free_bytes=free_bytes: free_bytes)
        assert [engine._suitable.lanes_and_plan(None, None) for engine in engines] == [(lanes, "beside")] * 2


def test_operations_of_recurrent_layers_are_counted_in_any_precision() -> None:
    ours = build_model("lstm", TEXT, {"embedding": 4, "hidden": 5, "layers": 1}, seed=0)
    theirs = Own(nn.LSTM)
    counts = {count_training_flops(make_task(m, TEXT)) for m in (ours, ours.double(), theirs, theirs.double())}
    assert len(counts) == 1
    assert counts.pop() > 2 * 2 * 9 * 20 * (4 + 5)
