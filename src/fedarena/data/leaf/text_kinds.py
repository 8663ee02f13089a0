"""Text in LEAF's files: lines of characters (Shakespeare), and tweets (Sent140)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.leaf.kinds import Columns, Finished, Labels
from fedarena.data.leaf.samples import shown
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec
from fedarena.data.text.characters import LEAF_LETTERS, codes_of
from fedarena.data.text.sequences import PADDING, padded_in_front
from fedarena.data.text.words import SPLITTERS, Tokenizer, Vocabulary, WordCounts

_LAST_CODE = 0x10FFFF
_PADDING_CODE = _LAST_CODE + 1  # fills short lines while they are taken down
TWEET_FIELDS = 5  # id, date, query, user, text
# What people thought of something, as the files of Sentiment140 say it; neutral counts as bad in LEAF.
_POLARITIES = {0: 0, 2: 0, 4: 1}
_POLARITY_NAMES = ("negative", "positive")


class Characters:
    """Strings x, and the character y that comes next, as LEAF cuts Shakespeare: the next sample begins one later."""

    def __init__(self, first: Any, length: int | None):
        self._length = length or max(len(first), 1)
        self.gap = self._length
        self._has_padding = False
        self._is_label = np.zeros(_PADDING_CODE, dtype=bool)
        self.columns = {"x": ColumnSpec(dtype="uint32", shape=(self._length,)), "y": ColumnSpec(dtype="int64")}

    def take_down(self, lists: dict[str, Any]) -> Columns:
        """The codes of characters."""
        for text, label in zip(lists["x"], lists["y"], strict=True):
            if not isinstance(text, str) or len(text) > self._length:
                raise BadInputError(
                    f"x must be strings of at most {self._length} characters, as the first was, not {shown(text)}; "
                    "length says how many"
                )
            if not isinstance(label, str) or len(label) != 1:
                raise BadInputError(f"y must be one character, not {shown(label)}")
        x = np.full((len(lists["x"]), self._length), _PADDING_CODE, dtype=np.uint32)
        lengths = np.array([len(text) for text in lists["x"]], dtype=np.int64)
        # Padding stands in front, so that the last character is the last of the text.
        x[np.arange(self._length) >= self._length - lengths[:, None]] = codes_of("".join(lists["x"]))
        y = codes_of("".join(lists["y"])).astype(np.int64)
        self._has_padding |= bool((lengths < self._length).any())
        self._is_label[y] = True
        return {"x": x, "y": y}

    def finish(self, training: Callable[[str], IntArray]) -> Finished:
        """LEAF's alphabet where it has all labels, otherwise all labels and the characters of training."""
        labels = np.flatnonzero(self._is_label)
        letters = LEAF_LETTERS.names[: LEAF_LETTERS.unknown]
        if not set(map(chr, labels.tolist())) <= set(letters):
            inputs = np.flatnonzero(training("x")[:_PADDING_CODE])
            letters = tuple(map(chr, np.union1d(inputs, labels).tolist()))
        unknown = len(letters)
        names: tuple[str, ...] = (*letters, "<unknown>")
        token_of_code = np.full(_PADDING_CODE + 1, unknown, dtype=np.int64)
        token_of_code[[ord(letter) for letter in letters]] = np.arange(len(letters))
        padding = None
        if self._has_padding:
            padding = len(names)
            token_of_code[_PADDING_CODE] = padding
            names = (*names, "<padding>")
        dtype = "uint8" if len(names) <= 256 else "int32"
        task = TaskSpec(
            kind="classification",
            classes=max(len(letters), 2),
            label_names=letters if len(letters) >= 2 else None,
            tokens=len(names),
            token_names=names,
            padding=padding,
            unknown=unknown,
        )

        def to_tokens(columns: Columns) -> Columns:
            tokens: AnyArray = token_of_code[columns["x"]].astype(dtype)
            return {"x": tokens, "y": token_of_code[columns["y"]]}

        return Finished(task, {"x": ColumnSpec(dtype=dtype, shape=(self._length,)), "y": self.columns["y"]}, to_tokens)


class Tweets:
    """Texts as Sent140 has them, the last of five fields, or alone, or as words; and labels, or polarities 0 and 4."""

    gap = 0

    def __init__(self, first: Any, length: int, vocabulary: int, tokenizer: Tokenizer, classes: int | None):
        self._length, self._vocabulary = length, vocabulary
        self._split = SPLITTERS[tokenizer]
        self._are_tweets = _is_tweet(first)
        self._may_have_polarities = self._are_tweets and classes is None
        self._labels = Labels(classes)
        self._number_of_word: dict[str, int] = {}  # from 1; 0 is padding
        self.columns = {"x": ColumnSpec(dtype="int32", shape=(length,)), "y": ColumnSpec(dtype="int64")}

    def take_down(self, lists: dict[str, Any]) -> Columns:
        """Words, numbered as they come."""
        texts = [words.split(" ") if words else [] for words in self._split([self._text(x) for x in lists["x"]])]
        number_of = self._number_of_word
        numbers = [number_of.setdefault(word, len(number_of) + 1) for text in texts for word in text]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        x = padded_in_front(np.array(numbers, dtype=np.int32), lengths, self._length)
        return {"x": x, "y": self._labels.read(lists["y"])}

    def _text(self, x: Any) -> str:
        """The text of a sample without line breaks, which separate texts while they are cut into words."""
        found = x
        if self._are_tweets:
            found = x[TWEET_FIELDS - 1] if _is_tweet(x) else None
        elif isinstance(x, list) and all(isinstance(word, str) for word in x):
            found = " ".join(x)
        if isinstance(found, str):
            return found.replace("\n", " ")
        if self._are_tweets:
            raise BadInputError(
                f"x must be lists of id, date, query, user and text, as the first sample looks, not {shown(x)}; "
                "write lists of words as texts, with blanks between them"
            )
        raise BadInputError(f"x must be texts, words, or lists of id, date, query, user and text, not {shown(x)}")

    def finish(self, training: Callable[[str], IntArray]) -> Finished:
        """A vocabulary of the words that are most frequent in samples for training."""
        counts = np.zeros(len(self._number_of_word) + 1, dtype=np.int64)
        found = training("x")
        counts[: len(found)] = found
        words = pa.array(list(self._number_of_word), pa.string())
        vocabulary = Vocabulary.of(WordCounts(words, counts[1:]), self._vocabulary)
        token_of_number = np.concatenate([[PADDING], vocabulary.tokens_of(words)]).astype(vocabulary.dtype)
        labels = self._labels.finish()
        class_of, classes = labels.class_of, labels.classes
        seen = set(class_of.tolist())
        if self._may_have_polarities and labels.names is None and 4 in seen and seen <= set(_POLARITIES):
            class_of, classes = np.array([_POLARITIES[label] for label in class_of.tolist()]), 2
        names = labels.names or (_POLARITY_NAMES if self._are_tweets and classes == 2 else None)
        task = vocabulary.classification(classes, names)

        def to_tokens(columns: Columns) -> Columns:
            return {"x": token_of_number[columns["x"]], "y": class_of[columns["y"]]}

        x = ColumnSpec(dtype=vocabulary.dtype, shape=(self._length,))
        return Finished(task, {"x": x, "y": self.columns["y"]}, to_tokens)


def _is_tweet(x: Any) -> bool:
    """Whether a sample has the fields of Sent140, the first of which is a number; words may look so, too."""
    return isinstance(x, list) and len(x) >= TWEET_FIELDS and isinstance(x[0], str) and x[0].isdigit()
