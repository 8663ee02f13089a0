"""Products by oneDNN in place of MKL: the same numbers but for rounding, and only where they pay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from fedarena.models import DataSpec, make_task
from fedarena.train import wide_products
from fedarena.train.evaluation import evaluate_clients
from fedarena.train.graphs import join_views, separate_updates
from fedarena.train.program import record
from fedarena.train.scripts import Script
from fedarena.train.wide_products import product, wide_dense_layers

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")

LARGE = 128  # a product of so many rows, columns and terms is large
LAYOUTS = {
    "in order": lambda t: t,
    "turned": lambda t: t.transpose(-2, -1).contiguous().transpose(-2, -1),
    "part of a wider one": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "every second row": lambda t: t.repeat_interleave(2, -2)[..., ::2, :],
    "the same row": lambda t: t[..., :1, :].expand(t.shape),
    "the same number": lambda t: t[..., :1, :1].expand(t.shape),
}


@pytest.fixture
def used_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_products, "are_faster_here", lambda: True)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_product(found: Tensor, left: Tensor, right: Tensor) -> None:
    expected = (left.double() @ right.double()).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 70),
    inner=st.integers(1, 70),
    columns=st.integers(1, 70),
    of_left=st.sampled_from(list(LAYOUTS)),
    of_right=st.sampled_from(list(LAYOUTS)),
    lanes=st.sampled_from([0, 1, 3]),
)
def test_products_are_those_of_the_other_library(rows, inner, columns, of_left, of_right, lanes) -> None:
    shape = (lanes,) if lanes else ()
    left = LAYOUTS[of_left](random(*shape, rows, inner))
    right = LAYOUTS[of_right](random(*shape, inner, columns))
    multiply = wide_products._products_of_lanes if lanes else wide_products._product
    assert_product(multiply(left, right, fewest=1), left, right)


def test_lanes_that_share_a_matrix_and_rows_that_share_numbers() -> None:
    left, right = random(3, 40, 50), random(50, 60)
    assert_product(wide_products._products_of_lanes(left, right.expand(3, 50, 60), fewest=1), left, right)
    windows = random(100).unfold(0, 50, 1)
    assert_product(wide_products._product(left[0], windows.t(), fewest=1), left[0], windows.t())


def test_nothing_is_lost_that_is_not_finite() -> None:
    left, right = random(LARGE, LARGE), random(LARGE, LARGE)
    left[3, 4], right[5, 6] = torch.nan, torch.inf
    found = wide_products._product(left, right, fewest=1)
    assert found[3].isnan().all()
    assert not found[:3, 6].isfinite().any()
    assert found[:3, :6].isfinite().all()


@pytest.mark.parametrize("shape", [(0, LARGE, LARGE), (LARGE, 0, LARGE), (LARGE, LARGE, 0)])
def test_products_of_nothing(shape, used_here) -> None:
    left, right = torch.ones(shape[0], shape[1]), torch.ones(shape[1], shape[2])
    assert torch.equal(product(left, right), left @ right)
    assert torch.equal(product(left[None], right[None]), (left @ right)[None])


def test_double_precision_stays_exact(used_here) -> None:
    left, right = random(LARGE, LARGE).double(), random(LARGE, LARGE).double()
    assert torch.equal(product(left, right), left @ right)
    assert torch.equal(product(left[None], right[None]), torch.bmm(left[None], right[None]))


PROCESSORS = {
    "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t: 2\n": ("AuthenticAMD", 26),
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\n": ("AuthenticAMD", 25),
    "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 143\n": ("GenuineIntel", 6),
    "AMD64 Family 26 Model 68 Stepping 0, AuthenticAMD": ("AuthenticAMD", 26),
    "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n": ("", 0),
    "": ("", 0),
}


@pytest.mark.parametrize("told", PROCESSORS)
def test_which_processors_have_wider_units_than_mkl_uses(told, monkeypatch) -> None:
    monkeypatch.setattr(wide_products.platform, "processor", lambda: told)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert wide_products._processor() == PROCESSORS[told]
    assert wide_products.are_faster_here.__wrapped__() == (PROCESSORS[told] == ("AuthenticAMD", 26))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not wide_products.are_faster_here.__wrapped__()


def step(tensors: list[Tensor]) -> list[Tensor]:
    """Products are made, and subtracted from two tensors: one of many terms, one of few."""
    weight, small, x = tensors
    rows = torch.bmm(x, weight)
    return [weight - 0.5 * torch.bmm(x.mT, rows), small - 0.25 * torch.bmm(x[:, :8].mT, rows[:, :8])]


@pytest.mark.parametrize(("dtype", "wide"), [(torch.float32, 2), (torch.float64, 0)])
def test_steps_multiply_widely_where_it_pays(dtype: torch.dtype, wide: int, used_here) -> None:
    tensors = [random(2, LARGE, LARGE).to(dtype) / 8 for _ in range(3)]
    expected = step([t.double() for t in tensors])
    pure, updates = separate_updates(record(step, tensors), 2)
    script = Script(pure, updates, [t.clone() for t in tensors])
    script(*tensors)
    torch.testing.assert_close([t.double() for t in tensors[:2]], expected, rtol=1e-4, atol=1e-4)
    # Of few terms, what is subtracted is not written down: the other library subtracts while it multiplies.
    widely = wide_products._scripts().values()
    assert sum(node.target in widely for node in pure.graph.nodes) == wide


def test_where_it_does_not_pay_steps_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_products, "are_faster_here", lambda: False)
    tensors = [random(2, LARGE, LARGE) / 8 for _ in range(3)]
    pure, updates = separate_updates(record(step, tensors), 2)
    assert wide_products.write_large_products(pure, updates) is updates
    wide_products.multiply_widely(pure.graph)
    assert [str(node.target) for node in pure.graph.nodes].count("aten.bmm.default") == 1


def test_small_products_stay(used_here) -> None:
    tensors = [random(2, LARGE // 2, LARGE // 2) for _ in range(3)]
    pure, updates = separate_updates(record(step, tensors), 2)
    assert {update.kind for update in wide_products.write_large_products(pure, updates)} == {"subtract_product"}
    wide_products.multiply_widely(pure.graph)
    assert [str(node.target) for node in pure.graph.nodes].count("aten.bmm.default") == 1


class Scored(nn.Module):
    """Large layers, with and without bias, and one that is not only a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(LARGE, LARGE), nn.Linear(LARGE, LARGE, bias=False)
        self.last = nn.Linear(LARGE, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(F.linear(torch.relu(self.first(x)), weight=self.second.weight)))
        return scores


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Notes what is multiplied widely from now on."""
    calls: list[tuple[int, ...]] = []
    wide = wide_products._wide

    def noting(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        calls.append(tuple(left.shape))
        return wide(left, right, bias)

    monkeypatch.setattr(wide_products, "_wide", noting)
    return calls


def test_models_are_scored_by_wide_products(used_here, monkeypatch) -> None:
    torch.manual_seed(0)
    task = make_task(Scored(), DataSpec("classification", 3, (LARGE,)))
    x, y = random(300, LARGE).numpy(), np.arange(300) % 3
    data = SimpleNamespace(
        counts=lambda clients, part: np.full(len(clients), 100),
        samples=lambda clients, part: SimpleNamespace(columns={"x": x, "y": y}, offsets=np.arange(4) * 100),
    )
    params = {name: p.detach() for name, p in task.module.named_parameters()}
    calls = calls_of(monkeypatch)
    found = evaluate_clients(task, params, data, np.arange(3), "test", batch_size=300)
    assert calls == [(300, LARGE)]  # the second layer is called in another way, and the last one is small
    monkeypatch.setattr(wide_products, "are_faster_here", lambda: False)
    expected = evaluate_clients(task, params, data, np.arange(3), "test", batch_size=300)
    np.testing.assert_allclose(found.metrics["loss"].values, expected.metrics["loss"].values, rtol=1e-5)
    assert len(calls) == 1


class Marked(Tensor):
    """A tensor that knows more than its numbers."""


@pytest.mark.parametrize("kind", ["gradient", "double", "own kind", "rounded", "one sample"])
def test_other_layers_are_left_alone(kind: str, used_here, monkeypatch) -> None:
    calls = calls_of(monkeypatch)
    x, weight = random(LARGE, LARGE), random(LARGE, LARGE)
    if kind == "gradient":
        with wide_dense_layers(torch.device("cpu")):
            F.linear(x, weight.requires_grad_()).sum().backward()
        torch.testing.assert_close(weight.grad, x.sum(0).expand(LARGE, LARGE))
    with torch.no_grad(), wide_dense_layers(torch.device("cpu")):
        if kind == "double":
            assert F.linear(x.double(), weight.double()).dtype == torch.float64
        elif kind == "own kind":
            assert isinstance(F.linear(x.as_subclass(Marked), weight), Marked)
        elif kind == "rounded":
            with torch.autocast("cpu", torch.bfloat16):
                assert F.linear(x, weight).dtype == torch.bfloat16
        elif kind == "one sample":
            wide = random(LARGE * LARGE, LARGE)
            assert F.linear(x[0], wide).shape == (LARGE * LARGE,)
    assert not calls


BIASES = {
    "one number": lambda: torch.tensor(2.0),
    "one for all outputs": lambda: torch.tensor([2.0]),
    "the same number": lambda: torch.tensor(2.0).expand(LARGE),
    "every second number": lambda: random(2 * LARGE)[::2],
    "one for every sample": lambda: random(LARGE, LARGE),
}


@pytest.mark.parametrize("kind", BIASES)
def test_biases_of_other_forms_are_read_as_they_are(kind: str, used_here) -> None:
    x, weight, bias = random(LARGE, LARGE), random(LARGE, LARGE), BIASES[kind]()
    with torch.no_grad(), wide_dense_layers(torch.device("cpu")):
        found = F.linear(x, weight, bias)
    torch.testing.assert_close(found, x @ weight.t() + bias, rtol=1e-4, atol=1e-4)


def test_layers_of_sparse_samples_are_left_alone(used_here) -> None:
    x, weight = random(LARGE, LARGE).relu(), random(LARGE, LARGE)
    with torch.no_grad(), wide_dense_layers(torch.device("cpu")):
        found = F.linear(x.to_sparse(), weight)
    torch.testing.assert_close(found, x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_forward_gradients_within_a_score_are_not_lost(used_here) -> None:
    x, weight = random(LARGE, LARGE), random(LARGE, LARGE)
    with torch.no_grad(), wide_dense_layers(torch.device("cpu")):
        _, slope = torch.func.jvp(lambda scale: F.linear(scale * x, weight), (torch.tensor(1.0),), (torch.tensor(1.0),))
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(F.linear(forward_ad.make_dual(x, x), weight)).tangent
    for found in (slope, dual):
        torch.testing.assert_close(found, x @ weight.t(), rtol=1e-4, atol=1e-4)


def test_views_of_views_are_one() -> None:
    def seen(tensors: list[Tensor]) -> list[Tensor]:
        x, turned = tensors
        joined = x.view(6, 4).unsqueeze(1).view(3, 2, 4).squeeze(0).view(24)
        rearranged = turned.transpose(0, 1).view(2, 3, 4).view(2, 12 // 4, 2, 2)
        return [joined + 1, joined.view(2, 3, 4) * x, rearranged + 1]

    tensors = [random(2, 3, 4), random(3, 2, 4)]
    expected = seen(tensors)
    graph = record(seen, tensors)
    join_views(graph.graph)
    graph.recompile()
    assert all(torch.equal(a, b) for a, b in zip(graph(*tensors), expected, strict=True))
    views = [node for node in graph.graph.nodes if "view" in str(node.target)]
    assert len(views) == 2  # in a row, and of what was turned
