"""QSGD. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.

In every bucket of d coordinates with norm |v|, a coordinate becomes |v| sgn(v_i) l / s, where l is one of the two whole
numbers beside s |v_i| / |v|, by chance such that the mean is right. It is unbiased, with a variance of at most
min(d / s², √d / s) |v|². Small numbers l are the most frequent ones, and Elias' code makes them short.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import compressor
from fedarena.transforms.encodings import Levels, Message
from fedarena.transforms.quantizer import Quantizer
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of

_FEWEST_BITS, _MOST_BITS = 2, 16


@compressor("qsgd")
class QSGD(Quantizer):
    """Rounds coordinates at random to numbers of so many `bits`, one of which is the sign: s = 2^(bits - 1) - 1.

    Every `bucket` of coordinates has a norm of its own, which is sent with them.
    """

    def __init__(self, *, bits: int = 8, bucket: int = 512):
        if not _FEWEST_BITS <= bits <= _MOST_BITS:
            raise BadInputError(f"qsgd.bits must be from {_FEWEST_BITS} to {_MOST_BITS}, not {bits}")
        if bucket < 1:
            raise BadInputError(f"qsgd.bucket must be at least 1 coordinate, not {bucket}")
        self.bits, self.bucket = bits, bucket

    def encoding(self, form: Tensors) -> Levels:
        """Norms of the buckets, and levels."""
        return Levels(self._buckets(length_of(form)), self._most, common_type(form))

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """Norms and levels."""
        length = vectors.shape[1]
        width = min(self.bucket, length)
        buckets = F.pad(vectors, (0, -length % width)).view(len(vectors), -1, width)
        norms = torch.linalg.vector_norm(buckets, dim=2, keepdim=True)
        sizes = (self._most * (buckets.abs() / norms).nan_to_num(0.0)).flatten(1)[:, :length]
        rounded = torch.floor(sizes + rows.context.uniform("levels", vectors)).clamp(max=self._most)
        return {"scales": norms.squeeze(2), "levels": vectors.sign() * rounded}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """Levels times norms."""
        levels = messages["levels"]
        sizes = torch.tensor(self._buckets(levels.shape[1]), device=levels.device)
        return messages["scales"].repeat_interleave(sizes, dim=1) * (levels / self._most)

    @property
    def _most(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def _buckets(self, length: int) -> list[int]:
        width = min(self.bucket, length)
        return [min(width, length - begin) for begin in range(0, length, width)]
