"""Vectors of which many coordinates may be zero, the others as they are."""

from __future__ import annotations

import numpy as np
import torch

from fedarena.train.jobs import IntArray
from fedarena.transforms.encodings.base import BadEncodingError, Encoding, Message, raw_bytes, raw_tensor
from fedarena.transforms.encodings.support import decode_support, encode_support, support_bytes


class Values(Encoding):
    """The part ``values``: those that are not zero, behind where they are; or all of them, unless that takes more.

    Which of the two it is, the number of bytes tells.
    """

    def __init__(self, length: int, dtype: torch.dtype):
        self.length, self.dtype = length, dtype

    def encode(self, message: Message) -> bytes:
        """Places and values."""
        values = message["values"]
        mask = (values != 0).cpu()
        support = encode_support(mask.numpy())
        if len(support) + int(mask.sum()) * self.dtype.itemsize < self._dense_bytes:
            return support + raw_bytes(values.cpu()[mask])
        return raw_bytes(values)

    def decode(self, data: bytes) -> Message:
        """The vector."""
        if len(data) == self._dense_bytes:
            return {"values": raw_tensor(data, self.dtype)}
        mask, begin = decode_support(data, self.length)
        wanted = begin + int(mask.sum()) * self.dtype.itemsize
        if len(data) != wanted:
            raise BadEncodingError(f"There are {len(data):,} bytes, and {wanted:,} are needed")
        values = torch.zeros(self.length, dtype=self.dtype)
        values[torch.from_numpy(mask)] = raw_tensor(data[begin:], self.dtype)
        return {"values": values}

    def sizes(self, messages: Message) -> IntArray:
        """By how many values are not zero."""
        return self._bytes((messages["values"] != 0).sum(1).cpu().numpy())

    def planned_bytes(self, values: int) -> int:
        """For so many values."""
        return int(self._bytes(np.array(values)))

    @property
    def most_bytes(self) -> int:
        """All of them."""
        return self._dense_bytes

    @property
    def _dense_bytes(self) -> int:
        return self.length * self.dtype.itemsize

    def _bytes(self, counts: IntArray) -> IntArray:
        sparse: IntArray = support_bytes(self.length, counts) + counts * self.dtype.itemsize
        return np.minimum(sparse, self._dense_bytes)
