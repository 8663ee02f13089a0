"""Models of text: they predict the next token at every position of a sequence, or one label from its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.models.blocks import end_of_text, is_read_forward
from fedarena.models.spec import DataSpec
from fedarena.models.word_vectors import VectorsFile, known_vectors, with_vectors
from fedarena.models.zoo import MODELS, at_least_one, require


class WindowModel(nn.Module):
    """Predicts from the last `context` tokens with one hidden layer (Bengio et al., 2003): matrix products only."""

    def __init__(self, spec: DataSpec, context: int, embedding: int, hidden: int):
        super().__init__()
        self.context, self.only_end = context, spec.kind != "next_token"
        self.embed = nn.Embedding(spec.vocabulary, embedding)
        self.window = nn.Linear(context * embedding, hidden)
        self.output = nn.Linear(hidden, spec.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores ``[sequences, length, classes]``, where position i sees tokens up to i, or those of the end alone."""
        if self.only_end:
            end = F.pad(self.embed(tokens[..., -self.context :]), (0, 0, max(self.context - tokens.shape[-1], 0), 0))
            scores: Tensor = self.output(torch.relu(self.window(end.flatten(-2))))
            return scores
        faster = _FASTER_WINDOWS.get()
        hidden = None if faster is None else faster(tokens, self)
        logits: Tensor = self.output(torch.relu(self._hidden(tokens) if hidden is None else hidden))
        return logits

    def _hidden(self, tokens: Tensor) -> Tensor:
        embedded = F.pad(self.embed(tokens), (0, 0, self.context - 1, 0))
        length = tokens.shape[-1]
        windows = torch.cat([embedded[..., i : i + length, :] for i in range(self.context)], -1)
        hidden: Tensor = self.window(windows)
        return hidden


@MODELS.register("char_mlp")
def char_mlp(
    spec: DataSpec,
    *,
    context: int = 8,
    embedding: int = 16,
    hidden: int = 128,
    vectors: VectorsFile = None,
    freeze_vectors: bool = False,
) -> nn.Module:
    """Embeds the last `context` characters, scores the next one with a hidden layer; trains in minutes on a CPU.

    With `vectors`, a file of pretrained ones, the embedding is as wide as these.
    """
    require(is_read_forward(spec), "char_mlp", "a federation of text", spec)
    at_least_one(context=context, embedding=embedding, hidden=hidden)
    known = known_vectors(spec, vectors, freeze_vectors)
    model = WindowModel(spec, context, known.width if known else embedding, hidden)
    return with_vectors(model, model.embed, known, freeze_vectors)


class LSTMLayer(nn.Module):
    """A long short-term memory layer written as matrix products, which lets many clients' layers run as one."""

    def __init__(self, inputs: int, hidden: int):
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(inputs, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Hidden states ``[sequences, length, hidden]`` for ``[sequences, length, inputs]``, from a zero state."""
        faster = _FASTER_LSTM.get()
        states = None if faster is None else faster(x, self)
        return self._one_after_the_other(x) if states is None else states

    def _one_after_the_other(self, x: Tensor) -> Tensor:
        projected = self.input(x)  # all positions at once; only the recurrence is sequential
        hidden = cell = projected.new_zeros(projected.shape[0], self.hidden)
        states = []
        for position in projected.unbind(1):
            gates = position + self.recurrent(hidden)
            enter, forget, candidate, leave = gates.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
            hidden = torch.sigmoid(leave) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, 1)


# They give None where they do not know better.
FasterLSTM = Callable[[Tensor, LSTMLayer], Tensor | None]
FasterWindows = Callable[[Tensor, WindowModel], Tensor | None]
_FASTER_LSTM: ContextVar[FasterLSTM | None] = ContextVar("a faster way for LSTM layers", default=None)
_FASTER_WINDOWS: ContextVar[FasterWindows | None] = ContextVar("a faster way for windows of tokens", default=None)


def layers_are_replaced() -> bool:
    """Whether an engine computes recurrent layers itself."""
    return _FASTER_LSTM.get() is not None


@contextmanager
def layers_by(faster_lstm: FasterLSTM, faster_windows: FasterWindows) -> Iterator[None]:
    """Within the block, an engine computes what LSTM layers put out, and what hidden layers make of windows."""
    lstm_token, windows_token = _FASTER_LSTM.set(faster_lstm), _FASTER_WINDOWS.set(faster_windows)
    try:
        yield
    finally:
        _FASTER_LSTM.reset(lstm_token)
        _FASTER_WINDOWS.reset(windows_token)


@MODELS.register("lstm")
def lstm(
    spec: DataSpec,
    *,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    vectors: VectorsFile = None,
    freeze_vectors: bool = False,
) -> nn.Module:
    """LEAF's model for Shakespeare: embedding 8, two LSTM layers of 256, output scored against the vocabulary.

    With `vectors`, a file of pretrained ones, the embedding is as wide as these.
    """
    require(is_read_forward(spec), "lstm", "a federation of text", spec)
    at_least_one(embedding=embedding, hidden=hidden, layers=layers)
    known = known_vectors(spec, vectors, freeze_vectors)
    widths = [known.width if known else embedding] + [hidden] * layers
    stack = [LSTMLayer(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    embed = nn.Embedding(spec.vocabulary, widths[0])
    model = nn.Sequential(embed, *stack, *end_of_text(spec), nn.Linear(hidden, spec.classes))
    return with_vectors(model, embed, known, freeze_vectors)
