"""A small causal transformer (Vaswani et al., NeurIPS 2017), normalized before each part as GPT-2 is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import Block, check_dropout, check_heads, end_of_text, is_read_forward, some_dropout
from fedarena.models.spec import DataSpec
from fedarena.models.word_vectors import VectorsFile, known_vectors, with_vectors
from fedarena.models.zoo import MODELS, at_least_one, require


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


@MODELS.register("transformer")
def transformer(
    spec: DataSpec,
    *,
    layers: int = 2,
    heads: int = 4,
    width: int = 128,
    dropout: float = 0.0,
    vectors: VectorsFile = None,
    freeze_vectors: bool = False,
) -> nn.Module:
    """A causal transformer over characters or words: `layers` blocks of `heads` heads and `width` features.

    `dropout` is the share of features that is dropped after the embedding and after both parts of every block.
    Pretrained `vectors` of tokens must have `width` numbers.
    """
    require(is_read_forward(spec), "transformer", "a federation of text", spec)
    at_least_one(layers=layers, heads=heads, width=width)
    check_heads(width, heads)
    check_dropout(dropout)
    known = known_vectors(spec, vectors, freeze_vectors)
    if known is not None and known.width != width:
        raise BadInputError(f"model.width is {width}, but the vectors in {known.path} have {known.width} numbers")
    embed = TokenAndPosition(spec.vocabulary, spec.input_shape[0], width)
    model = nn.Sequential(
        embed,
        *some_dropout(dropout),
        *(Block(width, heads, 4 * width, causal=True, dropout=dropout) for _ in range(layers)),
        *end_of_text(spec),
        nn.LayerNorm(width),
        nn.Linear(width, spec.classes),
    )
    return with_vectors(model, embed.token, known, freeze_vectors)
