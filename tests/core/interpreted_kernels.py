"""Kernels for GPUs beside torch, on a CPU: a script for Triton's interpreter, which is chosen before it is loaded.

    TRITON_INTERPRET=1 python tests/core/interpreted_kernels.py

It rounds bf16 otherwise than GPUs do, so numbers are float32. `test_gpu.py` compares the same
kernels with torch on a GPU.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton.runtime.interpreter as interpreter
from torch import Tensor
from torch.nn import functional as F

from fedarena.models.augmentation import pixels
from fedarena.train import (
    depthwise_kernels,
    group_norm_kernels,
    kernel_layers,
    picture_kernels,
    small_group_norm_kernels,
)

CEILINGS = (None, 0.0, 1.0)


def take_masks_of_any_type() -> None:
    """The interpreter turns what numbers of a loop are compared with into integers, which it then refuses as masks."""
    for name, place in (("create_masked_store", 2), ("create_masked_load", 1)):
        original = getattr(interpreter.InterpreterBuilder, name)

        def with_mask(self: Any, *given: Any, original: Any = original, place: int = place) -> Any:
            given[place].data = given[place].data.astype(bool)
            return original(self, *given)

        setattr(interpreter.InterpreterBuilder, name, with_mask)


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, requires_grad=True) for shape in shapes]


def activated(x: Tensor, ceiling: float | None) -> Tensor:
    return x if ceiling is None else F.hardtanh(x, 0, ceiling) if ceiling else F.relu(x)


def assert_close(found: Any, expected: Any) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-3, atol=1e-3)


def check_group_norm(kernels: Any, shape: tuple[int, int, int], groups: int, ceiling: float | None) -> None:
    """Pictures ``[samples, pixels, channels]``."""
    x, weight, bias, slopes = drawn(shape, shape[2:], shape[2:], shape)
    expected = activated(F.group_norm(x.mT, groups, weight, bias).mT, ceiling)
    gradients = torch.autograd.grad(expected, (x, weight, bias), slopes)
    with torch.no_grad():
        output, mean, inverse = kernels.normalized(x, groups, weight, bias, 1e-5, ceiling)
        found = kernels.gradients(slopes, x, weight, bias, mean, inverse, ceiling)
    assert_close([output, *found], [expected, *gradients])


def check_filters(shape: tuple[int, int, int, int], groups: int, stride: int, ceiling: float | None) -> None:
    """Pictures ``[samples, height, width, channels]``, which are normalized before unless the ceiling is None."""
    samples, height, width, channels = shape
    x, filters, weight, bias = drawn(shape, (channels, 9), (channels,), (channels,))
    before = x.permute(0, 3, 1, 2)
    if ceiling is not None:
        before = activated(F.group_norm(before, groups, weight, bias), ceiling)
    expected = F.conv2d(before, filters.view(channels, 1, 3, 3), stride=stride, padding=1, groups=channels)
    expected = expected.permute(0, 2, 3, 1)
    (slopes,) = drawn(tuple(expected.shape))
    wanted = (x, filters) if ceiling is None else (x, filters, weight, bias)
    gradients = torch.autograd.grad(expected, wanted, slopes)
    with torch.no_grad():
        if ceiling is None:
            output = depthwise_kernels.filtered(x, filters, stride)
            of_x, of_filters, _ = depthwise_kernels.gradients(slopes, x, filters, stride)
            assert_close([output, of_x, of_filters], [expected, *gradients])
            return
        rows = x.view(samples, height * width, channels)
        norm = (weight, bias, *group_norm_kernels.statistics(rows, groups, weight, 1e-5))
        slopes, of_filters, notes = depthwise_kernels.gradients(
            slopes, x, filters, stride, depthwise_kernels.Norm(*norm, ceiling)
        )
        of_x, *others = group_norm_kernels.gradients_from_notes(notes, slopes.view_as(rows), rows, *norm, None)
    assert_close([of_x.view(shape), of_filters, *others], gradients)


def check_pictures() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 3, 20, 17, generator=random).contiguous(memory_format=torch.channels_last)
    rows, columns = torch.randint(20, (3, 9), generator=random), torch.randint(17, (3, 11), generator=random)
    assert torch.equal(picture_kernels.picked(x, rows, columns), pixels.picked(x, rows, columns))
    for side, stride, padding in ((3, 2, 1), (3, 1, 1), (3, 2, 0), (1, 1, 0), (2, 1, 1)):
        form = (side, stride, padding, -(-side * side * 3 // 8) * 8, torch.float32)
        assert torch.equal(picture_kernels.patches(x, *form), kernel_layers._patches(x, *form))


def main() -> None:
    """Checks all of them."""
    take_masks_of_any_type()
    for ceiling in CEILINGS:
        for shape, groups in (((2, 300, 24), 8), ((1, 600, 48), 4)):
            check_group_norm(group_norm_kernels, shape, groups, ceiling)
        for shape, groups in (((2, 49, 144), 2), ((2, 196, 48), 2), ((3, 30, 24), 8), ((5, 1, 6), 3)):
            check_group_norm(small_group_norm_kernels, shape, groups, ceiling)
    for (shape, groups), stride, ceiling in itertools.product(
        (((2, 9, 11, 20), 4), ((1, 17, 6, 16), 2)), (1, 2), CEILINGS
    ):
        check_filters(shape, groups, stride, ceiling)
    check_pictures()


if __name__ == "__main__":
    main()
