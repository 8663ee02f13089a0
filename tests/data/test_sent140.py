"""Sentiment140, from small files in the published form: an archive with two tables, Latin-1, everything quoted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tweet_files import TEST, TRAINING, left_over, load, pack, table
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
from fedarena.data.many_users import tweets
from fedarena.data.sources.sent140 import TABLES

REAL = Path(__file__).parents[3] / "shared" / "data" / "leaf_sent140_k30" / "all_data_niid_0_keep_30_test_9.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pack(tmp_path / "raw")


def tweets_of(federation: Federation, part="all") -> dict[str, list[tuple[str, int]]]:
    """The words of every user, and the labels."""
    names, found = federation.task.token_names, {}
    for client, user in enumerate(federation.client_ids(federation.clients())):
        columns = federation.samples([client], part).columns
        texts = [" ".join(names[token] for token in row if token) for row in columns["x"]]
        found[user] = list(zip(texts, columns["y"].tolist(), strict=True))
    return found


def test_everybody_has_their_tweets(folder: Path) -> None:
    federation = load(folder, split="by_client", train_fraction=1.0)
    assert tweets_of(federation) == {
        "ann": [
            ("<user> i am sad , so sad !!! <url>", 0),
            ("happy caf\xe9 happy", 1),
            ("<user> i am sad , so sad !!! <url>", 0),
        ],
        "bob": [('she said " hello " & left', 1), ("happy < 3", 1), ("", 1)],
        "cid": [("sad sad sad", 0)],
        "dan": [("neutral words", 0)],
        "eve": [("rare", 0)],
    }
    task = federation.task
    assert (task.kind, task.classes, task.padding, task.unknown) == ("classification", 2, 0, 1)
    assert task.token_names[:5] == ("<PAD>", "<UNK>", "sad", "happy", "!!!")
    assert federation.columns["x"].shape == (40,)
    x = federation.samples([0]).columns["x"]
    assert (x[1, :37] == 0).all()  # padding is in front
    assert (x[1, 37:] > 1).all()


def test_options(folder: Path) -> None:
    cut = load(folder, split="by_client", train_fraction=1.0, length=2, vocabulary=4, minimum_samples=2)
    assert cut.task.token_names == ("<PAD>", "<UNK>", "sad", "happy")
    assert tweets_of(cut) == {
        "ann": [("<UNK> <UNK>", 0), ("happy <UNK>", 1), ("<UNK> <UNK>", 0)],
        "bob": [("<UNK> <UNK>", 1), ("happy <UNK>", 1), ("", 1)],
    }
    assert "dan" not in tweets_of(load(folder, neutral="left_out"))
    as_leaf = load(folder, tokenizer="leaf", split="by_client", train_fraction=1.0)
    assert tweets_of(as_leaf)["ann"][0] == ("bob I am SAD , so sad ! ! ! http t . co 1", 0)
    half = load(folder, fraction=0.5, sampling_seed=3)
    assert 0 < half.num_clients < 5


def test_words_of_test_samples_are_not_in_the_vocabulary(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", table([("0", str(n), f"user-{n % 5}", f"word{n} all") for n in range(30)]))
    federation = load(folder, split="within_client", train_fraction=0.5)
    training = {word for texts in tweets_of(federation, "train").values() for text, _ in texts for word in text.split()}
    assert set(federation.task.token_names) - training == {"<PAD>", "<UNK>"}
    tested = [text for texts in tweets_of(federation, "test").values() for text, _ in texts]
    assert tested.count("<UNK> all") == 15


def test_tables_without_the_archive(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "tables", tmp_path / "unpacked" / "trainingandtestdata"):
        place.mkdir(parents=True)
        for name, rows in zip(TABLES, (TRAINING, TEST), strict=True):
            (place / name).write_bytes(table(rows))
    expected = tweets_of(load(folder))
    for given in (tmp_path / "tables", tmp_path / "unpacked"):
        assert tweets_of(load(given, verify=True)) == expected


def test_verifying_tables_without_the_archive(folder: Path, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(folder / "trainingandtestdata.zip") as archive:
        archive.extractall(unpacked)
    for given, exit_code, words in ((unpacked, 0, "not checked"), (folder, 2, "its checksum differs")):
        result = CliRunner().invoke(main, ["data", "verify", "sent140", f"folder={given}"])
        assert result.exit_code == exit_code, result.output
        assert words in " ".join(result.output.split())


def test_files_that_are_missing_or_others(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is not the published trainingandtestdata.zip: its checksum differs"):
        load(folder, verify=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=r"empty holds none of the files of Sentiment140; it .* or what is in it"):
        load(tmp_path / "empty")


def line(*values: str) -> bytes:
    return ",".join(f'"{value}"' for value in values).encode("latin-1")


@pytest.mark.parametrize("block_bytes", [1 << 22, 100])
@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (line("0", "1", "date", "query", "ann"), "has 5 columns; it must have 6: polarity, id, date"),
        (line("0", "1", "date", "query", "ann", "text", "more"), "has 7 columns"),
        (b"", "has 0 columns"),
        (line("1", "1", "date", "query", "ann", "text"), "has the polarity '1'; valid: 0, 2, 4"),
        (line("0", "1", "date", "query", "", "text"), "has no user"),
        (line("0", "1", "date", "query", "ann", "te\0xt"), "has a zero byte"),
        (line("0", "1", "date", "query", "ann", "text")[:-1], "has a quote without its counterpart"),
        (line("0", "1", "date", "query", "ann", 'te"xt'), "has a quote without its counterpart"),
        (line("0", "1", "date", "query", "ann", "text", "x" * 140_000), r"cannot be read as CSV \(field larger"),
        (table(TRAINING).replace(b"\n", b"\r"), r"cannot be read as CSV \(new-line character"),
    ],
)
def test_bad_lines_are_named(folder: Path, monkeypatch, bad: bytes, sentence: str, block_bytes: int) -> None:
    monkeypatch.setattr(tweets, "BLOCK_BYTES", block_bytes)
    lines = table(TRAINING).split(b"\n")
    lines.insert(3, bad)
    pack(folder, b"\n".join(lines))
    with pytest.raises(BadInputError, match=f"Line 4 of {TABLES[0]} in .*trainingandtestdata.zip {sentence}"):
        load(folder)
    assert left_over(folder) == []


def test_damaged_archives(folder: Path) -> None:
    archive = folder / "trainingandtestdata.zip"
    content = archive.read_bytes()
    archive.write_bytes(content[:-30])
    with pytest.raises(DamagedFileError, match=r"trainingandtestdata.zip is damaged"):
        load(folder)
    changed = bytearray(content)
    changed[120] ^= 0xFF
    archive.write_bytes(changed)
    with pytest.raises(DamagedFileError, match=r"trainingandtestdata.zip is damaged: training.* cannot be unpacked"):
        load(folder)
    with zipfile.ZipFile(archive, "w") as other:
        other.writestr("readme.txt", "hello")
    with pytest.raises(BadInputError, match=f"does not contain {TABLES[0]}"):
        load(folder)
    changed = bytearray(content)
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        changed[changed.index(header) + flags] |= 1
    archive.write_bytes(changed)
    with pytest.raises(DamagedFileError, match=r"is damaged: training.* cannot be unpacked \(.* is encrypted"):
        load(folder)
    changed = bytearray(content)
    changed[changed.index(b"PK\5\6") + 17] = 0xFF  # of where the list of contents begins
    archive.write_bytes(changed)
    with pytest.raises(DamagedFileError, match=r"is damaged: training.* cannot be unpacked \(.*Invalid argument"):
        load(folder)
    assert left_over(folder) == []
    pack(folder, b"")
    with pytest.raises(BadInputError, match=f"{TABLES[0]} in .* is empty"):
        load(folder)
    pack(folder, b"x" * 1000)
    with pytest.raises(BadInputError, match=r"Line 1 of .* has 1 columns"):
        load(folder)


@pytest.mark.skipif(not REAL.is_file(), reason="LEAF's own file is not here")
def test_tweets_of_leaf(tmp_path: Path) -> None:
    data = json.loads(REAL.read_text(encoding="utf-8"))["user_data"]
    rows = [
        ("4" if label else "0", tweet[0], tweet[3], tweet[4])
        for user in list(data)[:400]
        for tweet, label in zip(data[user]["x"], data[user]["y"], strict=True)
    ]
    np.random.default_rng(0).shuffle(rows)
    federation = load(pack(tmp_path / "raw", table(rows[50:]), table(rows[:50])), split="by_client")
    users = federation.client_ids(federation.clients())
    assert sorted(users) == sorted(list(data)[:400])
    for client, user in enumerate(users):
        assert sorted(federation.samples([client]).columns["y"]) == sorted(data[user]["y"])
