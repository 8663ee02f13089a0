"""Sentiment140, from small files in the published form: an archive with two tables, Latin-1, everything quoted."""

from __future__ import annotations

import csv
import io
import json
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedarena.data import Federation, buckets, load_federation, resumable, tweets
from fedarena.data.registry import cached_path
from fedarena.data.sources.sent140 import TABLES
from fedarena.errors import BadInputError, DamagedFileError, RunFailedError

REAL = Path(__file__).parents[3] / "shared" / "data" / "leaf_sent140_k30" / "all_data_niid_0_keep_30_test_9.json"
TRAINING = [
    ("0", "1", "ann", "@bob I am SAD, so sad!!! http://t.co/1"),
    ("4", "2", "bob", 'she said "hello" & left'),
    ("4", "3", "ann", "happy caf\xe9 happy"),
    ("0", "4", "cid", "sad sad sad"),
    ("0", "1", "ann", "@bob I am SAD, so sad!!! http://t.co/1"),  # the published file has some tweets twice
    ("4", "6", "bob", "happy &lt;3"),
]
TEST = [("2", "7", "dan", "neutral words"), ("4", "8", "bob", ""), ("0", "9", "eve", "rare")]


def table(rows: list[tuple[str, str, str, str]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows((polarity, id, "Mon Apr 06 2009", "NO_QUERY", user, text) for polarity, id, user, text in rows)
    return out.getvalue().encode("latin-1")


def pack(folder: Path, training: bytes = table(TRAINING), test: bytes = table(TEST)) -> Path:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "trainingandtestdata.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(TABLES[0], training)
        archive.writestr(TABLES[1], test)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pack(tmp_path / "raw")


def load(folder: Path, progress=None, **options: object) -> Federation:
    return load_federation("sent140", {"folder": str(folder), "verify": False, **options}, progress)


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


def test_files_that_are_missing_or_others(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"is not the published trainingandtestdata.zip: its checksum differs"):
        load(folder, verify=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=r"empty lacks trainingandtestdata.zip; it must hold .* or what is in it"):
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


def left_over(folder: Path, **options: object) -> list[str]:
    """What a build left besides the store."""
    path = cached_path("sent140", {"folder": str(folder), "verify": False, **options})
    return sorted(found.name for found in path.parent.glob(f".{path.name}*") if not found.name.endswith(".lock"))


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
    pack(folder, b"")
    with pytest.raises(BadInputError, match=f"{TABLES[0]} in .* is empty"):
        load(folder)
    pack(folder, b"x" * 1000)
    with pytest.raises(BadInputError, match=r"Line 1 of .* has 1 columns"):
        load(folder)


def many_tweets(number: int) -> bytes:
    random = np.random.default_rng(1)
    return table(
        [
            (
                "04"[random.integers(2)],
                str(row),
                f"user-{random.integers(40)}",
                " ".join(random.choice(list("abcdefgh"), 5)),
            )
            for row in range(number)
        ]
    )


class InterruptionError(Exception):
    """Stands for a process that was killed."""


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tweets, "BLOCK_BYTES", 2_000)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 4_000)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 8_000)


@pytest.mark.usefixtures("small_steps")
def test_an_interrupted_build_goes_on_and_gives_the_same_store(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(400))
    steps: list[tuple[float, str]] = []
    whole = load(folder, lambda *step: steps.append(step))
    assert {words for _, words in steps} == {"Reading tweets", "Grouping by user", "Counting words", "Writing"}
    assert [fraction for fraction, _ in steps] == sorted(fraction for fraction, _ in steps)
    assert steps[-1][0] == 1
    load(folder, lambda *step: pytest.fail("The second call does nothing"))

    whole.path.rename(tmp_path / "whole")
    fingerprint, seen = whole.fingerprint, []

    def interrupt(fraction: float, words: str) -> None:
        if fraction not in seen:
            seen.append(fraction)
            raise InterruptionError

    for attempt in range(3 * len(steps)):
        try:
            again = load(folder, interrupt)
            break
        except InterruptionError:
            assert left_over(folder) == [f".{whole.path.name}.work"], attempt
    assert again.fingerprint == fingerprint
    assert seen[-1] == 1
    assert len(seen) > 20
    assert left_over(folder) == []


def stop(fraction: float, words: str) -> None:
    if fraction > 0.3:
        raise InterruptionError


@pytest.mark.usefixtures("small_steps")
def test_bad_input_after_an_interruption_removes_the_work(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100)[:-2])  # the last quote is missing
    with pytest.raises(InterruptionError):
        load(folder, stop)
    assert len(left_over(folder)) == 1
    with pytest.raises(BadInputError, match=r"Line 100 of .* has a quote without its counterpart"):
        load(folder)
    assert left_over(folder) == []


@pytest.mark.usefixtures("small_steps")
def test_what_other_builds_left_does_not_matter(tmp_path: Path) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100))
    with pytest.raises(InterruptionError):
        load(folder, stop)
    (work,) = left_over(folder)
    assert load(folder, length=3).num_samples == 103  # other options
    pack(folder, many_tweets(150))  # other files
    path = cached_path("sent140", {"folder": str(folder), "verify": False})
    killed = path.with_name(f".{path.name}.0123.tmp")  # of a process that was killed while it wrote the store
    killed.mkdir()
    again = load(folder)
    assert again.num_samples == 153
    assert sorted(again.client_ids(again.clients())) == sorted({f"user-{n}" for n in range(40)} | {"bob", "dan", "eve"})
    assert not killed.exists()
    assert (path.parent / work).exists()


@pytest.mark.usefixtures("small_steps")
def test_a_full_disk_is_told_and_the_work_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pack(tmp_path / "raw", many_tweets(100))

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(buckets, "write_json", full)
        with pytest.raises(
            RunFailedError, match=r"Cannot build .*sent140-.*: No space left on device; the next attempt"
        ):
            load(folder)
    assert len(left_over(folder)) == 1
    assert load(folder).num_samples == 103


def test_two_at_once_do_not_disturb_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "POLL_SECONDS", 0.01)
    second_waits, results = threading.Event(), []

    def first(fraction: float, words: str) -> None:
        assert second_waits.wait(20)

    def second(fraction: float, words: str) -> None:
        assert words == "Waiting for another process that is building the same"
        second_waits.set()

    threads = [
        threading.Thread(target=lambda step=step: results.append(load(folder, step, length=7)))
        for step in (first, second)
    ]
    threads[0].start()
    while not left_over(folder, length=7):  # until the first has the lock
        threading.Event().wait(0.01)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert len({federation.fingerprint for federation in results}) == 1
    assert len(results) == 2


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
