"""Recurrent layers of many clients on a GPU, where there is one: the same numbers as one client at a time on a CPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from test_recurrent import KINDS, SIZES, TEXT, Own, assert_equal, make_engine, two_rounds
from torch.utils import _pytree as pytree

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.models import build_model
from fedarena.privacy import DPSGD
from fedarena.train import CohortEngine, ReferenceEngine, recurrence

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")


def rounds_on_gpu(module: Any, algorithm: Any, **options: Any) -> Any:
    engine = make_engine(CohortEngine, module, algorithm, device="cuda", lanes=2, **options)
    assert not engine.notes
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, two_rounds(engine))


def rounds_on_cpu(module: Any, algorithm: Any, engine: Any = ReferenceEngine) -> Any:
    return two_rounds(make_engine(engine, module, algorithm, device="cpu"))


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_train_as_on_the_cpu(kind: str, algorithm: str, compile: bool) -> None:
    torch.manual_seed(0)
    module = Own(KINDS[kind], num_layers=2, bidirectional=algorithm == "fedavg")
    expected = rounds_on_cpu(module, ALGORITHMS.get(algorithm)())
    first, second = (rounds_on_gpu(module, ALGORITHMS.get(algorithm)(), compile=compile) for _ in range(2))
    assert_equal(first, expected, 1e-10)
    assert_equal(first, second, 0)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_our_model_of_any_depth_trains_as_on_the_cpu(layers: int) -> None:
    module = build_model("lstm", TEXT, {"embedding": 3, "hidden": 4, "layers": layers}, seed=0)
    assert_equal(rounds_on_gpu(module, FedAvg(), compile=False), rounds_on_cpu(module, FedAvg()), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_single_samples_are_those_of_the_cpu(kind: str) -> None:
    torch.manual_seed(0)
    module, private = Own(KINDS[kind]), DPSGD(noise_multiplier=0.5, clip_norm=0.3)
    found = rounds_on_gpu(module, private.wrapped(FedAvg()), compile=False)
    # Torch's own layers have no gradients of single samples, so that many clients at once are the measure.
    assert_equal(found, rounds_on_cpu(module, private.wrapped(FedAvg()), CohortEngine), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_one_model_is_scored_with_its_weights_in_a_row(kind: str) -> None:
    """As cuDNN wants them; what is scored is not moved."""
    clients, found = np.arange(len(SIZES)), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        engine = make_engine(CohortEngine, Own(KINDS[kind], num_layers=2), FedAvg(), device=device, lanes=2)
        params = engine.initial_params()
        places = [t.data_ptr() for t in params.values()]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="RNN module weights")
            found.append(engine.evaluate(params, clients, "train").means("loss"))
        assert places == [t.data_ptr() for t in params.values()]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-10)


def test_dropout_between_layers_trains_one_client_at_a_time() -> None:
    engine = make_engine(CohortEngine, Own(KINDS["LSTM"], num_layers=2, dropout=0.3), FedAvg(), device="cuda")
    assert "the layer 'layers' (LSTM) cannot be vectorized (NotImplementedError: dropout" in engine.notes[0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_kernels_plain_operations_come_to_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Own(KINDS[kind], num_layers=2)
    with_kernels = rounds_on_gpu(module, FedAvg(), compile=False)
    assert recurrence.kernels_on_gpu() is not None
    monkeypatch.setattr(recurrence, "kernels_on_gpu", lambda: None)
    assert_equal(rounds_on_gpu(module, FedAvg(), compile=False), with_kernels, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_products_are_nearly_right(kind: str) -> None:
    torch.manual_seed(0)
    module = Own(KINDS[kind], num_layers=2)
    exact = rounds_on_cpu(module, FedAvg())
    rounded = rounds_on_gpu(module, FedAvg(), dtype="float32", precision="bf16", compile=False)
    for client, (update, *_) in exact[1].items():
        for name, right in update["params"].items():
            error = rounded[1][client][0]["params"][name].double() - right
            assert 0 < error.norm() < 0.05 * right.norm()
