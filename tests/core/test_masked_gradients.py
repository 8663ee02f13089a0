"""Operations that compute some of several gradients become scripts, and compute what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedarena.train.graphs import separate_updates
from fedarena.train.program import record
from fedarena.train.scripts import without_python

aten = torch.ops.aten


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def of_convolution(mask: list[bool]) -> tuple[Callable[..., Any], list[Tensor]]:
    def gradients(slopes: Tensor, x: Tensor, weight: Tensor) -> Any:
        sizes = [4] if mask[2] else None
        return aten.convolution_backward(slopes, x, weight, sizes, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)

    return gradients, [drawn(2, 4, 6, 6), drawn(2, 3, 6, 6), drawn(4, 3, 3, 3)]


def of_layer_norm(mask: list[bool]) -> tuple[Callable[..., Any], list[Tensor]]:
    def gradients(slopes: Tensor, x: Tensor, weight: Tensor) -> Any:
        _, mean, inverse = aten.native_layer_norm(x, [5], weight, weight, 1e-5)
        return aten.native_layer_norm_backward(slopes, x, [5], mean, inverse, weight, weight, mask)

    return gradients, [drawn(3, 5), drawn(3, 5), drawn(5)]


def of_group_norm(mask: list[bool]) -> tuple[Callable[..., Any], list[Tensor]]:
    def gradients(slopes: Tensor, x: Tensor, weight: Tensor) -> Any:
        _, mean, inverse = aten.native_group_norm(x, weight, weight, 2, 4, 9, 2, 1e-5)
        return aten.native_group_norm_backward(slopes, x, mean, inverse, weight, 2, 4, 9, 2, mask)

    return gradients, [drawn(2, 4, 3, 3), drawn(2, 4, 3, 3), drawn(4)]


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, False], [True, True, True]], ids=str)
@pytest.mark.parametrize("layer", [of_convolution, of_layer_norm, of_group_norm])
def test_a_step_with_such_gradients_is_a_script(layer: Callable[..., Any], mask: list[bool]) -> None:
    gradients, inputs = layer(mask)

    def step(tensors: list[Tensor]) -> list[Tensor]:
        found = gradients(*tensors[3:])
        wanted = [gradient for gradient, is_wanted in zip(found, mask, strict=True) if is_wanted]
        changed = [old + gradient.sum() for old, gradient in zip(tensors[:3], wanted, strict=False)]
        return changed + tensors[len(wanted) : 3]

    tensors = [torch.zeros(()).double() for _ in range(3)] + inputs
    expected = step(tensors)
    made = without_python(*separate_updates(record(step, tensors), 3), tensors)
    assert made is not None
    made(*tensors)
    for got, want in zip(tensors[:3], expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert any(t.item() for t in tensors[:3])
