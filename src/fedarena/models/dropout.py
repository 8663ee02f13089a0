"""Dropout whose random numbers are a function of a key, not of what was drawn before.

The engine gives every step of every client a key of its own; `Task.loss` makes it known to the layers while the model
is computed. What is dropped is the hash (splitmix64) of the key, of how many dropout layers were computed before in
this call, and of the place in the layer's input. These are operations on integers, so `vmap` and tracing see nothing
random, and a sample's mask does not depend on how many samples follow it in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

import torch
from torch import Tensor, nn

from fedarena.models.keyed_random import derived, random_bits

_KEYS: ContextVar[Iterator[Tensor] | None] = ContextVar("keys of dropout layers", default=None)
_SHARE: ContextVar[Tensor | None] = ContextVar("share that dropout layers drop", default=None)
_PASSES: ContextVar[Iterator[int] | None] = ContextVar("passes through the model in one loss", default=None)


@contextmanager
def dropout_key(key: Tensor | None) -> Iterator[None]:
    """Within the block, dropout layers draw from this key (an int64 scalar); with None, from torch's own generator."""
    passes = _PASSES.get()
    number = 0 if passes is None else next(passes)
    if key is not None and number:
        key = derived(key, -number)
    token = _KEYS.set(None if key is None else (derived(key, n) for n in count(1)))
    try:
        yield
    finally:
        _KEYS.reset(token)


@contextmanager
def dropout_share(share: Tensor | None) -> Iterator[None]:
    """Within the block, all dropout layers drop this share (a scalar) instead of their own; with None, their own."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


@contextmanager
def several_passes() -> Iterator[None]:
    """Within the block, a loss of somebody's own, every pass through the model drops something else.

    The passes of our own methods are those of several models, which drop the same.
    """
    token = _PASSES.set(count())
    try:
        yield
    finally:
        _PASSES.reset(token)


class KeyedDropout(nn.Dropout):
    """Dropout as torch's, drawing from the key of `dropout_key`; where there is none, it is torch's.

    With `whole_channels`, all of a sample's channel is dropped or kept, as torch's Dropout1d and Dropout2d do.
    """

    def __init__(self, p: float, whole_channels: bool = False):
        super().__init__(p)
        self.whole_channels = whole_channels

    def forward(self, input: Tensor) -> Tensor:
        """The input without what is dropped, the rest scaled up so that the mean stays."""
        own = _SHARE.get()
        if not self.training or (self.p == 0 and own is None):
            return input
        shape = input.shape
        if self.whole_channels:
            shape = torch.Size([*shape[:2], *(1 for _ in shape[2:])])
        keys = _KEYS.get()
        if own is not None and keys is not None:
            return input * (_kept_with(own, next(keys), shape).to(input.dtype) / (1 - own).to(input.dtype))
        if keys is None:
            return input * nn.functional.dropout(input.new_ones(shape), self.p)
        if self.p == 1:
            return input * 0
        return input * (_kept(next(keys), shape, self.p).to(input.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        """What torch shows of the layer."""
        return f"p={self.p}" + (", whole_channels=True" if self.whole_channels else "")


# The layers that are replaced, and not their subclasses, which may compute anything.
_WHOLE_CHANNELS: dict[type[nn.Module], bool] = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True}


def with_keyed_dropout(module: nn.Module) -> nn.Module:
    """The same module, whose dropout layers are replaced by keyed ones."""
    replaced: dict[nn.Module, nn.Module] = {}
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if path and isinstance(layer, nn.modules.dropout._DropoutNd) and type(layer) in _WHOLE_CHANNELS:
            if layer not in replaced:
                replaced[layer] = KeyedDropout(layer.p, _WHOLE_CHANNELS[type(layer)]).train(layer.training)
                for name, value in vars(layer).items():
                    if "_hooks" in name:
                        setattr(replaced[layer], name, value)
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, replaced[layer])
    return module


def _kept_with(share_dropped: Tensor, key: Tensor, shape: torch.Size) -> Tensor:
    """The same as `_kept`, with a share that is a tensor, from 0 to below 1."""
    threshold = (share_dropped.double() * 2.0**64 - 2.0**63).round().long()
    return random_bits(key, shape) >= threshold


def _kept(key: Tensor, shape: torch.Size, share_dropped: float) -> Tensor:
    """Which places of a tensor of this shape are kept."""
    # A random signed number is below this as often as is to be dropped.
    threshold = round(share_dropped * 2**64) - 2**63
    return random_bits(key, shape) >= threshold
