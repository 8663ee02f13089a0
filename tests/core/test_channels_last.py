"""Group normalization of pictures with the channels innermost is torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedarena.models.imagenet.layers import norm_maker
from fedarena.models.imagenet.mobilenet import InvertedResidual
from fedarena.models.normalization import GroupNormBeforeReLU
from fedarena.train import channels_last, joined_layers
from fedarena.train.channels_last import ChannelsInnermost
from fedarena.train.kernel_layers import FirstConvolution


@settings(deadline=None)
@given(st.integers(1, 3), st.sampled_from([1, 2, 3]), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_values_and_gradients_are_those_of_torch(batch: int, groups: int, size: int, side: int, turned: bool) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(batch, groups * size, side, side + 1, generator=random, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if turned else x
    weight, bias = torch.randn(2, groups * size, generator=random, dtype=torch.float64)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    wanted = torch.randn(x.shape, generator=random, dtype=torch.float64)
    expected = F.group_norm(leaves[0], groups, *leaves[1:], eps=1e-3)
    with ChannelsInnermost():
        found = F.group_norm(leaves[0], groups, *leaves[1:], eps=1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for ours, theirs in zip(*(torch.autograd.grad(y, leaves, wanted) for y in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_pictures_stay_in_their_layout_and_other_norms_alone() -> None:
    x = torch.randn(2, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    with ChannelsInnermost():
        assert nn.GroupNorm(2, 4)(x).is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(nn.GroupNorm(2, 4, affine=False)(x), F.group_norm(x, 2))
        flat = torch.randn(3, 4)
        torch.testing.assert_close(nn.GroupNorm(2, 4)(flat), F.group_norm(flat, 2, torch.ones(4), torch.zeros(4)))


def test_a_relu_follows_unless_it_was_applied_to_the_same_ceiling() -> None:
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    norm = GroupNormBeforeReLU(2, 4, ceiling=6.0).double()
    with torch.no_grad():
        norm.weight.fill_(5.0)
    expected = F.relu6(F.group_norm(x, 2, norm.weight, norm.bias))
    torch.testing.assert_close(F.relu6(norm(x)), expected)
    with ChannelsInnermost():  # without a GPU, the norm alone
        torch.testing.assert_close(nn.ReLU6()(norm(x)), expected)
        done = x.clone()
        done.relu_done = 6.0
        assert nn.ReLU6()(done) is done
        for others in (torch.relu, F.relu, nn.Hardtanh(-1.0, 6.0)):
            assert others(done) is not done
        done.relu_done = 0.0
        assert all(relu(done) is done for relu in (torch.relu, F.relu, nn.ReLU()))
        assert nn.ReLU6()(done) is not done


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 3]),
    st.integers(5, 9),
    st.sampled_from([1, 3]),
    st.integers(1, 2),
    st.booleans(),
)
def test_first_convolutions_are_torchs(
    batch: int, colours: int, height: int, side: int, stride: int, turned: bool
) -> None:
    random = torch.Generator().manual_seed(1)
    x, weight = (
        torch.randn(shape, generator=random, dtype=torch.float64)
        for shape in ((batch, colours, height, height + 2), (4, colours, side, side))
    )
    layout = torch.channels_last if turned else torch.contiguous_format
    x, weight = x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout).requires_grad_()
    expected = F.conv2d(x, weight, None, stride, side // 2)
    found = FirstConvolution.apply(x, weight, stride, side // 2, x.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    slopes = torch.randn(expected.shape, generator=random, dtype=torch.float64)
    theirs, ours = (torch.autograd.grad(y, weight, slopes)[0] for y in (expected, found))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
    assert not turned or ours.stride() == weight.stride()  # else optimizers would take parameter after parameter


@pytest.mark.parametrize(
    ("weight", "options", "is_ours"),
    [
        ((8, 3, 3, 3), {"stride": 2, "padding": 1}, True),
        ((8, 3, 3, 3), {"padding": "same"}, False),
        ((8, 3, 3, 3), {"padding": "valid"}, False),
        ((8, 3, 3, 1), {"padding": 1}, False),
        ((8, 3, 3, 3), {"stride": (1, 2)}, False),
        ((8, 3, 7, 7), {"padding": 3}, False),  # its patches are large
        ((8, 3, 1, 1), {}, True),
        ((3, 1, 3, 3), {"padding": 1, "groups": 3}, False),  # without a GPU there are no kernels
        ((6, 1, 3, 3), {"padding": 1, "groups": 3}, False),
    ],
)
def test_which_convolutions_are_ours(weight: tuple[int, ...], options: dict[str, Any], is_ours: bool) -> None:
    given = {"stride": 1, "padding": 0, "groups": 1} | options
    around = [channels_last._pair(given[name]) for name in ("stride", "padding")]
    x, filters = torch.randn(2, 3, 9, 8).double(), torch.randn(weight).double().requires_grad_()
    layer = channels_last._convolution_layer(x, filters, *around, given["groups"])
    assert (layer is not None) == is_ours
    if layer is not None:
        torch.testing.assert_close(layer(x, filters, x.dtype), F.conv2d(x, filters, **options))


@pytest.mark.parametrize("stride", [1, 2])
def test_layers_in_sequence_are_called_one_after_the_other(stride: int) -> None:
    block = InvertedResidual(4, 4, stride, 2, norm_maker("group", 2))
    x, seen = torch.randn(2, 4, 9, 8), []
    for name, layer in block.named_modules():
        layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    expected, order = block(x), seen.copy()
    seen.clear()
    with ChannelsInnermost():
        torch.testing.assert_close(block(x), expected)
    assert seen == order
    assert set(order) == {name for name, _ in block.named_modules()}


def test_blocks_are_taken_apart_unless_they_add_something_or_are_watched() -> None:
    def kinds(block: nn.Module) -> list[str]:
        return [type(layer).__name__ for layer in joined_layers._plain_layers(block)]

    smaller, added = (InvertedResidual(4, 4, stride, 2, norm_maker("group", 2)) for stride in (2, 1))
    ours = ["Conv2d", "GroupNormBeforeReLU", "ReLU6"]
    assert kinds(nn.Sequential(smaller, added)) == [*ours, *ours, "Conv2d", "GroupNorm", "InvertedResidual"]
    smaller.conv[0].register_forward_hook(lambda *_: None)
    assert kinds(smaller) == ["Sequential", *ours, "Conv2d", "GroupNorm"]
    smaller.register_forward_pre_hook(lambda *_: None)
    assert kinds(smaller) == ["InvertedResidual"]


@pytest.mark.parametrize(
    ("form", "filters"),
    [
        ({"groups": 4}, True),
        ({"groups": 4, "stride": 2}, True),
        ({"groups": 4, "stride": 3}, False),
        ({"groups": 2}, False),
        ({"groups": 4, "bias": True}, False),
        ({"groups": 4, "dilation": 2}, False),
        ({"groups": 4, "padding_mode": "reflect"}, False),
        ({"groups": 4, "padding": "same"}, False),
    ],
)
def test_which_convolutions_filter_channels(form: dict[str, Any], filters: bool) -> None:
    convolution = nn.Conv2d(4, 4, 3, **{"padding": 1, "bias": False, **form})
    assert joined_layers._filters_channels(convolution) == filters
