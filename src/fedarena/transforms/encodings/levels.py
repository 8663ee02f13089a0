"""Vectors whose coordinates are whole multiples of few scales, as quantized ones are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedarena.train.jobs import IntArray
from fedarena.transforms.encodings.base import BadEncodingError, Encoding, Message, raw_bytes, raw_tensor
from fedarena.transforms.encodings.bits import (
    Bits,
    from_bits,
    from_bytes,
    from_gamma,
    gamma_bits,
    to_bits,
    to_bytes,
    to_gamma,
    whole_bytes,
)
from fedarena.transforms.encodings.support import decode_support, encode_support, support_bytes

_FIXED, _SPARSE, _GAMMA = range(3)


class Levels(Encoding):
    """The parts ``scales``, one for every piece of the vector, and ``levels``, whole numbers from -`most` to `most`.

    Scales are sent as they are. Then a byte says how levels are: *fixed*, all in so many bits as the largest needs;
    *sparse*, where they are not zero, their signs, and their sizes in so many bits; or *gamma*, where sizes are in
    Elias' gamma code, which suits QSGD, whose levels are mostly small. The shortest is taken.
    """

    def __init__(self, pieces: Sequence[int], most: int, dtype: torch.dtype):
        self.length, self.scales, self.most, self.dtype = sum(pieces), len(pieces), most, dtype
        self._fixed_width, self._size_width = (2 * most).bit_length(), (most - 1).bit_length()

    @property
    def scale_bytes(self) -> int:
        """What all scales take."""
        return self.scales * self.dtype.itemsize

    def encode(self, message: Message) -> bytes:
        """Scales and levels."""
        levels = _whole(message["levels"])
        mask = levels != 0
        sizes = np.abs(levels[mask])
        gamma = int(gamma_bits(sizes).sum()) if len(sizes) else 0
        form = int(np.argmin(self._forms(np.array(len(sizes)), np.array(gamma))))
        code: Bits
        if form == _FIXED:
            support, code = b"", to_bits(levels + self.most, self._fixed_width)
        else:
            support, signs = encode_support(mask), (levels[mask] < 0).astype(np.uint8)
            coded = to_gamma(sizes) if form == _GAMMA else to_bits(sizes - 1, self._size_width)
            code = np.concatenate([signs, coded])
        return raw_bytes(message["scales"]) + bytes([form]) + support + to_bytes(code)

    def decode(self, data: bytes) -> Message:
        """Scales and levels."""
        begin = self.scale_bytes
        if len(data) <= begin:
            raise BadEncodingError(f"There are {len(data):,} bytes, and scales alone take {begin:,}")
        scales, form, rest = raw_tensor(data[:begin], self.dtype), data[begin], data[begin + 1 :]
        if form == _FIXED:
            _check_bits(rest, self.length * self._fixed_width)
            levels = from_bits(from_bytes(rest), self.length, self._fixed_width) - self.most
        elif form in (_SPARSE, _GAMMA):
            levels = self._decoded(rest, form)
        else:
            raise BadEncodingError(f"There is no form {form} of levels")
        if int(np.abs(levels).max(initial=0)) > self.most:
            raise BadEncodingError(f"A level is larger than {self.most:,}")
        return {"scales": scales, "levels": torch.from_numpy(levels).to(self.dtype)}

    def _decoded(self, data: bytes, form: int) -> IntArray:
        """Levels of which many may be zero."""
        mask, end = decode_support(data, self.length)
        count, code = int(mask.sum()), from_bytes(data[end:])
        if form == _GAMMA:
            try:
                sizes, bits = from_gamma(code[count:], count, self.most)
            except ValueError as error:
                raise BadEncodingError(str(error)) from None
            _check_bits(data[end:], count + bits)
        else:
            _check_bits(data[end:], count * (1 + self._size_width))
            sizes = from_bits(code[count:], count, self._size_width) + 1
        levels = np.zeros(self.length, dtype=np.int64)
        levels[mask] = np.where(code[:count], -sizes, sizes)
        return levels

    @property
    def most_bytes(self) -> int:
        """The fixed form, or a shorter one."""
        return self.scale_bytes + 1 + int(whole_bytes(self.length * self._fixed_width))

    def sizes(self, messages: Message) -> IntArray:
        """By how many levels are not zero, and how large these are."""
        # Torch counts faster than NumPy on one core, and on a GPU nothing but sums leave it.
        sizes = messages["levels"].nan_to_num().abs()
        counts = (sizes != 0).sum(1)
        lengths = torch.frexp(sizes).exponent if self.most > 1 else sizes
        gamma = 2 * lengths.sum(1, dtype=torch.int64) - counts
        levels: IntArray = self._forms(counts.cpu().numpy(), gamma.cpu().numpy()).min(0)
        return self.scale_bytes + levels

    def planned_bytes(self, values: int) -> int:
        """As if nobody knew how large they are."""
        counts = np.array(values)
        fixed, sparse, _ = self._forms(counts, counts)
        return self.scale_bytes + int(min(fixed, sparse))

    def _forms(self, counts: IntArray, gamma: IntArray) -> IntArray:
        """The bytes of every form."""
        support = support_bytes(self.length, counts)
        fixed = np.broadcast_to(whole_bytes(self.length * self._fixed_width), counts.shape)
        sparse = support + whole_bytes(counts * (1 + self._size_width))
        return 1 + np.stack([fixed, sparse, support + whole_bytes(counts + gamma)])


def _check_bits(data: bytes, bits: int) -> None:
    if len(data) != whole_bytes(bits):
        raise BadEncodingError(f"There are {len(data):,} bytes of levels, and {whole_bytes(bits):,} are needed")


def _whole(levels: torch.Tensor) -> IntArray:
    return levels.nan_to_num().to(torch.int64).cpu().numpy()
