"""Kernels for GPUs beside torch, on a CPU: a script for Triton's interpreter, which is chosen before it is loaded.

    TRITON_INTERPRET=1 python tests/core/interpreted_kernels.py

It rounds bf16 otherwise than GPUs do, by up to twice as much. `test_gpu_kernels.py` compares the same kernels with
torch on a GPU.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedarena.models.augmentation import pixels
from fedarena.train import (
    convolution_kernels,
    depthwise_gradient_kernels,
    depthwise_kernels,
    finished_lanes,
    group_norm_kernels,
    kernel_layers,
    overlaps,
    picture_kernels,
    small_group_norm_kernels,
)
from fedarena.train.products import LayersAsProducts

CEILINGS = (None, 0.0, 1.0)
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 1e-2}
# Pictures and groups: of sizes around those that kernels take at once.
FILTERED = (((2, 9, 11, 20), 4), ((1, 17, 6, 16), 2))
FILTERED_FEW = (((1, 1, 1, 3), 1), ((1, 2, 1, 17), 1), ((1, 1, 9, 96), 8), ((1, 4, 3, 144), 8))
# Pictures, groups, and a stride: with many rows and columns.
FILTERED_MANY = (((1, 60, 1, 3), 3, 1), ((1, 115, 3, 3), 1, 2), ((1, 1, 520, 3), 1, 1))


def take_masks_of_any_type() -> None:
    """The interpreter turns what numbers of a loop are compared with into integers, which it then refuses as masks."""
    for name, place in (("create_masked_store", 2), ("create_masked_load", 1)):
        original = getattr(interpreter.InterpreterBuilder, name)

        def with_mask(self: Any, *given: Any, original: Any = original, place: int = place) -> Any:
            given[place].data = given[place].data.astype(bool)
            return original(self, *given)

        setattr(interpreter.InterpreterBuilder, name, with_mask)


def take_computed_bounds() -> None:
    """The interpreter keeps single numbers as arrays, which newer versions of NumPy do not take for whole numbers."""
    original = interpreter._patch_lang_tensor

    def with_index(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = with_index


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).to(dtype).requires_grad_() for shape in shapes]


def activated(x: Tensor, ceiling: float | None) -> Tensor:
    return x if ceiling is None else F.hardtanh(x, 0, ceiling) if ceiling else F.relu(x)


def assert_close(found: Any, expected: Any) -> None:
    """To what the type of numbers allows."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.isfinite().all()
        distance, size = (ours.detach().double() - theirs.detach().double()).norm(), theirs.detach().double().norm()
        assert distance <= TOLERANCES[ours.dtype] * size + 1e-6, (tuple(ours.shape), float(distance), float(size))


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
            of_x, of_filters, _ = depthwise_gradient_kernels.gradients(slopes, x, filters, stride)
            assert_close([output, of_x, of_filters], [expected, *gradients])
            return
        rows = x.view(samples, height * width, channels)
        norm = (weight, bias, *group_norm_kernels.statistics(rows, groups, weight, 1e-5))
        slopes, of_filters, notes = depthwise_gradient_kernels.gradients(
            slopes, x, filters, stride, depthwise_gradient_kernels.Norm(*norm, ceiling)
        )
        of_x, *others = group_norm_kernels.gradients_from_notes(notes, slopes.view_as(rows), rows, *norm, None)
    assert_close([of_x.view(shape), of_filters, *others], gradients)


def check_layers(dtype: torch.dtype, layout: torch.memory_format, stride: int) -> None:
    """Layers with their gradients, of pictures ``[samples, channels, height, width]`` of any type and layout."""
    samples, channels, height, width, groups = 1, 17 if stride == 2 else 18, 29, 9, 1 if stride == 2 else 3
    exact = torch.float64 if dtype == torch.float64 else torch.float32  # as weights are kept
    (x,) = drawn((samples, channels, height, width), dtype=dtype)
    weight, bias, filters = drawn((channels,), (channels,), (channels, 1, 3, 3), dtype=exact)
    x, filters = (t.detach().contiguous(memory_format=layout).requires_grad_() for t in (x, filters))
    given = (x, weight, bias, filters)
    assert not small_group_norm_kernels.fit(x.flatten(2).mT, groups)

    def normalized(x: Tensor, weight: Tensor, bias: Tensor, filters: Tensor) -> Tensor:
        return F.relu6(F.group_norm(x, groups, weight, bias))

    def filtered(x: Tensor, weight: Tensor, bias: Tensor, filters: Tensor) -> Tensor:
        return F.conv2d(x, filters, stride=stride, padding=1, groups=channels)

    found = (
        (normalized, kernel_layers.KernelGroupNorm.apply(x, groups, weight, bias, 1e-5, 6.0)),
        (filtered, kernel_layers.DepthwiseConvolution.apply(x, filters, stride)),
        (
            lambda x, *others: filtered(normalized(x, *others), *others),
            kernel_layers.NormalizedFilter.apply(x, groups, weight, bias, 1e-5, 6.0, filters, stride),
        ),
    )
    for layer, output in found:
        exactly = [t.detach().double().requires_grad_() for t in given]
        expected = layer(*exactly)
        (slopes,) = drawn(tuple(expected.shape), dtype=dtype)
        theirs = torch.autograd.grad(expected, exactly, slopes.double(), allow_unused=True)
        ours = torch.autograd.grad(output, given, slopes, allow_unused=True)
        used = [place for place, gradient in enumerate(theirs) if gradient is not None]
        assert [place for place, gradient in enumerate(ours) if gradient is not None] == used
        assert_close([output, *(ours[place] for place in used)], [expected, *(theirs[place] for place in used)])
        for place in used:
            assert ours[place].dtype == given[place].dtype
        assert ours[3] is None or layout != torch.channels_last or ours[3].stride() == filters.stride()


def check_pictures(samples: int, colours: int, dtype: torch.dtype, layout: torch.memory_format) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(256, (samples, colours, 20, 17), generator=random).to(dtype).contiguous(memory_format=layout)
    rows, columns = (torch.randint(most, (samples, n), generator=random) for most, n in ((20, 9), (17, 180)))
    found = picture_kernels.picked(x, rows, columns)
    assert torch.equal(found, pixels.picked(x, rows, columns))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for side, stride, padding in ((3, 2, 1), (3, 1, 1), (3, 2, 0), (1, 1, 0), (2, 1, 1)):
        form = (side, stride, padding, -(-side * side * colours // 8) * 8, torch.float32)
        for part in (x, x[:, :, :5, 3:10]):  # with strides of its own
            assert torch.equal(picture_kernels.patches(part, *form), kernel_layers._patches(part, *form))


def check_convolutions(shape: tuple[int, int, int, int, int], outputs: int, kernel: tuple[int, int]) -> None:
    """Pictures ``[lanes, samples, height, width, channels]``, and every lane's own weights and biases."""
    lanes, *_, channels = shape
    padding = (kernel[0] // 2, 0)
    x, weight, bias = drawn(shape, (lanes, outputs, *kernel, channels), (lanes, outputs))
    expected = torch.stack(
        [
            F.conv2d(of_x.permute(0, 3, 1, 2), of_weight.permute(0, 3, 1, 2), of_bias, padding=padding)
            for of_x, of_weight, of_bias in zip(x, weight, bias, strict=True)
        ]
    ).permute(0, 1, 3, 4, 2)
    (slopes,) = drawn(tuple(expected.shape))
    gradients = torch.autograd.grad(expected, (x, weight, bias), slopes)
    turned = weight.flip(2, 3).permute(0, 4, 2, 3, 1)
    with torch.no_grad():
        output = convolution_kernels.convolve(x, weight, padding, exact=True) + bias[:, None, None, None]
        back = tuple(side - 1 - pad for side, pad in zip(kernel, padding, strict=True))
        of_x = convolution_kernels.convolve(slopes, turned, back, exact=True)
        of_weight = convolution_kernels.weight_gradient(x, slopes, kernel, padding, exact=True).sum(1)
        of_bias = convolution_kernels.bias_gradient(slopes).sum(1)
    assert_close([output, of_x, of_weight, of_bias], [expected, *gradients])


def check_overlaps(lanes: int, rows: int, others: int, length: int) -> None:
    """Others lie in a room for more of them."""
    given, room = (t.detach() for t in drawn((lanes, rows, length), (lanes, others + 3, length)))
    before = room[:, :others]
    assert overlaps.parts_of(given, before) == length // 256
    for parts in (1, 2, 5):
        assert_close([overlaps.in_parts(given, before, parts, exact=True)], [given @ before.mT])


def check_layers_of_lanes(kernel: int, padding: int) -> None:
    """Gradients of every lane's own convolution and of a product with rows that it had before."""
    lanes, side = 3, 9 - kernel + 1 + 2 * padding
    shapes = ((lanes, 2, 3, 9, 9), (lanes, 4, 3, kernel, kernel), (lanes, 4), (lanes, 5, 4 * side**2))
    given = tuple(t.detach() for t in drawn(*shapes))

    def loss(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> Tensor:
        rows = F.conv2d(x, weight, bias, padding=padding).flatten(1)
        return (rows @ before.t()).tanh().sum()

    def by_kernels(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> Tensor:
        with LayersAsProducts(kernels=True):
            rows = torch.conv2d(x, weight, bias, padding=padding).flatten(1)
        return overlaps._LaneOverlaps.apply(rows[None], before[None], True).tanh().sum()

    found, expected = (vmap(torch.func.grad(function, argnums=(0, 1, 2)))(*given) for function in (by_kernels, loss))
    assert_close(found, expected)


def check_finished_lanes(numbers_type: torch.dtype) -> None:
    """A lane's copy is what the lane was when it had taken its last step, whatever becomes of it later."""
    steps = np.array([4, 3, 3, 1, 0])
    shapes = ((5, 3, 700), (5, 1), (5,))
    tensors = {str(len(shape)): torch.zeros(shape) for shape in shapes} | {"double": torch.zeros(5, 33).double()}
    numbers = torch.full((5,), 7, dtype=numbers_type)
    finished = finished_lanes.FinishedLanes(tensors, numbers)
    for t in finished.tensors.values():
        t.zero_()
    for some, width in ((steps, 5), (steps[:3] + 2, 3)):  # in the second round, some of the lanes have nobody
        before = {name: t.clone() for name, t in finished.tensors.items()}
        finished.begin(some)
        numbers.fill_(1)
        for step in range(1, 1 + some.max()):
            for t in tensors.values():
                t[:width].copy_(100.0 * width + step + torch.arange(width).view(-1, *[1] * (t.dim() - 1)) / 8)
            numbers[:width] += 1
            finished.keep(numbers, width)  # of those who are done, too
        for name, kept in finished.tensors.items():
            last = 100.0 * width + torch.from_numpy(some) + torch.arange(width) / 8
            expected = torch.cat([last.view(-1, *[1] * (kept.dim() - 1)).expand_as(kept[:width]), before[name][width:]])
            worked = torch.from_numpy(some > 0)
            assert (kept[:width] == expected[:width])[worked].all()
            assert (kept[width:] == expected[width:]).all()


def main() -> None:
    """Checks all of them."""
    take_masks_of_any_type()
    take_computed_bounds()
    for shape, outputs, kernel in (
        ((2, 3, 9, 7, 3), 5, (3, 3)),
        ((1, 2, 12, 11, 32), 70, (5, 3)),
        ((3, 1, 1, 1, 1), 1, (1, 1)),
        ((2, 2, 30, 25, 1), 3, (3, 3)),
    ):
        check_convolutions(shape, outputs, kernel)
    for lanes, rows, others, length in ((2, 3, 5, 700), (3, 17, 70, 513), (1, 1, 1, 512)):
        check_overlaps(lanes, rows, others, length)
    for kernel, padding in ((3, 1), (5, 0)):
        check_layers_of_lanes(kernel, padding)
    for ceiling in CEILINGS:
        for shape, groups in (((2, 300, 24), 8), ((1, 600, 48), 4)):
            check_group_norm(group_norm_kernels, shape, groups, ceiling)
        for shape, groups in (((2, 49, 144), 2), ((2, 196, 48), 2), ((3, 30, 24), 8), ((5, 1, 6), 3)):
            check_group_norm(small_group_norm_kernels, shape, groups, ceiling)
    for shape, groups in (((1, 300, 144), 1), ((33, 2, 17), 1)):
        check_group_norm(group_norm_kernels, shape, groups, 1.0)
    for shape, groups in (((1, 49, 96), 8), ((1, 7, 3), 1), ((1, 17, 17), 17)):
        check_group_norm(small_group_norm_kernels, shape, groups, 1.0)
    for (shape, groups), stride, ceiling in itertools.product(FILTERED, (1, 2), CEILINGS):
        check_filters(shape, groups, stride, ceiling)
    for (shape, groups), stride, ceiling in itertools.product(FILTERED_FEW, (1, 2), (None, 1.0)):
        check_filters(shape, groups, stride, ceiling)
    for shape, groups, stride in FILTERED_MANY:
        check_filters(shape, groups, stride, 1.0)
    for numbers_type in (torch.int64, torch.float32):
        check_finished_lanes(numbers_type)
    layouts = (torch.contiguous_format, torch.channels_last)
    for dtype, strides in ((torch.float64, (1, 2)), (torch.bfloat16, (2, 1))):
        for layout, stride in zip(layouts, strides, strict=True):
            check_layers(dtype, layout, stride)
    for samples, colours, layout in itertools.product((1, 3), (1, 3), layouts):
        check_pictures(samples, colours, torch.float32 if samples == 3 else torch.uint8, layout)


if __name__ == "__main__":
    main()
