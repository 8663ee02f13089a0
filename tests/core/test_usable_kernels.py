"""Kernels for GPUs where there is no GPU, or no compiler for them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fedarena.train import convolution_kernels
from fedarena.train import usable_kernels as module_of_kernels
from fedarena.train.usable_kernels import group_norm_kernels, picture_kernels, usable_kernels


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


@pytest.mark.parametrize("kernels", [group_norm_kernels, picture_kernels])
@pytest.mark.parametrize(
    ("shape", "is_cuda", "are_used"),
    [
        ((65535, 3, 1, 1), True, True),
        ((65536, 3, 1, 1), True, False),
        ((1, 3, 2048, 1023), True, True),
        ((1, 3, 2048, 1024), True, False),
        ((1, 3, 8, 8), False, False),
    ],
)
def test_more_pictures_and_pixels_than_a_gpu_numbers_are_left_to_torch(
    kernels: Any, shape: tuple[int, ...], is_cuda: bool, are_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of_kernels, "usable_kernels", lambda module, what: "kernels")
    assert (kernels(SimpleNamespace(shape=shape, is_cuda=is_cuda)) is not None) == are_used


def test_convolutions_are_not_promised_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels can be made here")
    usable_kernels.cache_clear()
    with pytest.warns(UserWarning, match="Convolutions of many clients run without kernels"):
        assert not convolution_kernels.available()
