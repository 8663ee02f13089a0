"""A small causal transformer (Vaswani et al., NeurIPS 2017), normalized before each part as GPT-2 is."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from fedarena.errors import BadInputError
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class CausalAttention(nn.Module):
    """Every position attends to itself and those before it; written as matrix products, for many clients at once."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """What each position gathers, ``[sequences, length, width]`` as `x`."""
        queries, keys, values = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in (self.queries, self.keys, self.values)
        )
        scores = queries @ keys.transpose(-2, -1) / sqrt(queries.shape[-1])
        position = torch.arange(x.shape[-2], device=x.device)
        scores = scores.masked_fill(position > position[:, None], -torch.inf)
        gathered = (scores.softmax(-1) @ values).transpose(-3, -2).flatten(-2)
        result: Tensor = self.output(gathered)
        return result


class Block(nn.Module):
    """Attention and a position-wise network of four times the width, each added to what goes in."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads), *_dropout(dropout))
        self.network = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            *_dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The next states of all positions."""
        x = x + self.attention(x)
        states: Tensor = x + self.network(x)
        return states


class TokenAndPosition(nn.Module):
    """The sum of learned vectors for the token and for where it stands."""

    def __init__(self, vocabulary: int, length: int, width: int):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """States ``[sequences, length, width]``."""
        states: Tensor = self.token(tokens) + self.position[: tokens.shape[-1]]
        return states


def _dropout(share: float) -> list[nn.Module]:
    return [nn.Dropout(share)] if share else []


@MODELS.register("transformer")
def transformer(
    spec: DataSpec, *, layers: int = 2, heads: int = 4, width: int = 128, dropout: float = 0.0
) -> nn.Module:
    """A causal transformer over characters or words: `layers` blocks of `heads` heads and `width` features.

    `dropout` is the share of features that is dropped after the embedding and after both parts of every block.
    """
    require(spec.kind == "next_token", "transformer", "a next-token federation", spec)
    at_least_one(layers=layers, heads=heads, width=width)
    if width % heads:
        raise BadInputError(f"model.width must be a multiple of model.heads, but {width} is not one of {heads}")
    if not 0 <= dropout < 1:
        raise BadInputError(f"model.dropout must be at least 0 and below 1, not {dropout:g}")
    return nn.Sequential(
        TokenAndPosition(spec.classes, spec.input_shape[0], width),
        *_dropout(dropout),
        *(Block(width, heads, dropout) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, spec.classes),
    )
