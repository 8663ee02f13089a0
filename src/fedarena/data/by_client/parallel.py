"""Two texts that belong together, such as a sentence and its translation: one is to be told from the other.

They are read as one text with a mark between them, so that both have the same vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedarena.data.by_client.clients import Choices
from fedarena.data.by_client.texts import TextFiles, TextForm, build_texts
from fedarena.data.many_users.clients import ChosenTexts
from fedarena.data.registry import StoreBuild
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec
from fedarena.data.text.sequences import padded_in_front
from fedarena.data.text.words import SPECIAL, Vocabulary

BEGIN, END = "<to>", "<end>"


def pair(first: str, second: str) -> str:
    """Both texts, words separated by spaces, with marks.

    >>> pair("good morning", "bonjour")
    'good morning <to> bonjour <end>'
    """
    return " ".join(part for part in (first, BEGIN, second, END) if part)


def build_translations(
    build: StoreBuild,
    pairs: TextFiles,
    choices: Choices,
    vocabulary: int,
    length: int,
) -> None:
    """Telling the second text of pairs from the first; of both there are at most `length` words."""

    def samples(chosen: ChosenTexts, words: Vocabulary) -> tuple[dict[str, AnyArray], IntArray]:
        texts, rows = chosen.texts, chosen.rows
        tokens, lengths = texts.tokens_at(rows, words), texts.lengths[rows]
        begins = np.cumsum(lengths) - lengths
        marks = np.flatnonzero(tokens == words.names.index(BEGIN))
        of_row = marks[np.searchsorted(marks, begins)]  # words in texts never look like a mark
        x = padded_in_front(*_stretches(tokens, begins, of_row - begins), length)
        y = _padded_behind(*_stretches(tokens, of_row, begins + lengths - of_row), length + 1)
        return {"x": x, "y": y}, chosen.counts

    def columns(words: Vocabulary) -> dict[str, ColumnSpec]:
        return {
            "x": ColumnSpec(dtype=words.dtype, shape=(length,)),
            "y": ColumnSpec(dtype=words.dtype, shape=(length + 1,)),
        }

    build_texts(
        build,
        pairs,
        choices,
        vocabulary,
        TextForm(_task, columns, samples, change=_with_marks),
    )


def _task(words: Vocabulary) -> TaskSpec:
    """The task of translating, with the same words on both sides."""
    size = len(words.names)
    return TaskSpec(
        kind="translation",
        classes=size,
        tokens=size,
        padding=words.padding,
        unknown=words.unknown,
        label_names=words.names,
        token_names=words.names,
    )


def _with_marks(words: Vocabulary) -> Vocabulary:
    """A vocabulary that has the marks, instead of its rarest words if there is no room for more."""
    own = [word for word in words.names[len(SPECIAL) :] if word not in (BEGIN, END)]
    room = max(len(words.names) - len(SPECIAL) - 2, 0)
    return replace(words, names=(*SPECIAL, BEGIN, END, *own[:room]))


def _stretches(tokens: AnyArray, begins: IntArray, lengths: IntArray) -> tuple[AnyArray, IntArray]:
    """Some stretches of tokens one after the other, and how long each is."""
    before = np.cumsum(lengths) - lengths
    places = np.repeat(begins - before, lengths) + np.arange(lengths.sum())
    return tokens[places], lengths


def _padded_behind(tokens: AnyArray, lengths: IntArray, length: int) -> AnyArray:
    """Texts as rows of equal length, the first words of longer ones, shorter ones with padding behind."""
    rows = np.zeros((len(lengths), length), dtype=tokens.dtype)
    kept = np.minimum(lengths, length)
    row = np.repeat(np.arange(len(lengths)), kept)
    place = np.arange(len(row)) - np.repeat(np.cumsum(kept) - kept, kept)
    rows[row, place] = tokens[(np.cumsum(lengths) - lengths)[row] + place]
    return rows
