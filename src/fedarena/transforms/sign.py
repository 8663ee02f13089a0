"""Signs with their mean size. Karimireddy et al., "Error Feedback Fixes SignSGD and Other …", ICML 2019.

(Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", ICML 2018, for signs alone.) Of every
tensor v of the model, a client sends |v|₁ / d and the d signs, a bit each, and keeps the error. It is a contraction:
|v - sent|² ≤ (1 - |v|₁² / (d |v|²)) |v|². Coordinates that are zero stay zero and are not among the d.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import Compressor, compressor
from fedarena.transforms.encodings import Levels, Message
from fedarena.transforms.rows import Rows
from fedarena.transforms.wire import common_type


@compressor("sign")
class Sign(Compressor):
    """Sends the sign of every coordinate, and the mean size of those of every tensor.

    With `error_feedback`, a client keeps the difference, and adds it to its next update.
    """

    def __init__(self, *, error_feedback: bool = True):
        self.error_feedback = error_feedback

    def encoding(self, form: Tensors) -> Levels:
        """A size for every tensor, and a bit for every sign."""
        return Levels([t.numel() for t in form.values()], 1, common_type(form))

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """Mean sizes and signs."""
        each = torch.split(vectors, [t[0].numel() for t in rows.update["params"].values()], dim=1)
        means = [t.abs().sum(1) / (t != 0).sum(1).clamp(min=1) for t in each]
        return {"scales": torch.stack(means, dim=1), "levels": vectors.sign()}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """Signs times sizes."""
        return scaled_tensors(messages, form)


def scaled_tensors(messages: Message, form: Tensors) -> Tensor:
    """Levels times the scale of their tensor."""
    levels = messages["levels"]
    numbers = torch.tensor([t.numel() for t in form.values()], device=levels.device)
    return messages["scales"].repeat_interleave(numbers, dim=1) * levels
