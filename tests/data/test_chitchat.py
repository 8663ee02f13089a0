"""Chit-chat: the numbers its authors publish, no character lost, and nobody's text in somebody else's samples."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from alphabets import decode_sequences
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data import Federation, load_federation
from fedarena.data.sources.chitchat import messages_by_sender
from fedarena.data.text.characters import ASCII, cut
from fedarena.data.text.sequences import PADDING


@pytest.fixture(scope="module")
def messages() -> dict[str, list[str]]:
    return messages_by_sender()


@pytest.fixture
def federation(built_once: object) -> Federation:
    return load_federation("chitchat")


def text_of(federation: Federation, client: int) -> str:
    """A person's text, put together from their samples."""
    return decode_sequences(ASCII, federation.samples([client]).columns["tokens"])


def test_the_published_totals(messages: dict[str, list[str]]) -> None:
    assert len(messages) == 1315
    assert sum(map(len, messages.values())) == 258_145


def test_messages_are_in_the_order_they_were_sent(messages: dict[str, list[str]]) -> None:
    import chitchat_dataset

    sent: dict[str, list[tuple[str, int, str]]] = {}
    for conversation in chitchat_dataset.Dataset().values():
        for turn in conversation["messages"]:
            for message in turn:
                mine = sent.setdefault(message["sender"], [])
                mine.append((message["timestamp"], len(mine), message["text"]))
    for sender, expected in sent.items():
        # All time stamps have the same form, so that their alphabetical order is the order in time.
        assert messages[sender] == [text for _, _, text in sorted(expected)]


def test_every_text_can_be_put_together_again(federation: Federation, messages: dict[str, list[str]]) -> None:
    ids = federation.client_ids(federation.clients("all"))
    expected = {sender: "\n".join(texts) for sender, texts in messages.items()}
    assert ids == sorted(sender for sender, text in expected.items() if len(text) >= 200)
    for client in range(0, len(ids), 13):
        assert text_of(federation, client) == expected[ids[client]]


def test_clients_and_labels(federation: Federation) -> None:
    assert federation.num_clients == 1020
    assert {group: len(federation.clients(group)) for group in ("train", "validation", "test")} == {
        "train": 816,
        "validation": 0,
        "test": 204,
    }
    assert federation.task.classes == len(ASCII.names) == 98
    assert (federation.task.padding, federation.task.unknown) == (0, 1)
    share = federation.label_counts / federation.label_counts.sum()
    assert ASCII.names[share.argmax()] == " "
    assert 0.17 < share.max() < 0.18
    assert share[PADDING] == 0


def test_people_are_held_out(federation: Federation) -> None:
    assert federation.counts(federation.clients("train"), "test").sum() == 0
    assert federation.counts(federation.clients("test"), "train").sum() == 0
    everybody = federation.clients("all")
    assert (federation.counts(everybody, "test") > 0).sum() == 204


def test_within_client_tests_on_later_text(messages: dict[str, list[str]]) -> None:
    federation = load_federation("chitchat", {"split": "within_client", "validation_fraction": 0.1})
    client = int(np.argmax(federation.counts(federation.clients("all"))))
    parts = [federation.samples([client], part).columns["tokens"] for part in ("train", "validation", "test")]
    assert [round(len(part) / sum(map(len, parts)), 3) for part in parts] == [0.8, 0.1, 0.1]
    text = "\n".join(messages[federation.client_ids([client])[0]])
    assert "".join(decode_sequences(ASCII, part) for part in parts) == text  # nothing is lost, and nothing twice


def test_options_limit_the_text() -> None:
    federation = load_federation(
        "chitchat", {"sequence_length": 10, "min_characters": 5000, "max_characters": 101, "train_fraction": 0.5}
    )
    counts = federation.counts(federation.clients("all"))
    assert 50 < federation.num_clients < 300
    assert set(counts.tolist()) == {10}  # 101 characters are ten sequences that share one character each


def test_nobody_left_gets_a_sentence() -> None:
    with pytest.raises(BadInputError, match="Nobody wrote 1000000000 characters; the longest text has 11"):
        load_federation("chitchat", {"min_characters": 10**9})


@given(text=st.text(max_size=50))
def test_encoding_keeps_the_vocabulary_and_one_token_per_character(text: str) -> None:
    tokens = ASCII.encode(text)
    assert len(tokens) == len(text)
    for token, character in zip(tokens, text, strict=True):
        assert token == (ASCII.names.index(character) if character in ASCII.names else ASCII.unknown)


@given(length=st.integers(0, 60), sequence_length=st.integers(1, 20))
def test_every_token_but_the_first_is_a_label_exactly_once(length: int, sequence_length: int) -> None:
    tokens = (np.arange(length) + 2).astype(np.uint8)
    sequences = cut(tokens, sequence_length)
    assert sequences.shape[1] == sequence_length + 1
    labels = Counter(sequences[:, 1:].ravel().tolist())
    padding = labels.pop(PADDING, 0)
    assert labels == Counter(tokens[1:].tolist())
    assert padding < sequence_length
    for earlier, later in pairwise(sequences):
        assert earlier[-1] == later[0]
