"""Words, vocabularies and rows of equal length, beside plain loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.data.text import words
from fedarena.data.text.sequences import cut_into_sequences, padded_in_front
from fedarena.data.text.words import Vocabulary, WordCounts, split_messages, split_messages_as_leaf

TEXTS = st.lists(st.lists(st.integers(2, 9), max_size=12), max_size=8)


def flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = [token for text in texts for token in text]
    return np.array(tokens, dtype=np.uint16), np.array([len(text) for text in texts], dtype=np.int64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm SO happy!!!", "i'm so happy !!!"),
        ("@Some_One: look http://t.co/Ab?c=1, www.x.org", "<user> : look <url> <url>"),
        ("&quot;a &amp;lt; b&quot; ... c--d", '" a & lt ; b " ... c -- d'),
        ("  ", ""),
        ("caf\xe9 ?!", "caf\xe9 ? !"),
        ("#tag 50% me@home", "# tag 50 % me <user>"),
    ],
)
def test_words_of_a_message(text: str, expected: str) -> None:
    assert split_messages(["before", text, "", "after"]) == ["before", expected, "", "after"]


def test_words_as_leaf_finds_them() -> None:
    assert split_messages_as_leaf(["@Ann: it's (so) GOOD!?", ""]) == ["Ann it's so GOOD ! ?", ""]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=9), max_size=6), st.integers(2, 9))
def test_vocabulary_has_the_most_frequent_words(texts: list[list[str]], size: int) -> None:
    counts = WordCounts.total(
        WordCounts(pa.array(list(Counter(text)), pa.string()), np.array(list(Counter(text).values()), np.int64))
        for text in texts
    )
    total = Counter(word for text in texts for word in text)
    expected = sorted(total, key=lambda word: (-total[word], word))[: size - 2]
    vocabulary = Vocabulary.of(counts, size)
    assert vocabulary.names == ("<PAD>", "<UNK>", *expected)
    tokens = vocabulary.tokens_of(pa.array(list("abcdefgh")))
    assert tokens.tolist() == [expected.index(word) + 2 if word in expected else 1 for word in "abcdefgh"]


def test_counts_are_added_up_also_when_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_WAITING_WORDS", 2)
    parts = [WordCounts(pa.array(["a", f"b{number}"]), np.array([1, 2])) for number in range(9)]
    total = WordCounts.total(parts)
    found = dict(zip(total.words.to_pylist(), total.counts.tolist(), strict=True))
    assert found == {"a": 9, **{f"b{number}": 2 for number in range(9)}}


def test_words_that_never_occur_or_look_special_are_not_in_a_vocabulary() -> None:
    counts = WordCounts(pa.array(["<PAD>", "x", "never", "y"]), np.array([9, 3, 0, 2]))
    assert Vocabulary.of(counts, 4).names == ("<PAD>", "<UNK>", "x", "y")
    assert Vocabulary.of(counts, 9).names == ("<PAD>", "<UNK>", "x", "y")


def test_type_of_tokens() -> None:
    assert Vocabulary(("a", "b")).dtype == "uint16"
    assert Vocabulary(("a",) * (1 << 16)).dtype == "uint16"
    assert Vocabulary(("a",) * ((1 << 16) + 1)).dtype == "uint32"


@given(TEXTS, st.integers(1, 8))
def test_padding_in_front(texts: list[list[int]], length: int) -> None:
    expected = [[0] * (length - len(text)) + text[:length] for text in texts]
    assert padded_in_front(*flat(texts), length).tolist() == expected


@given(TEXTS, st.integers(1, 5))
def test_sequences_predict_every_word_but_the_first_once(texts: list[list[int]], length: int) -> None:
    rows, counts = cut_into_sequences(*flat(texts), length)
    expected = []
    for text in texts:
        for start in range(0, len(text) - 1, length):
            row = text[start : start + length + 1]
            expected.append(row + [0] * (length + 1 - len(row)))
    assert rows.tolist() == expected
    assert rows.shape[1] == length + 1
    assert counts.tolist() == [len(range(0, len(text) - 1, length)) for text in texts]
