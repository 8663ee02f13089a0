"""ALBERT (Lan et al., "A Lite BERT", ICLR 2020): all layers share their parameters, and embeddings are narrow.

Parameters have the names of Hugging Face's library, so that its files are weights to start from. It reads texts with a
label, or texts of which some tokens are hidden (the task `masked_token`). Padding is in front, as in `bert_tiny`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedarena.models.bert import (
    EPSILON,
    Embeddings,
    attended,
    check_positions,
    draw_weights,
    numbers_in_text,
    of_first_token,
    where_padding,
)
from fedarena.models.blocks import check_dropout, check_heads, is_labelled_text, some_dropout
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


def _gelu(x: Tensor) -> Tensor:
    """As published ALBERTs were trained with."""
    return nn.functional.gelu(x, approximate="tanh")


class _Attention(nn.Module):
    adapted_behind = ("dense",)  # see `fedarena.models.adaptation.adapter`

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Linear(width, width)
        self.LayerNorm = nn.LayerNorm(width, EPSILON)
        self.attention_dropout = nn.Sequential(*some_dropout(dropout))
        self.output_dropout = nn.Sequential(*some_dropout(dropout))

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        queries, keys, values = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for part in (self.query, self.key, self.value)
        )
        gathered = attended(queries, keys, values, is_padding, self.attention_dropout)
        states: Tensor = self.LayerNorm(x + self.output_dropout(self.dense(gathered)))
        return states


class _Layer(nn.Module):
    adapted_behind = ("ffn_output",)

    def __init__(self, width: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.attention = _Attention(width, heads, dropout)
        self.ffn, self.ffn_output = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.full_layer_layer_norm = nn.LayerNorm(width, EPSILON)

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        x = self.attention(x, is_padding)
        states: Tensor = self.full_layer_layer_norm(self.ffn_output(_gelu(self.ffn(x))) + x)
        return states


class _Group(nn.Module):
    """What Hugging Face calls a group of layers, of which there is one with one layer."""

    def __init__(self, layer: _Layer):
        super().__init__()
        self.albert_layers = nn.ModuleList([layer])


class _Encoder(nn.Module):
    def __init__(self, embedding: int, width: int, layer: _Layer, times: int):
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(embedding, width)
        self.albert_layer_groups = nn.ModuleList([_Group(layer)])
        self.times = times

    def forward(self, states: Tensor, is_padding: Tensor) -> Tensor:
        states = self.embedding_hidden_mapping_in(states)
        layer = self.get_submodule("albert_layer_groups.0.albert_layers.0")
        for _ in range(self.times):  # the same one again and again
            states = layer(states, is_padding)
        return states


class _Body(nn.Module):
    def __init__(self, embeddings: Embeddings, encoder: _Encoder, pooler: nn.Linear | None):
        super().__init__()
        self.embeddings, self.encoder, self.pooler = embeddings, encoder, pooler

    def forward(self, tokens: Tensor, number: Tensor, is_padding: Tensor) -> Tensor:
        states: Tensor = self.encoder(self.embeddings(tokens, (number - 1).clamp(min=0)), is_padding)
        return states


class _Predictions(nn.Module):
    """Scores of all tokens by how well their embeddings match."""

    def __init__(self, width: int, embedding: int, tokens: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(tokens))
        self.dense, self.LayerNorm = nn.Linear(width, embedding), nn.LayerNorm(embedding, EPSILON)

    def forward(self, states: Tensor, vectors: Tensor) -> Tensor:
        matched: Tensor = self.LayerNorm(_gelu(self.dense(states))) @ vectors.transpose(-2, -1)
        return matched + self.bias


class Albert(nn.Module):
    """Scores of every class of a text, or of every token at every place of it."""

    expects_weights = True  # it is meant to be pretrained, which those should know who train it from scratch

    def __init__(
        self,
        spec: DataSpec,
        *,
        layers: int,
        heads: int,
        width: int,
        embedding: int,
        hidden: int,
        positions: int,
        dropout: float,
    ):
        super().__init__()
        self.padding, self.classes, is_masked = spec.padding, spec.classes, spec.kind == "masked_token"
        self.albert = _Body(
            Embeddings(spec.vocabulary, positions, embedding, dropout),
            _Encoder(embedding, width, _Layer(width, heads, hidden, dropout), layers),
            None if is_masked else nn.Linear(width, width),
        )
        self.predictions = _Predictions(width, embedding, spec.vocabulary) if is_masked else None
        self.dropout = nn.Sequential(*some_dropout(dropout))
        self.classifier = None if is_masked else nn.Linear(width, spec.classes)
        draw_weights(self)

    @property
    def vocabulary(self) -> Tensor:
        """The vectors of all tokens."""
        return self.albert.embeddings.word_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``[texts, classes]`` or ``[texts, length, tokens]`` of ``[texts, length]`` tokens."""
        is_padding = where_padding(tokens, self.padding)
        number = numbers_in_text(is_padding)
        states = self.albert(tokens, number, is_padding)
        if self.predictions is not None:
            matched: Tensor = self.predictions(states, self.vocabulary)
            return matched[..., : self.classes]  # a token that stands for hidden ones is never right
        assert self.albert.pooler is not None
        assert self.classifier is not None
        first = torch.tanh(self.albert.pooler(of_first_token(states, number, is_padding)))
        scores: Tensor = self.classifier(self.dropout(first))
        return scores


@MODELS.register("albert")
def albert(
    spec: DataSpec,
    *,
    layers: int = 12,
    heads: int = 12,
    width: int = 768,
    embedding: int = 128,
    hidden: int = 3072,
    positions: int = 512,
    dropout: float = 0.0,
) -> nn.Module:
    """ALBERT, by default ALBERT-base: one layer that is passed `layers` times, of `heads` heads and `width` features.

    `embedding` is the width of tokens' vectors and `hidden` that of the network behind attention; texts have up to
    `positions` tokens. `dropout` is the share that is dropped of embeddings, of attention and before the last layer. It
    starts from scratch unless the run's `weights` name a file in Hugging Face's layout; then the federation should be
    made with its vocabulary.
    """
    fits = spec.kind == "masked_token" or is_labelled_text(spec)
    require(fits, "albert", "whole texts, or the task masked_token", spec)
    at_least_one(layers=layers, heads=heads, width=width, embedding=embedding, hidden=hidden, positions=positions)
    check_heads(width, heads)
    check_dropout(dropout)
    check_positions(spec, positions)
    return Albert(
        spec,
        layers=layers,
        heads=heads,
        width=width,
        embedding=embedding,
        hidden=hidden,
        positions=positions,
        dropout=dropout,
    )
