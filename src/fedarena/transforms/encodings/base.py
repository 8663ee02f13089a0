"""The interface of an encoding: how what clients send becomes bytes, and how many that are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.train.jobs import IntArray

Message = dict[str, Tensor]  # what is sent instead of a vector, by the names of its parts


class BadEncodingError(BadInputError):
    """Bytes from outside that no message becomes. The sentence says why."""


class Encoding:
    """Bytes for the messages about vectors of one form, which sender and receiver know.

    Where messages are of many clients, every tensor has a row for each.
    """

    def encode(self, message: Message) -> bytes:
        """One client's message as bytes."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Message:
        """The inverse of `encode`. Whatever the bytes are, it ends with a message or a `BadEncodingError`."""
        raise NotImplementedError

    def sizes(self, messages: Message) -> IntArray:
        """How many bytes `encode` gives for the message of every client, without doing so."""
        raise NotImplementedError

    def planned_bytes(self, values: int) -> int:
        """How many bytes to plan for, before it is known more than that `values` coordinates may be other than 0."""
        raise NotImplementedError

    @property
    def most_bytes(self) -> int:
        """More than so many `encode` never gives."""
        raise NotImplementedError


class Plain(Encoding):
    """Tensors of fixed shapes as they are, one after the other."""

    def __init__(self, forms: Mapping[str, tuple[torch.Size | tuple[int, ...], torch.dtype]]):
        self.forms = {name: (torch.Size(shape), dtype) for name, (shape, dtype) in forms.items()}

    def encode(self, message: Message) -> bytes:
        """All numbers."""
        return b"".join(raw_bytes(message[name]) for name in self.forms)

    def decode(self, data: bytes) -> Message:
        """The tensors."""
        if len(data) != self.most_bytes:
            raise BadEncodingError(f"There are {len(data):,} bytes, and {self.most_bytes:,} are needed")
        message, begin = {}, 0
        for name, (shape, dtype) in self.forms.items():
            end = begin + shape.numel() * dtype.itemsize
            message[name] = raw_tensor(data[begin:end], dtype).view(shape)
            begin = end
        return message

    def sizes(self, messages: Message) -> IntArray:
        """The same for everybody."""
        return np.full(len(messages[next(iter(self.forms))]), self.planned_bytes(0))

    def planned_bytes(self, values: int) -> int:
        """It is known before."""
        return self.most_bytes

    @property
    def most_bytes(self) -> int:
        """It is always the same."""
        return sum(shape.numel() * dtype.itemsize for shape, dtype in self.forms.values())


def packed_bytes(encoding: Encoding, message: Message) -> Tensor:
    """One client's encoded message, as a tensor."""
    return torch.frombuffer(bytearray(encoding.encode(message)), dtype=torch.uint8)


def raw_bytes(t: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, lowest byte first."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def raw_tensor(data: bytes, dtype: torch.dtype) -> Tensor:
    """The inverse of `raw_bytes`, in one dimension."""
    return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
