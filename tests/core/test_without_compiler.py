"""Gradients of torch.func are the same if torch's compiler is not loaded for them."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch.func import grad, grad_and_value, jacrev, vjp, vmap

from fedarena.train.without_compiler import spare_the_compiler

COMPILER = "torch._dynamo"


@pytest.fixture(autouse=True)
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not loaded it."""
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)


def loss(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return ((x @ params["weight"]).sin() ** 2).sum() * params["scale"]


def example() -> tuple[dict[str, Tensor], Tensor]:
    random = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(size, generator=random, dtype=torch.float64) for size in ((3, 4, 2), (3, 5, 4)))
    return {"weight": weight, "scale": torch.tensor([1.0, -2.0, 0.5]).double(), "unused": torch.ones(3, 2).double()}, x


def test_every_clients_gradient_is_its_own() -> None:
    params, x = example()
    found, values = vmap(grad_and_value(loss))(params, x)
    for client in range(3):
        own = {name: p[client].clone().requires_grad_() for name, p in params.items()}
        value = loss(own, x[client])
        expected = torch.autograd.grad(value, list(own.values()), allow_unused=True, materialize_grads=True)
        torch.testing.assert_close(values[client], value.detach(), rtol=0, atol=1e-12)
        for name, gradient in zip(own, expected, strict=True):
            torch.testing.assert_close(found[name][client], gradient, rtol=0, atol=1e-12)
    assert COMPILER not in sys.modules


def test_gradients_of_gradients_and_of_given_slopes() -> None:
    x = torch.linspace(-1, 1, 4, dtype=torch.float64)
    torch.testing.assert_close(grad(lambda t: grad(torch.sin)(t))(x[0]), -x[0].sin())
    torch.testing.assert_close(jacrev(lambda t: t.exp())(x), torch.diag(x.exp()))
    (constant, double), back = vjp(lambda t: (torch.ones(2).double(), 2 * t), x)
    torch.testing.assert_close(back((constant, double))[0], 4 * x)
    torch.testing.assert_close(grad(lambda t: torch.zeros((), dtype=t.dtype))(x), torch.zeros_like(x))
    assert COMPILER not in sys.modules


def test_whoever_has_loaded_the_compiler_gets_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(eager_transforms, "_autograd_grad", lambda *given, **named: asked.append((given, named)) or ())
    spare_the_compiler()
    spare_the_compiler()  # once is enough
    outputs = [torch.ones((), requires_grad=True)]
    assert eager_transforms._autograd_grad(outputs, outputs, create_graph=True)[0] == 1
    assert not asked
    eager_transforms._autograd_grad(outputs, outputs, an_option_of_another_version=1)
    monkeypatch.setitem(sys.modules, COMPILER, torch)
    eager_transforms._autograd_grad(outputs, outputs, create_graph=True)
    assert [named for _, named in asked] == [{"an_option_of_another_version": 1}, {"create_graph": True}]
