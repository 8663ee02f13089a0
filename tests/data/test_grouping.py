"""Grouping rows by user through buckets on disk, interrupted anywhere, beside a dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fedarena.data.many_users import buckets
from fedarena.data.many_users.buckets import Buckets, Piece, Position
from fedarena.data.many_users.clients import TextClients, divide_samples
from fedarena.data.many_users.texts import TextIndex
from fedarena.data.sampling import Sampling
from fedarena.data.splits import Split
from fedarena.data.store.schema import PARTS

SIZES = [3, 1, 0, 7, 2, 5]


def rows_of_users(number: int, users: int = 11) -> list[tuple[str, str, int]]:
    random = np.random.default_rng(0)
    return [
        (f"user-{random.integers(users)}", " ".join(random.choice(list("abcde"), random.integers(4))), row)
        for row in range(number)
    ]


class Input:
    """Rows in pieces of four; raises after some of them."""

    def __init__(self, rows: list[tuple[str, str, int]], fails_after: int | None = None):
        self.rows, self.fails_after, self.begins = rows, fails_after, []

    def read(self, position: Position | None) -> Iterator[Piece]:
        begin = position["row"] if position else 0
        self.begins.append(begin)
        for start in range(begin, len(self.rows), 4):
            if self.fails_after is not None and start >= self.fails_after:
                raise KeyboardInterrupt
            users, texts, numbers = zip(*self.rows[start : start + 4], strict=True)
            batch = pa.record_batch({"user": users, "text": texts, "row": np.array(numbers, np.int32)})
            yield Piece(batch, {"row": start + 4}, start / len(self.rows))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 200)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 100)


def grouped(index: TextIndex) -> dict[str, list[tuple[str, int]]]:
    found = {}
    for texts in index:
        starts = np.cumsum(texts.counts) - texts.counts
        for user, start, count in zip(texts.users.to_pylist(), starts, texts.counts, strict=True):
            places = range(start, start + count)
            words = [
                " ".join(texts.words.take(pa.array(texts.words_at(np.array([place])))).to_pylist()) for place in places
            ]
            found[user] = list(zip(words, texts.columns["row"][list(places)].tolist(), strict=True))
    return found


def by_dictionary(rows: list[tuple[str, str, int]]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for user, text, row in rows:
        found.setdefault(user, []).append((text, row))
    return found


def test_rows_are_put_together_by_user(tmp_path: Path) -> None:
    rows = rows_of_users(90)
    filled = Buckets(tmp_path, input_bytes=450)
    assert filled.count == 5
    filled.fill(Input(rows).read, lambda fraction: None)
    index = TextIndex(tmp_path, filled)
    index.build(lambda fraction: None)
    assert grouped(index) == by_dictionary(rows)
    assert sorted(index.sizes()) == sorted(map(len, by_dictionary(rows).values()))


@pytest.mark.parametrize("fails_after", [0, 4, 28, 60, 88])
def test_reading_goes_on_after_the_last_checkpoint(tmp_path: Path, fails_after: int) -> None:
    rows = rows_of_users(90)
    with pytest.raises(KeyboardInterrupt):
        Buckets(tmp_path, 450).fill(Input(rows, fails_after).read, lambda fraction: None)
    with open(tmp_path / "rows.bin", "ab") as file:
        file.write(b"half a checkpoint")
    source = Input(rows)
    again = Buckets(tmp_path, 450)
    again.fill(source.read, lambda fraction: None)
    (begin,) = source.begins
    assert max(0, fails_after - 12) <= begin <= fails_after  # a checkpoint is at most three pieces
    index = TextIndex(tmp_path, again)
    index.build(lambda fraction: None)
    assert grouped(index) == by_dictionary(rows)
    Buckets(tmp_path, 450).fill(source.read, lambda fraction: None)
    assert len(source.begins) == 1  # nothing is read any more


@pytest.mark.parametrize("damage", ["state", "rows", "buckets", "version"])
def test_what_cannot_be_used_is_done_again(tmp_path: Path, damage: str) -> None:
    rows = rows_of_users(40)
    before = Buckets(tmp_path, 950 if damage == "buckets" else 450)
    before.fill(Input(rows[::-1]).read, lambda fraction: None)
    TextIndex(tmp_path, before).build(lambda fraction: None)
    state = json.loads((tmp_path / "rows.json").read_text())
    if damage == "state":
        (tmp_path / "rows.json").write_text("{")
    elif damage == "rows":
        (tmp_path / "rows.bin").write_bytes(b"short")
    elif damage == "version":
        (tmp_path / "rows.json").write_text(json.dumps({**state, damage: 77}))
    source = Input(rows)
    again = Buckets(tmp_path, 450)
    again.fill(source.read, lambda fraction: None)
    assert source.begins == [0]
    index = TextIndex(tmp_path, again)
    index.build(lambda fraction: None)
    assert grouped(index) == by_dictionary(rows)


@pytest.mark.parametrize("kind", ["by_client", "within_client"])
@pytest.mark.parametrize("order", ["shuffled", "in_order"])
def test_dividing_many_clients_is_dividing_each(kind, order) -> None:
    split = Split(kind, 0.6, 0.2, seed=5)
    groups = split.groups(50)[10 : 10 + len(SIZES)]
    clients, sizes = np.arange(10, 10 + len(SIZES)), np.array(SIZES)
    rows, counts = divide_samples(split, groups, clients, sizes, order)
    expected_rows, expected_counts = [], []
    for client, group, size, first in zip(clients, groups, SIZES, np.cumsum(sizes) - sizes, strict=True):
        parts = split.divide(int(client), group, {"row": first + np.arange(size)}, order)
        of_part = [parts.get(part, {"row": np.array([], int)})["row"].tolist() for part in PARTS]
        expected_rows += [row for part in of_part for row in part]
        expected_counts.append([len(part) for part in of_part])
    assert rows.tolist() == expected_rows
    assert counts.tolist() == expected_counts


@pytest.mark.parametrize("kind", ["by_client", "within_client"])
def test_clients_of_several_buckets_are_divided_as_one_list(tmp_path: Path, kind) -> None:
    rows = rows_of_users(90)
    filled = Buckets(tmp_path, 450)
    filled.fill(Input(rows).read, lambda fraction: None)
    index = TextIndex(tmp_path, filled)
    index.build(lambda fraction: None)
    split = Split(kind, 0.5, 0.2, seed=3)
    clients = list(TextClients(index, Sampling(minimum_samples=6), split))
    assert len(clients) > 2
    groups = split.groups(sum(len(chosen.ids) for chosen in clients))
    assert len(set(groups)) == (3 if kind == "by_client" else 1)
    number = 0
    for chosen in clients:
        found = iter(chosen.texts.columns["row"][chosen.rows].tolist())
        for user, group, counts in zip(chosen.ids, chosen.groups, chosen.counts, strict=True):
            assert group == groups[number]
            own = np.array([row for _, row in by_dictionary(rows)[user]])
            parts = split.divide(number, group, {"row": own})
            for part, count in zip(PARTS, counts, strict=True):
                expected = parts[part]["row"].tolist() if part in parts else []
                assert [next(found) for _ in range(count)] == expected
            number += 1


def test_training_words_are_those_of_training_texts(tmp_path: Path) -> None:
    rows = rows_of_users(90)
    filled = Buckets(tmp_path, 450)
    filled.fill(Input(rows).read, lambda fraction: None)
    index = TextIndex(tmp_path, filled)
    index.build(lambda fraction: None)
    clients = TextClients(index, Sampling(minimum_samples=6), Split("within_client", 0.5, 0.0, 0), "in_order")
    expected: dict[str, int] = {}
    kept = {user: texts for user, texts in by_dictionary(rows).items() if len(texts) >= 6}
    for texts in kept.values():
        for text, _ in texts[: -(-len(texts) // 2)]:
            for word in text.split():
                expected[word] = expected.get(word, 0) + 1
    counted = clients.training_words(lambda fraction: None)
    assert dict(zip(counted.words.to_pylist(), counted.counts.tolist(), strict=True)) == expected
    assert sorted(name for chosen in clients for name in chosen.ids) == sorted(kept)
    assert 0 < len(kept) < 11
