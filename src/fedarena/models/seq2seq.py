"""Translation by an encoder and a decoder that attends to it (Bahdanau et al., ICLR 2015; Luong et al., EMNLP 2015)."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from fedarena.models.gru import GRULayer
from fedarena.models.spec import DataSpec
from fedarena.models.zoo import MODELS, at_least_one, require


class EncoderDecoder(nn.Module):
    """A GRU reads the text in both directions, another one writes the translation and looks at the text meanwhile."""

    def __init__(self, spec: DataSpec, embedding: int, hidden: int):
        super().__init__()
        self.padding = spec.padding
        self.source, self.target = nn.Embedding(spec.vocabulary, embedding), nn.Embedding(spec.classes, embedding)
        self.encoder = GRULayer(embedding, hidden, both_directions=True)
        self.decoder = GRULayer(embedding, hidden)
        self.queries, self.keys = nn.Linear(hidden, hidden, bias=False), nn.Linear(2 * hidden, hidden, bias=False)
        self.together = nn.Linear(3 * hidden, hidden)
        self.output = nn.Linear(hidden, spec.classes)

    def forward(self, text: Tensor, translated: Tensor) -> Tensor:
        """Scores ``[samples, length, tokens]`` of what comes behind each of the tokens that are `translated`."""
        read, written = self.encoder(self.source(text)), self.decoder(self.target(translated))
        queries = self.queries(written)
        scores = queries @ self.keys(read).transpose(-2, -1) / sqrt(queries.shape[-1])
        if self.padding is not None:
            is_padding = (text == self.padding).unsqueeze(-2)
            scores = scores.masked_fill(is_padding, torch.finfo(scores.dtype).min)
        seen = scores.softmax(-1) @ read
        logits: Tensor = self.output(torch.tanh(self.together(torch.cat([written, seen], -1))))
        return logits


@MODELS.register("seq2seq")
def seq2seq(spec: DataSpec, *, embedding: int = 64, hidden: int = 128) -> nn.Module:
    """An encoder and a decoder for translation: GRUs of `hidden` features, with attention, and an `embedding` for each.

    Both languages have a vocabulary of their own.
    """
    require(spec.kind == "translation", "seq2seq", "texts with their translations", spec)
    at_least_one(embedding=embedding, hidden=hidden)
    return EncoderDecoder(spec, embedding, hidden)
