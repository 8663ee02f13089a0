"""How a client's state becomes a string of bytes, and comes back with the same bits, names and order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from fedarena.train import Groups

# Where torch itself puts tensors: sums over a state round the same whether it is new or was read back.
_ALIGNMENT_BYTES = 64


class TensorForm(NamedTuple):
    """What one tensor of a state looks like."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Which tensors a state holds and where among its bytes they lie. Most runs have one for all clients."""

    groups: tuple[tuple[str, tuple[TensorForm, ...]], ...]

    @classmethod
    def of_rows(cls, rows: Groups) -> Layout:
        """The layout of one client's row of stacked groups."""
        return cls(
            tuple(
                (
                    group,
                    tuple(
                        TensorForm(name, str(t.dtype).removeprefix("torch."), tuple(t.shape[1:]))
                        for name, t in tensors.items()
                    ),
                )
                for group, tensors in rows.items()
            )
        )

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """The inverse of `to_json`."""
        return cls(
            tuple(
                (group, tuple(TensorForm(name, dtype, tuple(shape)) for name, dtype, shape in forms))
                for group, forms in json.loads(text)
            )
        )

    def to_json(self) -> bytes:
        """The layout as text, for files."""
        return json.dumps(self.groups, ensure_ascii=False).encode()

    @cached_property
    def content_bytes(self) -> int:
        """The length of a packed state."""
        return max((stop for *_, stop in self._slots()), default=0)

    def pack_rows(self, rows: Groups, count: int) -> list[bytes]:
        """Every client's part of stacked groups as bytes; the tensors may be on any device."""
        packed = torch.zeros(count, self.content_bytes, dtype=torch.uint8)
        for group, form, _, start, stop in self._slots():
            if start < stop:
                flat = rows[group][form.name].detach().cpu().reshape(count, -1).contiguous()
                packed[:, start:stop] = flat.view(torch.uint8)
        return [row.tobytes() for row in packed.numpy()]

    def unpack(self, content: bytes) -> Groups:
        """The tensors of a packed state, which share nothing with it."""
        buffer = torch.empty(self.content_bytes, dtype=torch.uint8)
        buffer.numpy()[:] = np.frombuffer(content, dtype=np.uint8)
        groups: Groups = {group: {} for group, _ in self.groups}
        for group, form, dtype, start, stop in self._slots():
            groups[group][form.name] = buffer[start:stop].view(dtype).view(form.shape)
        return groups

    def _slots(self) -> Iterator[tuple[str, TensorForm, torch.dtype, int, int]]:
        stop = 0
        for group, forms in self.groups:
            for form in forms:
                dtype: torch.dtype = getattr(torch, form.dtype)
                start = -(-stop // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
                stop = start + int(np.prod(form.shape, dtype=np.int64)) * dtype.itemsize
                yield group, form, dtype, start, stop


class PackedState(NamedTuple):
    """A client's state as bytes."""

    layout: Layout
    content: bytes

    def unpack(self) -> Groups:
        """The state as tensors."""
        return self.layout.unpack(self.content)
