"""Random sparsification. Wangni et al., "Gradient Sparsification for Communication-Efficient …", NeurIPS 2018.

(Also Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, for the form with error feedback.) A client sends k
coordinates that chance chooses, another choice for every client and job. Where they are follows from the key of the
draw (8 bytes), so places need not be sent. Times length / k the result is unbiased, with a variance of
(length / k - 1) |u|²; with error feedback it is a contraction in the mean: E|c - sent|² = (1 - k / length) |c|².
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.models import Tensors
from fedarena.models.keyed_random import derived, random_bits
from fedarena.train import Groups
from fedarena.transforms.compressor import (
    USUAL_SHARE,
    Compressor,
    check_amount,
    check_fits,
    compressor,
    number_sent,
)
from fedarena.transforms.encodings import Message, Plain
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type, length_of


@compressor("random_k")
class RandomK(Compressor):
    """Sends a random `share` of an update's coordinates, or `k` of them, scaled up so that the mean is right.

    With `error_feedback` they are sent as they are instead, and a client keeps the others for its next update.
    """

    def __init__(self, *, share: float = USUAL_SHARE, k: int | None = None, error_feedback: bool = False):
        check_amount("random_k", share, k)
        self.share, self.k, self.error_feedback = share, k, error_feedback

    def check(self, form: Tensors) -> None:
        """There must be so many coordinates."""
        check_fits("random_k", self.k, form)

    def encoding(self, form: Tensors) -> Plain:
        """The key of the choice, and the values."""
        chosen = (self._count(length_of(form)),)
        return Plain({"key": ((), torch.int64), "values": (chosen, common_type(form))})

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """The values at places that follow from a key; places are for who has them already, and are not sent."""
        keys = derived(torch.as_tensor(rows.context.key, device=vectors.device), streams.purpose_bits("random k"))
        places = self._places(keys, vectors.shape[1])
        scale = 1.0 if self.error_feedback else vectors.shape[1] / places.shape[1]
        return {"key": keys, "values": scale * vectors.gather(1, places), "places": places}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """The values where they belong, zeros elsewhere."""
        values, places = messages["values"], messages.get("places")
        if places is None:
            places = self._places(messages["key"], length_of(form))
        return values.new_zeros(len(values), length_of(form)).scatter(1, places, values)

    def values_left(self, values: int, form: Tensors) -> int:
        """So many are sent, at most."""
        return min(values, self._count(length_of(form)))

    def _places(self, keys: Tensor, length: int) -> Tensor:
        """The places with the largest hashes, which are all different."""
        shape, count = torch.Size([length]), self._count(length)
        return torch.stack([torch.topk(random_bits(key, shape), count).indices for key in keys])

    def _count(self, coordinates: int) -> int:
        return number_sent(self.share, self.k, coordinates)
