"""Kernels for GPUs where there is no GPU, or no compiler for them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from fedarena.train import convolution_kernels
from fedarena.train.usable_kernels import usable_kernels


@pytest.mark.parametrize("name", ["recurrence_kernels", "group_norm_kernels", "convolution_kernels", "picture_kernels"])
def test_what_cannot_be_made_is_said_once(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels can be made here")
    usable_kernels.cache_clear()
    with pytest.warns(UserWarning, match="Layers run without kernels of their own") as warned:
        found = [usable_kernels(f"fedarena.train.{name}", "Layers run") for _ in range(2)]
    assert found == [None, None]
    assert len(warned) == 1


def test_what_can_be_made_is_tried_and_given(monkeypatch: pytest.MonkeyPatch) -> None:
    module, tried = ModuleType("some_kernels"), []
    module.try_out = lambda: tried.append(1)
    monkeypatch.setitem(sys.modules, "some_kernels", module)
    assert usable_kernels("some_kernels", "Layers run") is module
    assert tried == [1]


def test_convolutions_are_not_promised_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels can be made here")
    usable_kernels.cache_clear()
    with pytest.warns(UserWarning, match="Convolutions of many clients run without kernels"):
        assert not convolution_kernels.available()
