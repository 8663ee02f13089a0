"""Dense layers that are not written down as a GPU trains them; and there, if there is one, convolutions by kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_cohort import FAMILIES, SIZES, assert_same, make_engine, train

from fedarena.algorithms import FedAvg
from fedarena.models import DataSpec, build_model, make_task
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining, ReferenceEngine
from fedarena.train import unwritten as unwritten_module
from fedarena.train import unwritten_training as training_module
from fedarena.train.products import LayersAsProducts
from fedarena.train.unwritten_gpu import CapturedTraining
from fedarena.transforms.path import UpdatePath, train_and_collect

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
CLIENTS = list(range(len(SIZES)))
EQUAL = LocalTraining(epochs=None, steps=5, batch_size=4, lr=0.1)
LOCALS = {
    "all take as many steps": EQUAL,
    "some take more": LocalTraining(epochs=3, batch_size=2, lr=0.1, momentum=0.9, weight_decay=0.1),
}
DENSE = [model for model in FAMILIES if model not in {"bag_of_words", "lstm", "lstm, one label"}]


@pytest.fixture(autouse=True)
def every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of tests are small."""
    let_every_layer_pay(monkeypatch)


def let_every_layer_pay(patch: Any) -> None:
    patch.setattr(unwritten_module, "_FEWEST_WEIGHTS", 1)
    patch.setattr(unwritten_module, "_WORTHWHILE_SHARE", 1e9)
    patch.setattr(training_module, "_DOMINATING_SHARE", 0)
    patch.setattr(training_module, "_GPU_DOMINATING_SHARE", 0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("local", list(LOCALS))
@pytest.mark.parametrize("model", DENSE)
def test_room_for_all_steps_serves_every_step(model: str, local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU captures, computed on a CPU."""
    monkeypatch.setattr(training_module, "UnwrittenTraining", CapturedTraining)
    reference = make_engine(ReferenceEngine, model, FedAvg(), LOCALS[local])
    cohort = make_engine(CohortEngine, model, FedAvg(), LOCALS[local], dense="factored")
    broadcast = {"params": reference.initial_params()}
    expected = train(reference, CLIENTS, broadcast, {})
    for _ in range(2):  # the second time, in lanes that have been used
        assert_same(expected, train(cohort, CLIENTS, broadcast, {}))


@needs_gpu
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("local", list(LOCALS))
@pytest.mark.parametrize("model", DENSE)
def test_every_client_learns_the_same(model: str, local: str, compile: bool) -> None:
    reference = make_engine(ReferenceEngine, model, FedAvg(), LOCALS[local], device="cpu")
    broadcast = {"params": reference.initial_params()}
    expected = train(reference, CLIENTS, broadcast, {})
    runs = []
    for _ in range(2):
        options = {"device": "cuda", "dense": "factored", "compile": compile}
        engine = make_engine(CohortEngine, model, FedAvg(), LOCALS[local], **options)
        assert engine.choices["dense"] == "factored"
        # The second time, in lanes that have been used.
        runs += [train(engine, CLIENTS, engine.place(broadcast), {}) for _ in range(2)]
    for client, (update, *_) in expected.items():
        for name, value in update["params"].items():
            first, *others = (run[client][0]["params"][name].cpu() for run in runs)
            torch.testing.assert_close(first, value, rtol=0, atol=1e-10)
            assert all(torch.equal(first, other) for other in others)


@needs_gpu
def test_updates_are_added_up_without_being_written_down() -> None:
    sums = []
    for kind, options in (
        (ReferenceEngine, {"device": "cpu"}),
        (CohortEngine, {"device": "cuda", "dense": "factored"}),
    ):
        engine = make_engine(kind, "cnn", FedAvg(), LOCALS["some take more"], **options)
        broadcasts = {
            0: engine.place({"params": engine.initial_params()})
            if kind is CohortEngine
            else {"params": engine.initial_params()}
        }
        path, total = UpdatePath(FedAvg()), None
        shards = engine.divide(JobArrays.of([Job(client, 1) for client in CLIENTS[1:]]), broadcasts, {})
        for result in train_and_collect(engine, path, shards, []):
            total = result.partials[0] if total is None else path.merge(total, result.partials[0])
        sums.append(total)
    for name, value in sums[0].tensors["change:params"].items():
        torch.testing.assert_close(sums[1].tensors["change:params"][name].cpu(), value, rtol=0, atol=1e-9)


@needs_gpu
@pytest.mark.parametrize("precision", ["full", "tf32"])
def test_factors_are_as_exact_as_written_weights(precision: str) -> None:
    """Both ways against float64, after a few steps of a layer large enough for tensor cores."""
    spec = DataSpec("classification", 4, (1, 8, 8))
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    errors: dict[str, float] = {}
    found = {}
    for way in ("exact", "written", "factored"):
        task = make_task(build_model("leaf_cnn", spec, {"hidden": 256}, seed=0), spec)
        dtype, rounded = ("float64", "full") if way == "exact" else ("float32", precision)
        options = {"device": "cuda", "dense": "factored" if way == "factored" else "written", "compile": False}
        data = make_engine(CohortEngine, "leaf_cnn", FedAvg(), local, device="cpu").data
        engine = CohortEngine(task, FedAvg(), local, data, seed=3, dtype=dtype, precision=rounded, **options)
        broadcast = engine.place({"params": engine.initial_params()})
        found[way] = train(engine, CLIENTS[1:], broadcast, {})
    for way in ("written", "factored"):
        errors[way] = max(
            float(
                (t.double() - found["exact"][client][0]["params"][name]).norm()
                / found["exact"][client][0]["params"][name].norm()
            )
            for client in CLIENTS[1:]
            for name, t in found[way][client][0]["params"].items()
        )
    print(precision, errors)
    assert errors["factored"] <= 2 * errors["written"] + 1e-6


LAYERS = [(5, 28, 1, 32, 5), (3, 14, 32, 64, 5), (2, 9, 3, 16, 3), (4, 8, 128, 130, 3), (2, 7, 64, 10, 1)]


@needs_gpu
@pytest.mark.parametrize(("samples", "size", "channels", "outputs", "kernel"), LAYERS)
def test_kernels_convolve_as_products_do(samples: int, size: int, channels: int, outputs: int, kernel: int) -> None:
    random = torch.Generator("cuda").manual_seed(0)
    lanes = 3
    x = torch.randn(lanes, samples, channels, size, size, device="cuda", generator=random)
    weight = torch.randn(lanes, outputs, channels, kernel, kernel, device="cuda", generator=random)
    weight /= channels * kernel**2
    for padding in {0, kernel // 2}:

        def loss(weight: Any, x: Any, padding: int = padding) -> Any:
            out = torch.conv2d(x, weight, padding=padding)
            return (out * torch.linspace(-1, 1, out.numel(), device="cuda", dtype=out.dtype).view_as(out)).sum()

        def gradients(kernels: bool, *tensors: Any) -> Any:
            with LayersAsProducts(kernels):
                return torch.func.vmap(torch.func.grad_and_value(loss, argnums=(0, 1)))(*tensors)

        torch.backends.cuda.matmul.allow_tf32 = False
        expected = gradients(False, weight.double(), x.double())
        for rounded, tolerance in ((False, 1e-5), (True, 3e-3)):
            torch.backends.cuda.matmul.allow_tf32 = rounded
            found = gradients(True, weight, x)
            again = gradients(True, weight, x)
            for value, same, exact in zip((*found[0],), again[0], expected[0], strict=True):
                assert torch.equal(value, same)
                error = float((value.double() - exact).norm() / exact.norm())
                print(samples, size, channels, outputs, kernel, padding, rounded, f"{error:.1e}")
                assert error < tolerance
    torch.backends.cuda.matmul.allow_tf32 = False
