"""Kernels of our own on a GPU, where there is one, beside torch's layers."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedarena.models.augmentation.pixels import picked
from fedarena.models.imagenet.layers import norm_maker
from fedarena.models.imagenet.mobilenet import InvertedResidual
from fedarena.models.normalization import GroupNormBeforeReLU, group_norm_before_relu
from fedarena.models.sequences import in_sequence
from fedarena.train import (
    joined_layers,
    kernel_layers,
)
from fedarena.train.channels_last import ChannelsInnermost
from fedarena.train.usable_kernels import group_norm_kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ceiling", [None, 0.0, 6.0], ids=["alone", "ReLU", "ReLU6"])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 64, 57, 31), 32), ((3, 24, 20, 20), 8), ((2, 144, 14, 14), 8), ((1, 1280, 7, 7), 8), ((5, 24, 1, 1), 3)],
)
def test_group_normalization_by_kernels_is_torchs(
    shape: tuple[int, ...], groups: int, ceiling: float | None, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(0)
    x, weight, bias, grad = (torch.randn(size, generator=random) for size in (shape, shape[1], shape[1], shape))
    x, grad = ((3 * x + 5).to("cuda", dtype).contiguous(memory_format=torch.channels_last), grad.to("cuda", dtype))

    def normalize(x, weight, bias):
        if ceiling is None:
            return F.group_norm(x, groups, weight, bias)
        before = group_norm_before_relu(x, groups, weight, bias, 1e-5, ceiling)
        return F.hardtanh(before, 0.0, ceiling) if ceiling else torch.relu(before)

    assert_exact_by_kernels(normalize, x, [3 * weight, bias], grad)
    assert group_norm_kernels(x) is not None


def assert_exact_by_kernels(layer, x, weights, grad) -> None:
    """What kernels make of pictures `x`, and its gradients, are what torch makes of exact numbers; same bits twice."""
    found = []
    for context in (nullcontext(), ChannelsInnermost(), ChannelsInnermost()):
        own = torch.float64 if isinstance(context, nullcontext) else x.dtype
        exact = torch.float32 if own == torch.bfloat16 else own  # as weights are kept
        leaves = [x.to(own, copy=True), *(t.to("cuda", exact, copy=True) for t in weights)]
        leaves = [t.requires_grad_() for t in leaves]
        with context, torch.autocast("cuda", torch.bfloat16, enabled=own == torch.bfloat16, cache_enabled=False):
            output = layer(*leaves)
        found.append([output.detach(), *torch.autograd.grad(output, leaves, grad.to(output.dtype))])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-3}[x.dtype]
    for exact, ours, again in zip(*found, strict=True):
        assert (ours.double() - exact).norm() <= tolerance * exact.norm()
        assert torch.equal(ours, again)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("ceiling", [0.0, 6.0], ids=["ReLU", "ReLU6"])
@pytest.mark.parametrize(("shape", "groups"), [((2, 40, 17, 19), 4), ((3, 144, 28, 28), 8), ((2, 24, 60, 21), 8)])
def test_normalized_filters_are_torchs(
    shape: tuple[int, ...], groups: int, ceiling: float, stride: int, dtype: torch.dtype, monkeypatch
) -> None:
    random, channels = torch.Generator().manual_seed(0), shape[1]
    pictures, weight, bias = (torch.randn(size, generator=random) for size in (shape, channels, channels))
    filters = torch.randn(channels, 1, 3, 3, generator=random)
    layers = nn.Sequential(
        GroupNormBeforeReLU(groups, channels, ceiling),
        nn.ReLU6() if ceiling else nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
    ).to("cuda")
    names = [name for name, _ in layers.named_parameters()]
    joined = []
    apply = joined_layers.NormalizedFilter.apply
    monkeypatch.setattr(joined_layers.NormalizedFilter, "apply", lambda *args: joined.append(args) or apply(*args))

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return in_sequence(self.layers, x)

    def filter_normalized(x, *weights):
        params = dict(zip((f"layers.{name}" for name in names), weights, strict=True))
        return torch.func.functional_call(Sequence(), params, (x,))

    x = pictures.to("cuda", dtype).contiguous(memory_format=torch.channels_last)
    rows, columns = (-(-side // stride) for side in shape[2:])
    grad = torch.randn(shape[0], channels, rows, columns, generator=random).to("cuda", dtype)
    assert_exact_by_kernels(filter_normalized, x, [weight, bias, filters], grad)
    assert len(joined) == 2


def test_layers_that_somebody_watches_are_not_joined(monkeypatch) -> None:
    monkeypatch.setattr(joined_layers.NormalizedFilter, "apply", lambda *_: pytest.fail("was joined"))
    block = InvertedResidual(8, 8, 1, 3, norm_maker("group", 8)).to("cuda")
    seen = []
    block.conv[1][0].register_forward_pre_hook(lambda _, args: seen.append(args))
    with ChannelsInnermost():
        block(torch.randn(2, 8, 20, 20, device="cuda"))
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.uint8], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "innermost"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_pixels_picked_by_kernels_are_those_that_torch_picks(channels: int, layout, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randint(256, (5, channels, 64, 60), generator=random).to("cuda", dtype).contiguous(memory_format=layout)
    rows, columns = (torch.randint(most, (5, n), generator=random).to("cuda") for most, n in ((64, 40), (60, 300)))
    with ChannelsInnermost():
        found = picked(x, rows, columns)
    assert torch.equal(found, picked(x, rows, columns))
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("side", "stride", "padding"), [(3, 2, 1), (3, 1, 1), (3, 2, 0), (1, 2, 0), (2, 1, 1)])
def test_patches_cut_out_by_kernels_are_those_that_torch_cuts_out(
    side: int, stride: int, padding: int, dtype: torch.dtype
) -> None:
    x = torch.randn(3, 3, 21, 18, generator=torch.Generator().manual_seed(0))
    form = (side, stride, padding, -(-side * side * 3 // 8) * 8, dtype)
    assert torch.equal(kernel_layers._patches(x.to("cuda"), *form).cpu(), kernel_layers._patches(x, *form))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_convolutions_of_single_pixels_are_torchs(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    drawn = [torch.randn(size, generator=random) for size in ((2, 24, 15, 18), (8, 24, 1, 1), (2, 8, 15, 18))]
    x, weight, grad = (t.to("cuda", dtype) for t in drawn)
    found = []
    for context in (nullcontext(), ChannelsInnermost(), ChannelsInnermost()):
        own = torch.float64 if isinstance(context, nullcontext) else dtype  # compared with exact numbers
        rounds = own == torch.bfloat16
        pictures = x.to(own).contiguous(memory_format=torch.channels_last).requires_grad_()
        weights = weight.to(torch.float32 if rounds else own).requires_grad_()
        with context, torch.autocast("cuda", torch.bfloat16, enabled=rounds, cache_enabled=False):
            output = F.conv2d(pictures, weights)
        found.append([output.detach(), *torch.autograd.grad(output, [pictures, weights], grad.to(own))])
    assert found[1][2].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for exact, ours, again in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance * float(exact.abs().max()))
        assert torch.equal(ours, again)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 40, 7, 5), (1, 33, 20, 18), (2, 48, 61, 17), (3, 96, 56, 56), (2, 16, 1, 1)])
def test_filters_of_single_channels_are_torchs(shape: tuple[int, ...], stride: int, dtype: torch.dtype) -> None:
    random, channels = torch.Generator().manual_seed(0), shape[1]
    x, weight = (torch.randn(size, generator=random).to("cuda", dtype) for size in (shape, (channels, 1, 3, 3)))
    found = []
    for context in (nullcontext(), ChannelsInnermost(), ChannelsInnermost()):
        own = torch.float64 if isinstance(context, nullcontext) else dtype  # compared with exact numbers
        rounds = own == torch.bfloat16
        pictures = x.to(own).contiguous(memory_format=torch.channels_last).requires_grad_()
        weights = weight.to(torch.float32 if rounds else own).requires_grad_()
        with context, torch.autocast("cuda", torch.bfloat16, enabled=rounds, cache_enabled=False):
            output = F.conv2d(pictures, weights, stride=stride, padding=1, groups=channels)
        slopes = torch.linspace(-1, 1, output.numel(), device="cuda").view_as(output).to(dtype).to(own)
        found.append([output.detach(), *torch.autograd.grad(output, [pictures, weights], slopes)])
    assert found[1][2].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for exact, ours, again in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance * float(exact.abs().max()))
        assert torch.equal(ours, again)
