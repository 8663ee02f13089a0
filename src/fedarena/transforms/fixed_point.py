"""Updates as whole numbers, so that the sum of a group's can be had modulo 2^32 or 2^64, under masks.

What a client adds to a sum (`Aggregator.add_up` of its update alone) becomes a vector of words. A number of a tensor is
multiplied by a power of two and rounded; what is larger than its bound is cut off, and how often that happened is added
up as well. The power is the largest with which the sum over a whole group cannot overflow, whatever its members have.
Weights and other numbers beside tensors are 64 bits with 20 behind the point, or more where even the largest weight is
below 1, in four words of 16 bits each, of which 2^16 members can be added up; they are exact if they are whole.

Sums of whole numbers do not depend on an order, so everybody who adds up the same updates gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train import Groups
from fedarena.transforms.aggregators.base import Partial
from fedarena.transforms.discrete_noise import discrete_normals

Rounding = Literal["nearest", "stochastic"]
Draws = Callable[[int], npt.NDArray[np.uint64]]  # so many words of 64 random bits
Words = npt.NDArray[Any]

SATURATED = "saturated"  # among the numbers of a sum: how many others were cut off
TRAIN_LOSS, TRAIN_SAMPLES = "train_loss", "train_samples"  # the sum of losses times samples, and of samples
NOTES = (SATURATED, TRAIN_LOSS, TRAIN_SAMPLES)

_LIMBS, _LIMB_BITS, _POINT_BITS = 4, 16, 20
_MOST_POINT_BITS = 50  # so that there is room for counts of clients, too
_OFFSET = 1 << 63  # which makes numbers positive
_MOST_SIGNIFICANT_BITS = 52  # of a sum, so that it can be written in double precision
_LEAST_STEPS = 128  # between zero and the largest number
_NOISE_TAIL = 16  # deviations that there is room for: beyond that is one draw of 10^56


@dataclass(frozen=True)
class FixedPoint:
    """How numbers become whole ones."""

    members: int  # of a group, at most
    bound: float  # of a change of the model, times the weight of its client
    other_bound: float  # of what else clients send, times their weight
    bits: int = 32  # of a word
    rounding: Rounding = "nearest"  # or up and down by chance, such that the mean is the number itself
    noise_deviation: float = 0.0  # of the noise that every client adds to each number of a tensor
    point_bits: int = _POINT_BITS  # behind the point, of weights and what else an aggregator adds up beside tensors

    def scale(self, bound: float) -> float:
        """By what numbers within a bound are multiplied: a power of two."""
        most = float((1 << (min(self.bits - 1, _MOST_SIGNIFICANT_BITS))) - 1)
        room = self.members * bound + _NOISE_TAIL * self.noise_deviation * math.sqrt(self.members)
        # Rounding up may add one for every member.
        power = math.floor(math.log2((most - self.members) / room))
        return math.ldexp(1.0, power)


@dataclass(frozen=True)
class _Slot:
    """A tensor of a sum."""

    group: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    scale: float


class SumForm:
    """The form of what clients add to a sum, as words and back. All clients' have the same."""

    def __init__(
        self, fixed_point: FixedPoint, example: Partial, changes: Collection[str], notes: Sequence[str] = NOTES
    ):
        """`example` is what the aggregator makes of one update, and `changes` its groups that move the model."""
        self.fixed_point, self.notes = fixed_point, tuple(notes)
        bounds = {
            group: fixed_point.bound if group in changes else fixed_point.other_bound for group in example.tensors
        }
        for bound in bounds.values():
            if bound * fixed_point.scale(bound) < _LEAST_STEPS:
                raise BadInputError(
                    f"Sums of {fixed_point.bits} bits have no room for numbers up to {bound:g} of "
                    f"{fixed_point.members} clients; choose secure_aggregation.bits=64 or smaller groups"
                )
        self._slots = [
            _Slot(group, name, t.shape, t.dtype, fixed_point.scale(bounds[group]))
            for group, tensors in example.tensors.items()
            for name, t in tensors.items()
        ]
        self.numbers = (*example.numbers, *self.notes)
        self.coordinates = sum(slot.shape.numel() for slot in self._slots)
        self._scales = self._spread([slot.scale for slot in self._slots])
        self._limits = self._spread([math.floor(bounds[slot.group] * slot.scale) for slot in self._slots])

    def _spread(self, of_tensors: Sequence[float]) -> Tensor:
        """A number of every tensor, for each of its coordinates."""
        sizes = [slot.shape.numel() for slot in self._slots]
        values = torch.tensor(of_tensors, dtype=torch.float64)
        return values.repeat_interleave(torch.tensor(sizes, dtype=torch.int64))

    @property
    def length(self) -> int:
        """How many words there are."""
        return self.coordinates + _LIMBS * len(self.numbers)

    @property
    def tensor_bytes(self) -> int:
        """What a client sends of tensors, masked."""
        return self.coordinates * self.fixed_point.bits // 8

    @property
    def number_bytes(self) -> int:
        """What it sends of numbers beside them."""
        return (self.length - self.coordinates) * self.fixed_point.bits // 8

    def rounded(self, added: Partial, notes: dict[str, float], rounding: Draws, noise: Draws | None = None) -> Partial:
        """What one client adds to the sum, in whole numbers; those beside tensors in steps of a power of two."""
        values = torch.cat([self._found(added, slot).reshape(-1).double() for slot in self._slots])
        device = values.device
        scaled = values * self._scales.to(device)
        limits = self._limits.to(device)
        if self.fixed_point.rounding == "stochastic":
            below = scaled.floor()
            chances = (rounding(len(scaled)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            whole = below + (torch.from_numpy(chances).to(device) < scaled - below)
        else:
            whole = scaled.round()
        cut = whole.clamp(-limits, limits)
        found = cut.long()
        if self.fixed_point.noise_deviation:
            assert noise is not None
            found = found + self._noise(noise).to(device)
        told = {SATURATED: float((cut != whole).sum()), **notes}
        numbers = added.numbers | {name: told[name] for name in self.notes}
        steps = {name: _in_steps(float(numbers[name]), self._point_bits(name)) for name in self.numbers}
        return Partial(self._apart(found), steps)

    def restored(self, total: Partial) -> Partial:
        """The numbers that a sum of whole ones stands for."""
        tensors: Groups = {group: {} for group in total.tensors}
        for slot in self._slots:
            whole = total.tensors[slot.group][slot.name]
            tensors[slot.group][slot.name] = (whole.double() / slot.scale).to(slot.dtype)
        return Partial(tensors, dict(total.numbers))

    def words(self, rounded: Partial) -> Words:
        """What one client adds, as the vector that is masked."""
        kind = np.dtype(f"u{self.fixed_point.bits // 8}")
        whole = torch.cat([rounded.tensors[slot.group][slot.name].reshape(-1) for slot in self._slots]).cpu().numpy()
        limbs = []
        for name in self.numbers:
            bits = int(rounded.numbers[name] * (1 << self._point_bits(name))) + _OFFSET
            limbs += [bits >> (_LIMB_BITS * place) & ((1 << _LIMB_BITS) - 1) for place in range(_LIMBS)]
        return np.concatenate([whole.astype(np.int64).view(np.uint64).astype(kind), np.array(limbs, dtype=kind)])

    def from_words(self, total: Words, members: int) -> Partial:
        """What the vectors of so many members add up to, in whole numbers."""
        signed = total.view(np.dtype(f"i{self.fixed_point.bits // 8}"))
        tensors = self._apart(torch.from_numpy(signed[: self.coordinates].astype(np.int64)))
        limbs = total[self.coordinates :].reshape(-1, _LIMBS).tolist()
        numbers = {}
        for name, places in zip(self.numbers, limbs, strict=True):
            bits = sum(limb << (_LIMB_BITS * place) for place, limb in enumerate(places))
            numbers[name] = (bits - members * _OFFSET) / (1 << self._point_bits(name))
        return Partial(tensors, numbers)

    def _point_bits(self, name: str) -> int:
        return _POINT_BITS if name in self.notes else self.fixed_point.point_bits

    def _found(self, added: Partial, slot: _Slot) -> Tensor:
        found = added.tensors.get(slot.group, {}).get(slot.name)
        if found is None or found.shape != slot.shape:
            raise BadInputError(f"A client's update has no {slot.group}/{slot.name} of shape {list(slot.shape)}")
        return found

    def _apart(self, vector: Tensor) -> Groups:
        """A vector as the tensors it is of."""
        pieces = torch.split(vector, [slot.shape.numel() for slot in self._slots])
        groups: Groups = {}
        for slot, piece in zip(self._slots, pieces, strict=True):
            groups.setdefault(slot.group, {})[slot.name] = piece.reshape(slot.shape)
        return groups

    def _noise(self, draws: Draws) -> Tensor:
        deviation = self.fixed_point.noise_deviation
        each = [discrete_normals(slot.shape.numel(), deviation * slot.scale, draws) for slot in self._slots]
        return torch.from_numpy(np.concatenate(each))


def bits_for_weights(largest: float) -> int:
    """How many bits behind the point weights need, so that rounding changes little about the largest of them."""
    return min(_POINT_BITS + max(0, -math.floor(math.log2(largest))), _MOST_POINT_BITS)


def _in_steps(number: float, point_bits: int) -> float:
    """The nearest number that has so many bits behind the point."""
    most = float(1 << (62 - point_bits))
    return round(min(max(number, -most), most) * (1 << point_bits)) / (1 << point_bits)
