"""LEAF's Reddit, from small files that are made as LEAF's code makes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from comment_files import COMMENTS, PARTS, leaf_comment, leaf_json, left_over, load, write
from interrupted_builds import build_in_spite_of_interruptions

from fedarena.core.errors import BadInputError
from fedarena.data import Federation
from fedarena.data.many_users import buckets, comments, json_stream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "raw", COMMENTS)


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
    for user, of_user in COMMENTS.items():
        expected = []
        for comment in of_user[:3]:
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
    with pytest.raises(BadInputError, match=r"federation\.train_fraction is 0\.8, but federation\.split=published"):
        load(folder, train_fraction=0.8)


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


def test_words_and_users_outside_of_ascii_and_users_at_the_end(tmp_path: Path) -> None:
    users = {"zo\xeb": [("caf\xe9 \u4f60\u597d", "r\xe9")] * 5, **COMMENTS}
    folder = write(tmp_path / "raw", users, files=1)
    for path in folder.glob("*/*.json"):
        content = json.loads(path.read_text())
        content["users"] = content.pop("users")  # behind user_data
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    federation = load(folder)
    assert samples_of(federation, "zo\xeb", "test") == [padded("<BOS> caf\xe9 \u4f60\u597d <EOS>")]


def test_words_like_padding_and_comments_of_one_word(tmp_path: Path) -> None:
    users = {"1": [("pad <PAD>dle <PADs x", "pics")] * 5, "2": [("x", "aww")] * 5}
    folder = write(tmp_path / "raw", users, files=1)
    for path in folder.glob("*/*.json"):
        content = json.loads(path.read_text())
        for comment in range(len(content["user_data"]["2"]["x"])):
            content["user_data"]["2"]["x"][comment] = [["alone", "<PAD>"]]
        path.write_text(json.dumps(content))
    federation = load(folder)
    assert federation.client_ids(federation.clients()) == ["1"]  # nothing can be predicted of the other
    assert samples_of(federation, "1", "test") == [padded("<BOS> pad <PAD>dle <PADs x <EOS>")]


def test_an_interrupted_build_goes_on_and_gives_the_same_store(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_stream, "BLOCK_BYTES", 500)
    monkeypatch.setattr(comments, "PIECE_BYTES", 3_000)
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

    def look() -> None:
        assert len(left_over(folder)) == 2

    again, seen = build_in_spite_of_interruptions(lambda progress: load(folder, progress), 3 * len(steps), look)
    assert again.fingerprint == whole.fingerprint
    assert len(seen) > 20
    assert left_over(folder) == []
