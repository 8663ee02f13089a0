"""LEAF's Reddit, from small files that are made as LEAF's code makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.data import Federation, buckets, json_stream, leaf_comments, load_federation
from fedarena.data.registry import cached_path
from fedarena.errors import BadInputError, DamagedFileError

# Of every user the comments in the order of time: text and subreddit.
COMMENTS = {
    "1": [("hello world", "pics"), ("a b c d e f g h i j k l", "news"), ("hello", "news"), ("bye", "pics"), ("z", "z")],
    "2": [("hello " * 8, "aww")] * 5,  # with <BOS> and <EOS> exactly ten
    "3": [("hello " * 9, "aww"), ("x", "gif"), ("y", "gif"), ("q", "gif"), ("rare words", "aww")],
}


def leaf_comment(text: str, subreddit: str) -> tuple[list, dict]:
    """A comment in rows of ten, with the words that follow and which of them count."""
    words = text.split()
    here, following = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
    fill = -len(here) % 10
    counted = [1.0] * len(here) + [0.0] * fill
    here, following = here + ["<PAD>"] * fill, following + ["<PAD>"] * fill

    def rows(values: list) -> list:
        return [values[start : start + 10] for start in range(0, len(values), 10)]

    about = {"subreddit": subreddit, "created_utc": 1, "score": 2}
    return rows(here), {**about, "target_tokens": rows(following), "count_tokens": rows(counted)}


def leaf_json(users: dict[str, list[tuple[str, str]]], first: float, last: float) -> dict[str, Any]:
    data = {}
    for user, comments in users.items():
        chosen = comments[int(first * len(comments)) : int(last * len(comments))]
        made = [leaf_comment(*comment) for comment in chosen]
        data[user] = {"x": [x for x, _ in made], "y": [y for _, y in made]}
    return {"users": list(users), "num_samples": [len(comments) for comments in users.values()], "user_data": data}


PARTS = {"train": (0.0, 0.6), "val": (0.6, 0.8), "test": (0.8, 1.0)}


def write(folder: Path, users: dict[str, list[tuple[str, str]]], files: int = 2) -> Path:
    """In as many files as given, as LEAF's complete version."""
    for part, (first, last) in PARTS.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            of_file = {user: users[user] for user in list(users)[number::files]}
            content = json.dumps(leaf_json(of_file, first, last))
            (folder / part / f"reddit_{number}_{part}.json").write_text(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "raw", COMMENTS)


def load(folder: Path, progress=None, **options: object) -> Federation:
    return load_federation("reddit", {"folder": str(folder), **options}, progress)


def samples_of(federation: Federation, user: str, part="all") -> list[str]:
    """The words of every sample, with the padding."""
    client = federation.client_ids(federation.clients()).index(user)
    rows = federation.samples([client], part).columns["tokens"]
    return [" ".join(federation.task.label_names[token] for token in row) for row in rows]


def padded(text: str, length: int = 11) -> str:
    return " ".join([*text.split(), *["<PAD>"] * (length - len(text.split()))])


def test_everybody_has_their_comments(folder: Path) -> None:
    federation = load(folder)
    assert sorted(federation.client_ids(federation.clients())) == ["1", "2", "3"]
    assert samples_of(federation, "1", "train") == [
        padded("<BOS> hello world <EOS>"),
        padded("<BOS> a b c d e f g h i j"),
        padded("j k l <EOS>"),
        padded("<BOS> hello <EOS>"),
    ]
    assert samples_of(federation, "1", "validation") == [padded("<BOS> <UNK> <EOS>")]
    assert samples_of(federation, "1", "test") == [padded("<BOS> <UNK> <EOS>")]
    # Ten words with the marks: LEAF predicts padding after <EOS>, which is no label here.
    assert samples_of(federation, "2", "train") == [padded("<BOS> " + "hello " * 8 + "<EOS>")] * 3
    # Eleven: LEAF's second row begins with <EOS> and has nothing to predict.
    assert samples_of(federation, "3", "train")[0] == padded("<BOS> " + "hello " * 9 + "<EOS>")
    assert len(samples_of(federation, "3", "train")) == 3
    task = federation.task
    assert (task.kind, task.padding, task.unknown) == ("next_token", 0, 1)
    assert task.label_names[:5] == ("<PAD>", "<UNK>", "hello", "<BOS>", "<EOS>")
    clients = federation.clients()
    found = dict(zip(federation.client_ids(clients), federation.attributes(clients)["subreddit"], strict=True))
    assert found == {"1": "pics", "2": "aww", "3": "gif"}  # of two as frequent the first


def test_samples_agree_with_the_rows_and_targets_of_leaf(folder: Path) -> None:
    federation = load(folder)
    for user, comments in COMMENTS.items():
        expected = []
        for comment in comments[:3]:
            rows, about = leaf_comment(*comment)
            for row, following in zip(rows, about["target_tokens"], strict=True):
                if following[0] != "<PAD>":
                    assert row[1:] == following[:-1]
                    expected.append(" ".join([*row, following[-1]]))
        assert samples_of(federation, user, "train") == expected


def test_options(folder: Path) -> None:
    few = load(folder, vocabulary=4, sequence_length=3, fraction=1.0)
    assert few.task.label_names == ("<PAD>", "<UNK>", "hello", "<BOS>")
    assert samples_of(few, "1", "train")[1:3] == ["<BOS> <UNK> <UNK> <UNK>", "<UNK> <UNK> <UNK> <UNK>"]
    assert load(folder, fraction=0.4).num_clients == 2  # whole users, until they have that much
    with pytest.raises(BadInputError, match="nobody has more than 5 samples"):
        load(folder, minimum_samples=6)
    by_client = load(folder, split="by_client", train_fraction=0.7)
    assert len(by_client.clients("train")) == 2
    assert len(by_client.clients("test")) == 1
    within = load(folder, split="within_client", train_fraction=0.8)
    assert samples_of(within, "3", "test") == [padded("<BOS> <UNK> <UNK> <EOS>")]  # the last one
    assert len(samples_of(within, "3", "train")) == 4


@pytest.mark.parametrize("place", [".", "new_small_data"])
def test_the_small_version_has_three_files(folder: Path, tmp_path: Path, place: str) -> None:
    small = tmp_path / "small"
    (small / place).mkdir(parents=True)
    for part, (first, last) in PARTS.items():
        (small / place / f"{part}_data.json").write_text(json.dumps(leaf_json(COMMENTS, first, last)))
    expected = load(folder)
    for user in COMMENTS:
        assert samples_of(load(small), user) == samples_of(expected, user)


def test_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"There is no folder .*nowhere with the files of LEAF's Reddit"):
        load(tmp_path / "nowhere")
    for path in (folder / "val").iterdir():
        path.unlink()
    with pytest.raises(BadInputError, match=r"lacks val; it must hold train, val, test; folders with LEAF's files"):
        load(folder)


def left_over(folder: Path) -> list[str]:
    path = cached_path("reddit", {"folder": str(folder)})
    return [found.name for found in path.parent.glob(f".{path.name}*") if not found.name.endswith(".lock")]


def changed(content: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> str:
    change(content)
    return json.dumps(content)


def user_1(content: dict[str, Any]) -> dict[str, Any]:
    return content["user_data"]["1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("user_data"), "is not LEAF's JSON: it has no user_data"),
        (lambda c: c["users"].append("9"), "lists 3 different users and has the data of 2"),
        (lambda c: c["users"].remove("3"), "has data of user '3', who is not among its users"),
        (lambda c: c["users"].append("3"), "lists user '3' twice"),
        (lambda c: c.update(users="1"), "users must be a list of names"),
        (lambda c: c.update(user_data=[]), r"is not LEAF's JSON: line 1, byte \d+ cannot be read"),
        (lambda c: user_1(c).pop("y"), "user '1' must have the lists x and y"),
        (lambda c: user_1(c)["x"].pop(), "user '1' has 2 comments in x and 3 in y"),
        (lambda c: user_1(c)["y"][1].pop("subreddit"), "user '1' has no subreddit of comment 2"),
        (lambda c: user_1(c)["x"][1].append("text"), "user '1' has a comment 2 that is not a list of lists of words"),
        (lambda c: user_1(c)["x"][1][0].append(7), "user '1' has a comment 2 that is not a list of lists of words"),
        (lambda c: user_1(c)["x"][1][0].append("two words"), "has a comment 2 that is not"),
        (lambda c: user_1(c)["x"][1][0].append("\ud800"), "a comment of user '1' is not valid Unicode"),
        (lambda c: user_1(c).update(x=[], y=[]), "user '1' has no comments"),
    ],
)
def test_json_that_is_not_leafs(folder: Path, change: Callable[[dict[str, Any]], object], sentence: str) -> None:
    path = folder / "train" / "reddit_0_train.json"
    path.write_text(changed(json.loads(path.read_text()), change))
    with pytest.raises(BadInputError, match=f"{path}.*{sentence}"):
        load(folder)
    assert left_over(folder) == []


@pytest.mark.parametrize("block_bytes", [1 << 22, 50])
def test_files_that_are_not_json(folder: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(json_stream, "BLOCK_BYTES", block_bytes)
    path = folder / "train" / "reddit_1_train.json"
    content = json.dumps(json.loads(path.read_text()), indent=1)
    path.write_text(content[: len(content) // 2])
    with pytest.raises(DamagedFileError, match=f"{path} ends in line [0-9]+ in the middle of LEAF's JSON"):
        load(folder)
    place = content.index("hello") + 2
    path.write_text(content[:place])
    with pytest.raises(DamagedFileError, match="in the middle of LEAF's JSON"):
        load(folder)
    place = content.index('"subreddit"')
    path.write_text(content[:place] + "?" + content[place:])
    line = content[:place].count("\n") + 1
    with pytest.raises(BadInputError, match=f"{path} is not LEAF's JSON: line {line}, byte [0-9]+ cannot be read"):
        load(folder)
    path.write_bytes(content.replace("hello", "h\xe9llo", 1).encode("latin-1"))
    with pytest.raises(BadInputError, match=f"{path} is not in UTF-8 at about byte [0-9]+"):
        load(folder)
    path.write_text(content + "{}")
    with pytest.raises(BadInputError, match="cannot be read"):
        load(folder)
    path.write_text("[" * 100_000)
    with pytest.raises(BadInputError, match="is not LEAF's JSON"):
        load(folder)


def test_users_who_are_there_twice(folder: Path) -> None:
    first, second = (folder / "val" / f"reddit_{number}_val.json" for number in range(2))
    second.write_bytes(first.read_bytes())
    with pytest.raises(BadInputError, match=f"User '[13]' is there twice, in {first} and {second}"):
        load(folder)
    text = json.dumps(leaf_json({"2": COMMENTS["2"]}, 0.6, 0.8))
    entry = text[text.index('"2": {') : -2]
    second.write_text('{"user_data": {' + f"{entry}, {entry}" + "}}")
    with pytest.raises(BadInputError, match=f"User '2' is there twice, in {second}"):
        load(folder)


def test_words_and_users_outside_of_ascii_and_users_at_the_end(tmp_path: Path) -> None:
    users = {"zo\xeb": [("caf\xe9 \u4f60\u597d", "r\xe9")] * 5, **COMMENTS}
    folder = write(tmp_path / "raw", users, files=1)
    for path in folder.glob("*/*.json"):
        content = json.loads(path.read_text())
        content["users"] = content.pop("users")  # behind user_data
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    federation = load(folder)
    assert samples_of(federation, "zo\xeb", "test") == [padded("<BOS> caf\xe9 \u4f60\u597d <EOS>")]


class InterruptionError(Exception):
    """Stands for a process that was killed."""


def test_an_interrupted_build_goes_on_and_gives_the_same_store(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_stream, "BLOCK_BYTES", 500)
    monkeypatch.setattr(leaf_comments, "PIECE_BYTES", 3_000)
    monkeypatch.setattr(buckets, "CHECKPOINT_BYTES", 1_000)
    monkeypatch.setattr(buckets, "INPUT_BYTES_PER_BUCKET", 20_000)
    random = np.random.default_rng(2)
    users = {
        f"\xfcser {number}": [(" ".join(random.choice(list("abcdefg"), 9)), f"r{random.integers(3)}")] * 6
        for number in range(30)
    }
    folder = write(tmp_path / "raw", users, files=3)
    steps: list[tuple[float, str]] = []
    whole = load(folder, lambda *step: steps.append(step))
    load(folder, lambda *step: pytest.fail("The second call does nothing"))
    assert [fraction for fraction, _ in steps] == sorted(fraction for fraction, _ in steps)
    whole.path.rename(tmp_path / "whole")
    seen: list[float] = []

    def interrupt(fraction: float, words: str) -> None:
        if fraction not in seen:
            seen.append(fraction)
            raise InterruptionError

    while True:
        try:
            again = load(folder, interrupt)
            break
        except InterruptionError:
            assert len(left_over(folder)) == 1
    assert again.fingerprint == whole.fingerprint
    assert len(seen) > 20
    assert left_over(folder) == []
