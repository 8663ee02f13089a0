"""Metrics of what is written down: how many characters or words would have to be changed to make it right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Metric, divided

_NO_CHARACTER = 0
_SPACE = " "
_MULTIPLIER = 0x5851F42D4C957F2D  # of the hash of a word; odd, so that no character is forgotten


@METRICS.register("character_error_rate")
class CharacterErrorRate(Metric):
    """Characters to insert, remove or replace, by those that are right; of all samples together."""

    predicts = ("transcripts",)
    info = MetricInfo("character_error_rate", "character error rate", higher_is_better=False, low=0.0)
    parts = ("errors", "length")

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """How many characters are wrong in every sample, and how many there are: ``[samples, 2]``."""
        said, is_said = heard_characters(outputs)
        return _errors(said, is_said, batch["y"])

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The quotient; NaN where nothing is said at all."""
        return divided(state[..., 0], state[..., 1])


@METRICS.register("word_error_rate")
class WordErrorRate(CharacterErrorRate):
    """Words to insert, remove or replace, by those that are right; of all samples together.

    Words are what is between spaces; where no character is a space, a whole transcript is one word.
    """

    info = MetricInfo("word_error_rate", "word error rate", higher_is_better=False, low=0.0)
    parts = ("errors", "words")

    def __init__(self, outputs: int = 1):
        super().__init__(outputs)
        self.space = -1  # the class that is a space

    def know_tokens(self, names: Sequence[str] | None) -> None:
        """Which character is a space."""
        self.space = names.index(_SPACE) if names is not None and _SPACE in names else -1

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """How many words are wrong in every sample, and how many there are: ``[samples, 2]``."""
        said, is_said = _words(*heard_characters(outputs), self.space)
        right, is_right = _words(batch["y"], batch["y"] != _NO_CHARACTER, self.space)
        return _errors(said, is_said, _pushed_together(right, is_right))


def heard_characters(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The best class of every moment, and at which a character begins: ``[samples, moments]``."""
    best = outputs.argmax(-1)
    before = F.pad(best[:, :-1], (1, 0), value=_NO_CHARACTER)
    return best, (best != _NO_CHARACTER) & (best != before)


def _words(characters: Tensor, there: Tensor, space: int) -> tuple[Tensor, Tensor]:
    """A number for every word, other than 0, and where one ends; characters count where they are `there`.

    There is one place more than characters, at which a last word ends.
    """
    word = torch.zeros_like(characters[:, 0])
    words, ends = [], []
    for character, is_there in zip(
        (*characters.unbind(-1), torch.full_like(word, space)),
        (*there.unbind(-1), torch.ones_like(word, dtype=torch.bool)),
        strict=True,
    ):
        is_space = is_there & (character == space)
        words.append(word)
        ends.append(is_space & (word != 0))
        longer = (word + character) * _MULTIPLIER | 1  # never 0
        word = torch.where(is_space, 0, torch.where(is_there, longer, word))
    return torch.stack(words, -1), torch.stack(ends, -1)


def _pushed_together(values: Tensor, there: Tensor) -> Tensor:
    """The values that are there, one after the other, with zeros behind them."""
    places = torch.arange(values.shape[-1], device=values.device)
    number = there.cumsum(-1) - 1
    belongs = there.unsqueeze(-2) & (number.unsqueeze(-2) == places.unsqueeze(-1))
    return torch.where(belongs, values.unsqueeze(-2), 0).sum(-1)


def _errors(said: Tensor, is_said: Tensor, right: Tensor) -> Tensor:
    """Levenshtein's distance of what is said from what is right, behind which there are zeros, and the latter's length.

    A row of distances from all beginnings of what is right changes with everything that is said. Insertions within a
    row depend on each other; less the place they are in, they are a running minimum.
    """
    places = torch.arange(right.shape[-1] + 1, device=right.device)
    row = places.expand(len(right), -1)
    for one, is_one in zip(said.unbind(-1), is_said.unbind(-1), strict=True):
        replaced = row[:, :-1] + (right != one.unsqueeze(-1)).long()
        other = torch.cat([row[:, :1] + 1, torch.minimum(row[:, 1:] + 1, replaced)], -1)
        other = (other - places).cummin(-1).values + places
        row = torch.where(is_one.unsqueeze(-1), other, row)
    length = (right != 0).sum(-1, keepdim=True)
    return torch.cat([row.gather(-1, length), length], -1)
