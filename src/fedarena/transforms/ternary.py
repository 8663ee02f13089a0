"""TernGrad. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed …", NeurIPS 2017.

Of every tensor v of the model, a client sends m = max |v| and, for every coordinate, m sgn(v_i) with a chance of
|v_i| / m and otherwise 0. It is unbiased, with a variance of Σ |v_i| (m - |v_i|).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import Groups
from fedarena.transforms.compressor import compressor
from fedarena.transforms.encodings import Levels, Message
from fedarena.transforms.quantizer import Quantizer
from fedarena.transforms.rows import Rows
from fedarena.transforms.sign import scaled_tensors
from fedarena.transforms.wire import common_type


@compressor("ternary")
class Ternary(Quantizer):
    """Rounds every coordinate at random to 0 or to plus or minus the largest of its tensor.

    With `clip_deviations` (2.5 in the paper), coordinates that are more standard deviations of their tensor away from 0
    are brought to that first: fewer zeros, but no longer unbiased.
    """

    def __init__(self, *, clip_deviations: float | None = None):
        if clip_deviations is not None and not clip_deviations > 0:
            raise BadInputError(f"ternary.clip_deviations must be above 0, not {clip_deviations}")
        self.clip_deviations = clip_deviations

    def encoding(self, form: Tensors) -> Levels:
        """A size for every tensor, and -1, 0 or 1 for every coordinate."""
        return Levels([t.numel() for t in form.values()], 1, common_type(form))

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """Largest sizes, and random signs or zeros."""
        numbers = [t[0].numel() for t in rows.update["params"].values()]
        each = [self._clipped(t) for t in torch.split(vectors, numbers, dim=1)]
        largest = torch.stack([t.abs().amax(1) for t in each], dim=1)
        whole = torch.cat(each, dim=1)
        scales = largest.repeat_interleave(torch.tensor(numbers, device=vectors.device), dim=1)
        is_sent = rows.context.uniform("levels", whole) * scales < whole.abs()
        return {"scales": largest, "levels": whole.sign() * is_sent}, {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """Signs times sizes."""
        return scaled_tensors(messages, form)

    def _clipped(self, tensor: Tensor) -> Tensor:
        if self.clip_deviations is None:
            return tensor
        bound = self.clip_deviations * tensor.std(1, correction=0, keepdim=True)
        return tensor.clamp(-bound, bound)
