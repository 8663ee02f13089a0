"""Top-k sparsification with error feedback. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.

(Also Aji, Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.) A client adds what it did not
send before to its update, sends the k coordinates of largest magnitude, and keeps the rest for its next job:
c = u + e;  sent = top_k(c);  e = c - sent. It is a contraction: |c - sent|² ≤ (1 - k / length) |c|².
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import (
    USUAL_SHARE,
    Compressor,
    check_amount,
    check_fits,
    compressor,
    number_sent,
)
from fedarena.transforms.encodings import Message, Values
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of


@compressor("top_k")
class TopK(Compressor):
    """Sends the `share` of an update's coordinates that are largest, or the `k` largest, and where they are.

    With `error_feedback`, a client keeps what it has not sent, and adds it to its next update.
    """

    def __init__(self, *, share: float = USUAL_SHARE, k: int | None = None, error_feedback: bool = True):
        check_amount("top_k", share, k)
        self.share, self.k, self.error_feedback = share, k, error_feedback

    def check(self, form: Tensors) -> None:
        """There must be so many coordinates."""
        check_fits("top_k", self.k, form)

    def encoding(self, form: Tensors) -> Values:
        """Where the largest are, and their values."""
        return Values(length_of(form), common_type(form))

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """The largest coordinates, zeros elsewhere."""
        largest = torch.topk(vectors.abs(), self._count(vectors.shape[1]), dim=1).indices
        return {"values": torch.zeros_like(vectors).scatter(1, largest, vectors.gather(1, largest))}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """The same."""
        return messages["values"]

    def values_left(self, values: int, form: Tensors) -> int:
        """So many are sent, at most."""
        return min(values, self._count(length_of(form)))

    def _count(self, coordinates: int) -> int:
        return number_sent(self.share, self.k, coordinates)
