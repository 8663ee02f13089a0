"""Layers of one client's pictures on a GPU that are computed together, so that less goes through its memory.

So far that is a normalization with its ReLU and filters of single channels after it, as most blocks of networks for
phones have them; see `kernel_layers.NormalizedFilter`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedarena.models.normalization import GroupNormBeforeReLU
from fedarena.train.kernel_layers import NormalizedFilter
from fedarena.train.usable_kernels import group_norm_kernels

_CEILINGS: dict[type[nn.Module], float] = {nn.ReLU: 0.0, nn.ReLU6: 6.0}
_TOGETHER = 3  # layers
_ONES = (1, 1)


def join_in_sequence(layers: nn.Module, x: Tensor) -> Tensor:
    """What these layers make of `x`, some of them together."""
    each = _plain_layers(layers)
    while each:
        joined = _filtered(each[:_TOGETHER], x) if len(each) >= _TOGETHER else None
        x, each = (each[0](x), each[1:]) if joined is None else (joined, each[_TOGETHER:])
    return x


def _plain_layers(layer: nn.Module) -> list[nn.Module]:
    """The layers that this one consists of, if it does nothing but to call one after the other."""
    sequence = layer if type(layer) is nn.Sequential else getattr(layer, "only_sequence", None)
    if sequence is None or _is_watched(layer) or _is_watched(sequence):
        return [layer]
    return [plain for inner in sequence for plain in _plain_layers(inner)]


def _is_watched(layer: nn.Module) -> bool:
    """Whether somebody wants to know, or to change, what goes in or comes out."""
    return any((layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks))


def _filtered(layers: Sequence[nn.Module], x: Tensor) -> Tensor | None:
    """What a normalization, a ReLU and filters make of `x`; None if layers are others, or faster one by one."""
    norm, relu, convolution = layers
    if type(norm) is not GroupNormBeforeReLU or type(convolution) is not nn.Conv2d:
        return None
    if _CEILINGS.get(type(relu)) != norm.ceiling or not _filters_channels(convolution) or any(map(_is_watched, layers)):
        return None
    rounded = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    if x.dim() != 4 or x.dtype != rounded or x.shape[1] != convolution.in_channels or group_norm_kernels(x) is None:
        return None
    from fedarena.train.small_group_norm_kernels import fit

    if fit(x.flatten(2).mT, norm.num_groups):
        return None
    given = (x, norm.num_groups, norm.weight, norm.bias, norm.eps, norm.ceiling)
    output: Tensor = NormalizedFilter.apply(*given, convolution.weight, convolution.stride[0])  # type: ignore[no-untyped-call]
    return output


def _filters_channels(convolution: nn.Conv2d) -> bool:
    form = (convolution.kernel_size, convolution.padding, convolution.dilation, convolution.padding_mode)
    each = convolution.groups == convolution.in_channels == convolution.out_channels and convolution.bias is None
    return each and form == ((3, 3), _ONES, _ONES, "zeros") and convolution.stride in (_ONES, (2, 2))
