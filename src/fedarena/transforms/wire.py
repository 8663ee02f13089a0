"""What an update takes on its way, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedarena.train import Groups


@dataclass(frozen=True)
class Sent:
    """How one tensor is sent: so many values, each of so many bits, and where each belongs unless all are sent.

    Numbers of values are of one client, or arrays with an entry per client.
    """

    values: Any
    value_bits: int
    place_bits: int = 0

    @property
    def bytes(self) -> Any:
        """The size of all values, rounded up to whole bytes."""
        return -(-(self.values * (self.value_bits + self.place_bits)) // 8)


Wire = dict[str, dict[str, Sent]]  # as the groups of an update


def dense(update: Groups) -> Wire:
    """One client's update as raw numbers."""
    return {
        group: {name: Sent(t.numel(), 8 * t.element_size()) for name, t in tensors.items()}
        for group, tensors in update.items()
    }


def sparse(sent: Sent, values: Any, place_bits: int) -> Sent:
    """The same tensor with only some of its values, each with its place, unless all of them would take less."""
    smaller = replace(sent, values=values, place_bits=place_bits)
    if np.ndim(values):
        fewest = np.minimum(smaller.bytes, sent.bytes)
        return Sent(fewest, 8)
    return smaller if smaller.bytes < sent.bytes else sent


def wire_bytes(wire: Wire) -> Any:
    """All of it: a number, or an array with an entry per client."""
    return sum((sent.bytes for tensors in wire.values() for sent in tensors.values()), 0)
