"""What an update takes on its way, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.encodings import Values
from fedarena.transforms.rows import flat

# A group that a transform may add to updates: how many bytes every client sends for each of the other groups, if not
# raw numbers. Whoever calls `Transform.at_client` takes it off; see `Transform.sent`.
SENT = "sent"
# The same for one real client: the bytes that are sent instead of its parameters, see `fedarena.transforms.packing`.
PACKED, PARAMS = "packed", "params"


@dataclass(frozen=True)
class Sent:
    """How a group of an update is sent."""

    bytes: Any  # of one client, or an array with an entry per client
    form: Tensors  # one client's tensors, to see their shapes
    values: int  # numbers that may be other than zero, as far as is known before
    is_packed: bool = False  # otherwise, raw numbers

    @property
    def length(self) -> int:
        """How many numbers there are."""
        return sum(t.numel() for t in self.form.values())


Wire = dict[str, Sent]  # by groups


def dense(update: Groups) -> Wire:
    """One client's update as raw numbers."""
    return {
        group: Sent(sum(t.numel() * t.element_size() for t in tensors.values()), tensors, length_of(tensors))
        for group, tensors in update.items()
    }


def changed(wire: Wire, updates: Groups | None) -> Wire:
    """What is left of this if all values are changed: nothing but that zeros need not be sent where some were not.

    `updates` have a row per client; None: what is planned.
    """
    return {group: _changed(sent, group, updates) if sent.is_packed else sent for group, sent in wire.items()}


def _changed(sent: Sent, group: str, updates: Groups | None) -> Sent:
    encoding = Values(sent.length, common_type(sent.form))
    if updates is None:
        return replace(sent, bytes=encoding.planned_bytes(sent.values))
    return replace(sent, bytes=encoding.sizes({"values": flat({group: updates[group]})}))


def wire_bytes(wire: Wire) -> Any:
    """All of it: a number, or an array with an entry per client."""
    return sum((sent.bytes for sent in wire.values()), 0)


def common_type(form: Tensors) -> Any:
    """The type of numbers of tensors that are sent as one vector."""
    first: Tensor = next(iter(form.values()))
    return first.dtype


def length_of(form: Tensors) -> int:
    """How many parameters there are."""
    return sum(t.numel() for t in form.values())
