"""Texts as arrays of words: cut into words, and numbered by a vocabulary of the most frequent."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.data.store.schema import AnyArray, IntArray, TaskSpec
from fedarena.data.text.sequences import PADDING

UNKNOWN = 1  # the token after padding
SPECIAL = ("<PAD>", "<UNK>")

_WAITING_WORDS = 1 << 20
_ENTITIES = {"&quot;": '"', "&lt;": "<", "&gt;": ">", "&amp;": "&"}  # the last, or "&amp;lt;" would become "<"
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s]+")
_NAME = re.compile(r"@\w+")
# Repeated marks are one word, because "!!!" says something else than "!".
_WORD = re.compile(r"\n|<url>|<user>|[\w']+|!+|\?+|\.+|-+|[^\w\s]")
_JOINERS = "\u200c\u200d"  # of letters, in Persian and Indian scripts
_LAST_MARK = 0x1FFFF
_LEAF_WORD = re.compile(r"\n|[\w']+|[.,!?;]")


def split_messages(texts: Sequence[str], keep_marks: bool = False) -> list[str]:
    """The words of short messages, separated by spaces.

    Everything is in lower case; web addresses become ``<url>``, and names after an @ ``<user>``; letters, digits and
    apostrophes make up words, and other marks are words by themselves. With `keep_marks`, accents and vowel signs stay
    with the letters before them, also those that are characters of their own.

    >>> split_messages(["@ann I'm here!!! http://a.b/c", "", "so &lt;3"])
    ["<user> i'm here !!! <url>", '', 'so < 3']
    """
    joined = "\n".join(texts).lower()
    for entity, character in _ENTITIES.items():
        joined = joined.replace(entity, character)
    joined = _NAME.sub(" <user> ", _ADDRESS.sub(" <url> ", joined))
    return _words(_word_with_marks() if keep_marks else _WORD, joined)


@cache
def _word_with_marks() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(_LAST_MARK) if unicodedata.category(chr(code)) in ("Mn", "Mc"))
    return re.compile(_WORD.pattern.replace(r"[\w']+", rf"[\w'][\w'{re.escape(marks)}{_JOINERS}]*"))


def split_messages_as_leaf(texts: Sequence[str]) -> list[str]:
    """The words of messages as LEAF's code finds them: upper and lower case differ, and few marks count.

    >>> split_messages_as_leaf(["@Ann I'm here!! http://a.b/c"])
    ["Ann I'm here ! ! http a . b c"]
    """
    return _words(_LEAF_WORD, "\n".join(texts))


Tokenizer = Literal["words", "leaf"]
SPLITTERS: dict[Tokenizer, Callable[[Sequence[str]], list[str]]] = {
    "words": split_messages,
    "leaf": split_messages_as_leaf,
}


def _words(pattern: re.Pattern[str], joined: str) -> list[str]:
    # One search through many messages takes less time than one for each; line breaks are words for that time.
    return [message.strip(" ") for message in " ".join(pattern.findall(joined)).split("\n")]


@dataclass(frozen=True)
class WordCounts:
    """How often which words occur; counts of several texts can be added up."""

    words: pa.Array
    counts: IntArray

    @classmethod
    def total(cls, parts: Iterable[WordCounts]) -> WordCounts:
        """The sums of some counts."""
        sums = pa.table({"word": pa.array([], pa.string()), "count": pa.array([], pa.int64())})
        waiting: list[pa.Table] = []
        for part in parts:
            waiting.append(pa.table({"word": part.words, "count": pa.array(part.counts)}))
            if sum(map(len, waiting)) > max(len(sums), _WAITING_WORDS):  # so that few words are added up often
                sums, waiting = _add_up([sums, *waiting]), []
        sums = _add_up([sums, *waiting])
        words, counts = (sums.column(name).combine_chunks() for name in ("word", "count"))
        return cls(words, counts.to_numpy())

    def most_frequent(self, number: int) -> list[str]:
        """So many words, the most frequent first, equally frequent ones by the alphabet; none that never occurs."""
        if number <= 0 or len(self.counts) == 0:
            return []
        # Only those as frequent as the last one need to be put into order.
        limit = np.partition(self.counts, -number)[-number] if number < len(self.counts) else 1
        chosen = np.flatnonzero(self.counts >= max(int(limit), 1))
        words = self.words.take(pa.array(chosen)).to_pylist()
        order = sorted(range(len(words)), key=lambda place: (-self.counts[chosen[place]], words[place]))
        return [words[place] for place in order[:number]]


def _add_up(tables: list[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by("word").aggregate([("count", "sum")])
    return grouped.rename_columns(["word", "count"]).combine_chunks()


@dataclass(frozen=True)
class Vocabulary:
    """Which token stands for which word; two stand for padding and for all other words."""

    names: tuple[str, ...]
    padding: int = PADDING
    unknown: int | None = UNKNOWN

    @classmethod
    def of(cls, counts: WordCounts, size: int) -> Vocabulary:
        """At most `size` tokens: the two special ones and the most frequent words."""
        frequent = counts.most_frequent(size)  # perhaps with words that look like the special ones
        words = [word for word in frequent if word not in SPECIAL]
        return cls((*SPECIAL, *words[: size - len(SPECIAL)]))

    @property
    def dtype(self) -> str:
        """The type of tokens."""
        return np.promote_types(np.uint16, np.min_scalar_type(len(self.names) - 1)).name

    def tokens_of(self, words: pa.Array) -> AnyArray:
        """The token of each of some words."""
        known = pa.array(self.names[len(SPECIAL) :], pa.string())
        places = pc.fill_null(pc.index_in(words, value_set=known), UNKNOWN - len(SPECIAL))
        tokens: AnyArray = (places.to_numpy(zero_copy_only=False) + len(SPECIAL)).astype(self.dtype)
        return tokens

    def classification(self, classes: int, label_names: tuple[str, ...] | None) -> TaskSpec:
        """The task of telling classes of texts in these tokens."""
        return TaskSpec(
            kind="classification",
            classes=classes,
            label_names=label_names,
            tokens=len(self.names),
            token_names=self.names,
            padding=self.padding,
            unknown=self.unknown,
        )

    def multi_label(self, label_names: tuple[str, ...]) -> TaskSpec:
        """The task of telling which labels, any number of them, texts in these tokens have."""
        return TaskSpec(
            kind="multi_label",
            classes=len(label_names),
            label_names=label_names,
            tokens=len(self.names),
            token_names=self.names,
            padding=self.padding,
            unknown=self.unknown,
        )

    def next_token(self) -> TaskSpec:
        """The task of predicting the next of these tokens."""
        return TaskSpec(
            kind="next_token",
            classes=len(self.names),
            padding=self.padding,
            unknown=self.unknown,
            label_names=self.names,
        )
