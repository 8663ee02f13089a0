"""Random tensors that are a function of a key, not of what was drawn before.

They are hashes (splitmix64) of the key and of the place in the tensor: operations on integers, so that `vmap` and
tracing see nothing random, and a client draws the same numbers whoever else is computed beside it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# splitmix64's constants (see fedarena.core.streams) as signed numbers, because torch computes with those.
_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
_INVERSE_INCREMENT = pow(0x9E3779B97F4A7C15, -1, 2**64) - 2**64  # their product is 1 in 64 bits
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLIER_2 = 0x94D049BB133111EB - 2**64
_ANGLE_BITS = 24


def derived(key: Tensor, number: int) -> Tensor:
    """Another key, for the purpose of this number."""
    return _scramble(key + _signed(number * _INCREMENT))


def continued(key: Tensor, number: Tensor) -> Tensor:
    """What `fedarena.core.streams.bits` gives for the keys that led to this one and another number."""
    return _scramble(key + (number + 1) * _INCREMENT)


def derived_each(key: Tensor, count: int) -> Tensor:
    """The keys for the purposes of the numbers from 1 to `count`, in the last dimension."""
    numbers = torch.arange(1, count + 1, device=key.device)
    return _scramble(key.unsqueeze(-1) + numbers * _INCREMENT)


def at_step(key: Tensor, step: int | Tensor) -> Tensor:
    """Another key for every step of local training."""
    number = step.long() if isinstance(step, Tensor) else step
    return _scramble(key ^ _scramble(torch.as_tensor(number, device=key.device) + 1))


def random_bits(key: Tensor, shape: torch.Size) -> Tensor:
    """A random int64 for every place of a tensor of this shape."""
    places = torch.arange(shape.numel(), device=key.device).view(shape)
    # key + places * _INCREMENT, written so that no place is multiplied before a key is added: torch's compiler takes
    # places for indexes of 32 bits, and fails on a number of 64 bits that they are multiplied by.
    return _scramble((key * _INVERSE_INCREMENT + places) * _INCREMENT)


def keyed_uniform(key: Tensor, like: Tensor) -> Tensor:
    """Numbers in [0, 1), in the shape and type of `like`."""
    # As many bits as a number of that type can tell apart, so that rounding never makes it 1.
    bits = 53 if like.dtype == torch.float64 else 24
    return _shift(random_bits(key, like.shape), 64 - bits).to(like.dtype) * 2.0**-bits


def uniform_of(bits: Tensor) -> Tensor:
    """Numbers in [0, 1) in double precision, of random int64."""
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def keyed_normal(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers, in the shape and type of `like` (by the transform of Box and Muller)."""
    radius = (-2 * torch.log1p(-keyed_uniform(derived(key, 1), like))).sqrt()
    return radius * torch.cos(2 * math.pi * keyed_uniform(derived(key, 2), like))


def keyed_normals(key: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """So many standard normal numbers, where the key is.

    For large tensors, and not for `vmap`: one hash gives the radius (40 bits, which reach 7.4 deviations far) and the
    angle (24 bits) of two numbers, and is computed in place.
    """
    bits = torch.arange((count + 1) // 2, device=key.device).mul_(_INCREMENT).add_(key)
    shifted = torch.empty_like(bits)
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2), (31, None)):
        torch.bitwise_right_shift(bits, shift, out=shifted)
        bits.bitwise_xor_(shifted.bitwise_and_((1 << (64 - shift)) - 1))
        if multiplier is not None:
            bits.mul_(multiplier)
    torch.bitwise_right_shift(bits, _ANGLE_BITS, out=shifted)
    radius_bits = 64 - _ANGLE_BITS
    uniform = shifted.bitwise_and_((1 << radius_bits) - 1).to(torch.float64).mul_(2.0**-radius_bits)
    radius = uniform.neg_().log1p_().mul_(-2).sqrt_().to(dtype)
    angle = bits.bitwise_and_((1 << _ANGLE_BITS) - 1).to(dtype).mul_(2 * math.pi * 2.0**-_ANGLE_BITS)
    return torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)])[:count]


def _signed(number: int) -> int:
    """As a signed number of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift(x, 27)) * _MULTIPLIER_2
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left also for negative numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
