"""A dense layer on windows of embedded tokens, without the windows.

What a token adds to the layer depends on which token it is and on its place in the window alone. Where there are fewer
kinds of tokens than positions, it pays to compute that once for every kind and place: a small table, of which every
position adds up as many rows as its window has places. The gradient of the table is the sum of the gradients of the
positions that used its rows, and those of the embedding and of the layer are small products with it. It is the same sum
as that of the products of windows, in another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.train.operations import Operation, Stacked, WithoutGradient
from fedarena.train.wide_products import products_of_lanes

_POSITIONS_PER_KIND = 2  # of tokens, from which on tables take less time


def suits_tables(tokens: Tensor, embedding: Tensor) -> bool:
    """Whether positions ``[samples, length]`` are enough for a table, on a CPU: a GPU would not add up in order."""
    if tokens.dim() != 2 or tokens.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
        return False
    return tokens.numel() >= _POSITIONS_PER_KIND * len(embedding) and embedding.is_floating_point()


def window_sums(embedding: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    """The layer's outputs ``[samples, length, outputs]``; a window ends at its position, and before the first is 0."""
    lanes = (t.unsqueeze(0) for t in (embedding, weight, bias, tokens))
    (sums,) = _WindowSums.apply(*lanes)  # type: ignore[no-untyped-call]
    return sums[0]  # type: ignore[no-any-return]


def _rows_of_table(tokens: Tensor, kinds: int, places: int) -> Tensor:
    """Which rows every position adds up, ``[positions, places]``; the last row is that of no token."""
    if int(tokens.min()) < 0 or int(tokens.max()) >= kinds:
        raise IndexError("index out of range in self")  # as torch's embedding says
    lanes = tokens.size(0)
    first = torch.arange(lanes, device=tokens.device).view(-1, 1, 1) * kinds
    none = lanes * kinds * places
    rows = F.pad((tokens + first) * places, [places - 1, 0], value=float(none)).unfold(2, places, 1)
    return (rows + torch.arange(places, device=tokens.device)).clamp_max(none).reshape(-1, places)


def _by_place(weight: Tensor, width: int) -> Tensor:
    """A layer's weights as ``[lanes, width, places * outputs]``."""
    lanes, outputs = weight.size(0), weight.size(1)
    places = weight.size(2) // width
    return weight.view(lanes, outputs, places, width).permute(0, 3, 2, 1).reshape(lanes, width, places * outputs)


def _sums(embedding: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    lanes, kinds, width, outputs = embedding.size(0), embedding.size(1), embedding.size(2), weight.size(1)
    places = weight.size(2) // width
    table = torch.empty([lanes * kinds * places + 1, outputs], dtype=weight.dtype, device=weight.device)
    table[:-1].view(lanes, kinds, places * outputs).copy_(products_of_lanes(embedding, _by_place(weight, width)))
    table[-1].zero_()
    sums = F.embedding_bag(_rows_of_table(tokens, kinds, places), table, mode="sum")
    return sums.view(lanes, tokens.size(1), tokens.size(2), outputs) + bias.view(lanes, 1, 1, outputs)


def _sums_back(grad: Tensor, embedding: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the embedding, of the layer's weights and of its biases."""
    lanes, kinds, width, outputs = embedding.size(0), embedding.size(1), embedding.size(2), weight.size(1)
    places = weight.size(2) // width
    of_sums = grad.reshape(-1, outputs)
    table = torch.zeros([lanes * kinds * places + 1, outputs], dtype=grad.dtype, device=grad.device)
    for rows in _rows_of_table(tokens, kinds, places).unbind(1):
        table.index_add_(0, rows, of_sums)
    of_table = table[:-1].view(lanes, kinds, places * outputs)
    of_embedding = products_of_lanes(of_table, _by_place(weight, width).transpose(1, 2))
    of_weight = products_of_lanes(embedding.transpose(1, 2), of_table).view(lanes, width, places, outputs)
    of_bias = grad.reshape(lanes, -1, outputs).sum(1)
    return of_embedding, of_weight.permute(0, 3, 2, 1).reshape(lanes, outputs, places * width), of_bias


def _forms(embedding: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor) -> Tensor:
    return weight.new_empty(*tokens.shape, weight.shape[1])


def _forms_back(grad: Tensor, embedding: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    forms = (embedding.shape, weight.shape, weight.shape[:2])
    of_embedding, of_weight, of_bias = (weight.new_empty(form) for form in forms)
    return of_embedding, of_weight, of_bias


_SUMS = Operation("window_sums", _sums, _forms)
_SUMS_BACK = Operation("window_sums_back", _sums_back, _forms_back)


class _WindowSums(Stacked):
    samples_at, results_at = (None,) * 4, (0,)

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """See `window_sums`."""
        return (_SUMS(*tensors),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keeps what the gradient needs."""
        embedding, weight, _, tokens = inputs
        ctx.save_for_backward(embedding, weight, tokens)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """See `_sums_back`."""
        found: tuple[Tensor, ...] = _WindowSumsBack.apply(grad, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return *found, None


class _WindowSumsBack(WithoutGradient):
    samples_at, results_at = (None,) * 4, (0,) * 3

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """See `_sums_back`."""
        found: tuple[Tensor, ...] = _SUMS_BACK(*tensors)
        return found
