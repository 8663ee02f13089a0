"""What an update looks like when it arrives: tensors of known names, types and shapes, or bytes instead of some."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedarena.client.codec import BadTensorsError, Entry, Form, check_form, encoded_bytes, load, read_header
from fedarena.models import Tensors
from fedarena.train.tensors import flatten_groups, unflatten_groups
from fedarena.transforms.encodings import BadEncodingError
from fedarena.transforms.packing import Packing
from fedarena.transforms.wire import PACKED, PARAMS

_PACKED_NAME = f"{PACKED}/{PARAMS}"
_PIECE_BYTES, _PIECE_NUMBERS = 1 << 20, 1 << 18


@dataclass(frozen=True)
class UpdateForm:
    """The form of a run's updates, as they are added up; with `packing`, parameters travel in an encoding."""

    tensors: Form
    packing: Packing | None = None

    @property
    def as_sent(self) -> Form:
        """Those that travel as they are."""
        if self.packing is None:
            return self.tensors
        return {name: form for name, form in self.tensors.items() if not name.startswith(f"{PARAMS}/")}

    @property
    def least_bytes(self) -> int:
        """An update cannot be shorter."""
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.as_sent.values())

    @property
    def most_bytes(self) -> int:
        """An update is not longer, written as this project does."""
        return encoded_bytes(self._with_packed(0 if self.packing is None else self.packing.encoding.most_bytes))

    def pieces(self, path: Path) -> Iterator[tuple[str, Tensor]]:
        """All numbers of an update in a file, some at a time, each with the name of its tensor.

        A `BadTensorsError` or `BadEncodingError`, if the file has another form. Parameters in an encoding are in memory
        as a whole, all else in parts.
        """
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header = read_header(file, size, None if self.packing else self.tensors, "The update")
            self._check_packed(header.entries)
            for name, entry in header.entries.items():
                file.seek(header.bytes + entry.begin)
                if name == _PACKED_NAME and self.packing is not None:
                    found = self.packing.unpack(file.read(entry.end - entry.begin))
                    for of_params, t in found.items():
                        parts_of_it = torch.split(t.reshape(-1), _PIECE_NUMBERS)
                        yield from ((f"{PARAMS}/{of_params}", part) for part in parts_of_it)
                else:
                    parts = _parts(entry)
                    yield from ((name, torch.frombuffer(bytearray(file.read(n)), dtype=entry.dtype)) for n in parts)

    def load(self, path: Path) -> Tensors:
        """The tensors of an update that was accepted, in their order."""
        if self.packing is None:
            return load(path, self.tensors)
        found = flatten_groups(self.packing.unpacked(unflatten_groups(load(path))))
        check_form({name: (t.dtype, tuple(t.shape)) for name, t in found.items()}, self.tensors, str(path))
        return {name: found[name] for name in self.tensors}

    def _check_packed(self, entries: dict[str, Entry]) -> None:
        if self.packing is None:
            return
        packed, most = entries.get(_PACKED_NAME), self.packing.encoding.most_bytes
        length = packed.end - packed.begin if packed is not None else 0
        if length > most:
            raise BadEncodingError(f"Parameters take at most {most:,} bytes, not {length:,}")
        found = {name: (entry.dtype, entry.shape) for name, entry in entries.items()}
        check_form(found, self._with_packed(length), "The update")

    def _with_packed(self, length: int) -> Form:
        return self.as_sent if self.packing is None else {**self.as_sent, _PACKED_NAME: (torch.uint8, (length,))}


def _parts(entry: Entry) -> Iterable[int]:
    """How many bytes of a tensor are read at a time."""
    left = entry.end - entry.begin
    return [min(_PIECE_BYTES, left - begin) for begin in range(0, left, _PIECE_BYTES)]


__all__ = ["BadEncodingError", "BadTensorsError", "UpdateForm"]
