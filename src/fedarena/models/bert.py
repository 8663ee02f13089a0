"""BERT (Devlin et al., NAACL 2019) in small sizes, by default BERT-Tiny (Turc et al., 2019).

It reads texts with a label, or texts of which some tokens are hidden (the task `masked_token`).

Parameters have the names of Hugging Face's library, so that its files are weights to start from. Here texts have their
padding in front: positions are counted from a text's first token, which is the one that the last layers read.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.models.blocks import check_dropout, check_heads, is_labelled_text, some_dropout
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require

EPSILON = 1e-12  # of the normalization in published BERTs
_TOKEN_TYPES = 2  # first and second sentence; here there is no second


class _Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.dense(x)
        return states


class _AddedAndNormalized(nn.Module):
    """A linear layer whose outputs are added to something, and all of it normalized."""

    adapted_behind = ("dense",)  # see `fedarena.models.adaptation.adapter`

    def __init__(self, inputs: int, width: int, dropout: float):
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.dropout = nn.Sequential(*some_dropout(dropout))
        self.LayerNorm = nn.LayerNorm(width, EPSILON)

    def forward(self, states: Tensor, added_to: Tensor) -> Tensor:
        normalized: Tensor = self.LayerNorm(added_to + self.dropout(self.dense(states)))
        return normalized


def attended(queries: Tensor, keys: Tensor, values: Tensor, is_padding: Tensor, dropout: nn.Module) -> Tensor:
    """What tokens gather from all that are no padding; parts are ``[texts, heads, length, width]``."""
    scores = queries @ keys.transpose(-2, -1) / sqrt(queries.shape[-1])
    scores = scores.masked_fill(is_padding[..., None, None, :], torch.finfo(scores.dtype).min)
    gathered: Tensor = (dropout(scores.softmax(-1)) @ values).transpose(-3, -2).flatten(-2)
    return gathered


def numbers_in_text(is_padding: Tensor) -> Tensor:
    """The number of every token in its text, from 1."""
    return (~is_padding).cumsum(-1)


def of_first_token(states: Tensor, number: Tensor, is_padding: Tensor) -> Tensor:
    """The states of the first token of every text, ``[texts, width]``."""
    is_first = (number == 1) & ~is_padding
    first: Tensor = (states * is_first[..., None]).sum(-2)
    return first


class _SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Sequential(*some_dropout(dropout))

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        queries, keys, values = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in (self.query, self.key, self.value)
        )
        return attended(queries, keys, values, is_padding, self.dropout)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.self = _SelfAttention(width, heads, dropout)
        self.output = _AddedAndNormalized(width, width, dropout)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        attended: Tensor = self.output(self.self(x, is_padding), x)
        return attended


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attention = _Attention(width, heads, dropout)
        self.intermediate = _Dense(width, hidden)
        self.output = _AddedAndNormalized(hidden, width, dropout)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        x = self.attention(x, is_padding)
        states: Tensor = self.output(nn.functional.gelu(self.intermediate(x)), x)
        return states


class Embeddings(nn.Module):
    """The sum of learned vectors for the token, for where it stands, and for the sentence it is in, normalized."""

    def __init__(self, vocabulary: int, positions: int, width: int, dropout: float):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(_TOKEN_TYPES, width)
        self.LayerNorm = nn.LayerNorm(width, EPSILON)
        self.dropout = nn.Sequential(*some_dropout(dropout))

    def forward(self, tokens: Tensor, place: Tensor) -> Tensor:
        """States ``[texts, length, width]`` of tokens at these places of their texts."""
        states = self.word_embeddings(tokens) + self.position_embeddings(place) + self.token_type_embeddings.weight[0]
        embedded: Tensor = self.dropout(self.LayerNorm(states))
        return embedded


class _Encoder(nn.Module):
    def __init__(self, layers: Iterable[_Layer]):
        super().__init__()
        self.layer = nn.ModuleList(layers)

    def forward(self, states: Tensor, is_padding: Tensor) -> Tensor:
        for layer in self.layer:
            states = layer(states, is_padding)
        return states


class _Body(nn.Module):
    """All but the last layer."""

    def __init__(self, embeddings: Embeddings, encoder: _Encoder, pooler: _Dense | None):
        super().__init__()
        self.embeddings, self.encoder, self.pooler = embeddings, encoder, pooler

    def forward(self, tokens: Tensor, is_padding: Tensor) -> Tensor:
        """What is read from the first token of every text, ``[texts, width]``; without a pooler, from every token."""
        number = numbers_in_text(is_padding)
        states: Tensor = self.encoder(self.embeddings(tokens, (number - 1).clamp(min=0)), is_padding)
        if self.pooler is None:
            return states
        return torch.tanh(self.pooler(of_first_token(states, number, is_padding)))


class _Transform(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, width), nn.LayerNorm(width, EPSILON)

    def forward(self, states: Tensor) -> Tensor:
        transformed: Tensor = self.LayerNorm(nn.functional.gelu(self.dense(states)))
        return transformed


class _Predictions(nn.Module):
    """Scores of all tokens by how well their embeddings match."""

    def __init__(self, width: int, tokens: int):
        super().__init__()
        self.bias, self.transform = nn.Parameter(torch.zeros(tokens)), _Transform(width)

    def forward(self, states: Tensor, vectors: Tensor) -> Tensor:
        matched: Tensor = self.transform(states) @ vectors.transpose(-2, -1)
        return matched + self.bias


class _Heads(nn.Module):
    """What Hugging Face calls the part that predicts tokens."""

    def __init__(self, width: int, tokens: int):
        super().__init__()
        self.predictions = _Predictions(width, tokens)


class Bert(nn.Module):
    """Scores for every class of a text, or for every token at every place of it.

    What they are made of is called as in Hugging Face's library.
    """

    expects_weights = True  # it is meant to be pretrained, which those should know who train it from scratch

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        padding: int | None,
        *,
        layers: int,
        heads: int,
        width: int,
        positions: int,
        dropout: float,
        masked: bool = False,
    ):
        super().__init__()
        self.padding, self.classes = padding, classes
        self.bert = _Body(
            Embeddings(vocabulary, positions, width, dropout),
            _Encoder(_Layer(width, heads, 4 * width, dropout) for _ in range(layers)),
            None if masked else _Dense(width, width),
        )
        self.cls = _Heads(width, vocabulary) if masked else None
        self.dropout = nn.Sequential(*some_dropout(dropout))
        self.classifier = None if masked else nn.Linear(width, classes)
        draw_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``[texts, classes]`` or ``[texts, length, tokens]`` of ``[texts, length]`` tokens."""
        states = self.bert(tokens, where_padding(tokens, self.padding))
        if self.cls is not None:
            matched: Tensor = self.cls.predictions(states, self.bert.embeddings.word_embeddings.weight)
            return matched[..., : self.classes]  # a token that stands for hidden ones is never right
        assert self.classifier is not None
        scores: Tensor = self.classifier(self.dropout(states))
        return scores


def draw_weights(model: nn.Module) -> None:
    """First weights as published BERTs had them."""
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)


def where_padding(tokens: Tensor, padding: int | None) -> Tensor:
    """Which tokens are padding."""
    return torch.zeros_like(tokens, dtype=torch.bool) if padding is None else tokens == padding


def check_positions(spec: DataSpec, positions: int) -> None:
    """Refuses texts with more tokens than there are positions for."""
    if spec.input_shape[0] > positions:
        raise BadInputError(f"model.positions is {positions}, but texts have up to {spec.input_shape[0]} tokens")


@MODELS.register("bert_tiny")
def bert_tiny(
    spec: DataSpec,
    *,
    layers: int = 2,
    heads: int = 2,
    width: int = 128,
    positions: int = 512,
    dropout: float = 0.1,
) -> nn.Module:
    """BERT-Tiny, or another size of BERT: `layers` of `heads` heads and `width` features, for up to `positions` tokens.

    `dropout` is the share that is dropped wherever BERT does: of embeddings, of attention, after both parts of every
    layer, and before the last one. It starts from scratch unless the run's `weights` name a file of a pretrained one in
    Hugging Face's layout; then the federation should be made with its vocabulary.
    """
    fits = spec.kind == "masked_token" or is_labelled_text(spec)
    require(fits, "bert_tiny", "whole texts, or the task masked_token", spec)
    at_least_one(layers=layers, heads=heads, width=width, positions=positions)
    check_heads(width, heads)
    check_dropout(dropout)
    check_positions(spec, positions)
    return Bert(
        spec.vocabulary,
        spec.classes,
        spec.padding,
        layers=layers,
        heads=heads,
        width=width,
        positions=positions,
        dropout=dropout,
        masked=spec.kind == "masked_token",
    )
