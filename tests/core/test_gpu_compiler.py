"""What torch's compiler and captured graphs must not do on a GPU: measure, begin again, or read what is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_cohort import FEATURES, LOCALS, SIZES, ClientsInMemory, assert_same, make_engine, train
from test_gpu_unwritten import EQUAL, let_every_layer_pay
from torch import nn

from fedarena.algorithms import FedAvg
from fedarena.models import make_task
from fedarena.train import CohortEngine, ReferenceEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
CLIENTS = list(range(len(SIZES)))
WAYS = ["written", "factored"]


@pytest.fixture(autouse=True)
def every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_layer_pay(monkeypatch)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the compiler measures, of which it may know nothing from before."""
    from torch._inductor import config
    from torch._inductor.runtime import benchmarking

    found: list[str] = []

    def noting(name: str) -> Any:
        measure = getattr(benchmarking.Benchmarker, name)

        def note(*args: Any, **kwargs: Any) -> Any:
            found.append(name)
            return measure(*args, **kwargs)

        return note

    kinds = [benchmarking.Benchmarker, *benchmarking.Benchmarker.__subclasses__()]
    for kind in kinds:
        for name in {"benchmark", "benchmark_gpu"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, noting(name))
    with config.patch(force_disable_caches=True):
        yield found


@pytest.mark.parametrize("dense", WAYS)
@pytest.mark.parametrize("model", ["mlp", "leaf_cnn", "bert_tiny"])
def test_nothing_that_rounds_sums_is_measured(model: str, dense: str, measured: list[str]) -> None:
    engine = make_engine(CohortEngine, model, FedAvg(), EQUAL, device="cuda", dense=dense, dtype="float32")
    train(engine, CLIENTS, engine.place({"params": engine.initial_params()}), {})
    assert not measured


@pytest.mark.parametrize("local", ["momentum, decay", "epochs"])
@pytest.mark.parametrize("dense", WAYS)
@pytest.mark.parametrize("model", ["cnn", "transformer", "lstm"])
def test_a_step_is_compiled_once(model: str, dense: str, local: str) -> None:
    engine = make_engine(CohortEngine, model, FedAvg(), LOCALS[local], device="cuda", dense=dense)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            train(engine, CLIENTS, engine.place({"params": engine.initial_params()}), {})


class WithConstants(nn.Module):
    """Of numbers that stay as they are, some belong to the model and some are written where they are needed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], device=x.device, dtype=x.dtype)
        return self.last(torch.relu(self.first(x * self.scale) + shift))


@pytest.mark.parametrize("plan", ["together", "beside", "apart"])
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("dense", WAYS)
def test_constants_of_a_graph_stay_where_it_reads_them(dense: str, compile: bool, plan: str) -> None:
    def make(kind: Any, **options: Any) -> Any:
        torch.manual_seed(0)
        task = make_task(WithConstants(), FEATURES)
        return kind(task, FedAvg(), EQUAL, ClientsInMemory(FEATURES), seed=3, dtype="float64", **options)

    reference = make(ReferenceEngine, device="cpu")
    expected = train(reference, CLIENTS, {"params": reference.initial_params()}, {})
    engine = make(CohortEngine, device="cuda", dense=dense, compile=compile, plan=plan)
    for _ in range(3):
        found = train(engine, CLIENTS, engine.place({"params": engine.initial_params()}), {})
        found = {
            client: ({"params": {name: t.cpu() for name, t in update["params"].items()}}, *rest)
            for client, (update, *rest) in found.items()
        }
        assert_same(expected, found)
        torch._dynamo.reset()
        _fill_free_memory()


def _fill_free_memory() -> None:
    """Whoever reads what has been given up gets NaN from now on."""
    sizes = [1] * 4096 + [1000] * 100
    for t in [torch.empty(size, dtype=torch.float64, device="cuda") for size in sizes]:
        t.fill_(torch.nan)
