"""What models share: the end of a text, and what transformers are made of.

Transformers are those of Vaswani et al. (NeurIPS 2017), normalized before each part as GPT-2 and ViT are.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec


class LastPosition(nn.Module):
    """The states of a text's end, which have seen all of it."""

    def forward(self, states: Tensor) -> Tensor:
        """``[sequences, width]`` of ``[sequences, length, width]``."""
        return states[..., -1, :]


def is_labelled_text(spec: DataSpec) -> bool:
    """Whether a sample is a whole text with labels or numbers."""
    return spec.is_text and spec.kind not in ("next_token", "masked_token", "translation")


def is_read_forward(spec: DataSpec) -> bool:
    """Whether a sample is a text of which something is predicted that comes behind: labels, or the next tokens."""
    return spec.kind == "next_token" or is_labelled_text(spec)


def end_of_text(spec: DataSpec) -> list[nn.Module]:
    """A layer that keeps the end alone, if a whole text has one label."""
    return [LastPosition()] if spec.kind != "next_token" else []


class Attention(nn.Module):
    """Every position attends to all, or if `causal`, to itself and those before it.

    It is written as matrix products, for many clients at once.
    """

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.queries, self.keys, self.values, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers, ``[sequences, length, width]`` as `x`."""
        queries, keys, values = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in (self.queries, self.keys, self.values)
        )
        scores = queries @ keys.transpose(-2, -1) / sqrt(queries.shape[-1])
        if self.causal:
            position = torch.arange(x.shape[-2], device=x.device)
            scores = scores.masked_fill(position > position[:, None], -torch.inf)
        gathered = (scores.softmax(-1) @ values).transpose(-3, -2).flatten(-2)
        result: Tensor = self.output(gathered)
        return result


class Block(nn.Module):
    """Attention and a position-wise network of `hidden` features, each added to what goes in."""

    adapted_behind = ("attention", "network")  # see `fedarena.models.adaptation.adapter`

    def __init__(
        self, width: int, heads: int, hidden: int, *, causal: bool, dropout: float = 0.0, epsilon: float = 1e-5
    ):
        super().__init__()
        self.attention = nn.Sequential(
            nn.LayerNorm(width, epsilon), Attention(width, heads, causal), *some_dropout(dropout)
        )
        self.network = nn.Sequential(
            nn.LayerNorm(width, epsilon),
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Linear(hidden, width),
            *some_dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The next states of all positions."""
        x = x + self.attention(x)
        states: Tensor = x + self.network(x)
        return states


def some_dropout(share: float) -> list[nn.Module]:
    """A layer, if there is anything to drop."""
    return [nn.Dropout(share)] if share else []


def followed_by_dropout(layer: nn.Module, share: float) -> nn.Module:
    """A layer without parameters, and dropout behind it in the same place, so that no other layer changes its name."""
    return nn.Sequential(layer, nn.Dropout(share)) if share else layer


def check_heads(width: int, heads: int) -> None:
    """Refuses a width that heads cannot share equally."""
    if width % heads:
        raise BadInputError(f"model.width must be a multiple of model.heads, but {width} is not one of {heads}")


def check_dropout(share: float) -> None:
    """Refuses what is no share that leaves something."""
    if not 0 <= share < 1:
        raise BadInputError(f"model.dropout must be at least 0 and below 1, not {share:g}")
