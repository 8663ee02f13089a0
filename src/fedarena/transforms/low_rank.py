"""PowerSGD. Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression …", NeurIPS 2019.

A matrix M of the update (a convolution: with a row per output channel) is sent as two narrow ones, by one step of a
power iteration: P = M Q, with orthonormal columns made of it; Q = Mᵀ P; the server sees P Qᵀ = P Pᵀ M. Q is kept for
the client's next job, where it is a better start than chance (warm start), and so is the error. It is a projection:
|M - P Pᵀ M|² = |M|² - |Pᵀ M|². In the paper, workers average P before they compute Q; clients cannot wait for each
other, so each has its own. Vectors, and matrices that are no larger than P and Q, are sent as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.models.keyed_random import keyed_normal
from fedarena.train import Groups
from fedarena.transforms.compressor import Compressor, compressor
from fedarena.transforms.encodings import Message, Plain
from fedarena.transforms.rows import Rows

_START = "start"


@compressor("low_rank")
class LowRank(Compressor):
    """Sends every matrix of an update as the product of two with `rank` columns.

    With `error_feedback`, a client keeps the difference, and adds it to its next update.
    """

    def __init__(self, *, rank: int = 2, error_feedback: bool = True):
        if rank < 1:
            raise BadInputError(f"low_rank.rank must be at least 1, not {rank}")
        self.rank, self.error_feedback = rank, error_feedback

    def check(self, form: Tensors) -> None:
        """Some matrix must be worth it."""
        if not any(self._is_narrowed(t) for t in form.values()):
            raise BadInputError(
                f"low_rank.rank is {self.rank}, with which no matrix of this model gets smaller; choose a lower rank, "
                "or another compressor"
            )

    def encoding(self, form: Tensors) -> Plain:
        """Both factors of every matrix, and what is sent as it is."""
        parts: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for name, t in form.items():
            if self._is_narrowed(t):
                rows, columns = t.flatten(1).shape
                parts[f"{name}:left"] = ((rows, self.rank), t.dtype)
                parts[f"{name}:right"] = ((columns, self.rank), t.dtype)
            else:
                parts[name] = (tuple(t.shape), t.dtype)
        return Plain(parts)

    def memory(self, form: Tensors) -> Groups:
        """Where the iteration starts: the same random numbers for everybody."""
        starts = {}
        for name, t in form.items():
            if self._is_narrowed(t):
                key = torch.tensor(streams.bits(0, f"low rank {name}", self.rank).astype("int64"), device=t.device)
                starts[name] = keyed_normal(key, t.new_empty(t.flatten(1).shape[1], self.rank))
        return {_START: starts} if starts else {}

    def compress(self, vectors: Tensor, rows: Rows, kept: Groups) -> tuple[Message, Groups]:
        """A step of the power iteration for every matrix."""
        message: Message = {}
        starts: Tensors = {}
        shapes = {name: t.shape[1:] for name, t in rows.update["params"].items()}
        pieces = torch.split(vectors, [shape.numel() for shape in shapes.values()], dim=1)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True):
            start = kept.get(_START, {}).get(name)
            if start is None:
                message[name] = piece.reshape(len(piece), *shape)
                continue
            matrices = piece.view(len(piece), shape[0], -1)
            left = torch.linalg.qr(matrices @ start).Q
            right = matrices.mT @ left
            message[f"{name}:left"], message[f"{name}:right"] = left, right
            # Nothing can start from nothing.
            is_useful = right.flatten(1).any(1).view(-1, 1, 1)
            starts[name] = torch.where(is_useful, right, start)
        return message, {_START: starts} if starts else {}

    def restore(self, messages: Message, form: Tensors) -> Tensor:
        """The products."""
        each = [
            messages[f"{name}:left"] @ messages[f"{name}:right"].mT if self._is_narrowed(t) else messages[name]
            for name, t in form.items()
        ]
        return torch.cat([t.reshape(len(t), -1) for t in each], dim=1)

    def values_left(self, values: int, form: Tensors) -> int:
        """A product of matrices has no zeros to speak of."""
        return sum(t.numel() for t in form.values())

    def _is_narrowed(self, t: Tensor) -> bool:
        if t.dim() < 2:
            return False
        rows, columns = t.flatten(1).shape
        return self.rank * (rows + columns) < rows * columns
