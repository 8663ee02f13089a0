"""Files that are not LEAF's, or not as they should be: one sentence each, and nothing is left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import load_federation
from fedarena.data.leaf.writing import export_leaf
from fedarena.data.registry import cache_folder

Change = Callable[[dict[str, Any]], object]


def file() -> dict[str, Any]:
    return {
        "users": ["ann", "bob"],
        "num_samples": [2, 1],
        "user_data": {"ann": {"x": [[0.5, 1], [1, 1]], "y": [0, 1]}, "bob": {"x": [[3, 2]], "y": [2]}},
    }


def refusal(path: Path, **options: Any) -> BadInputError:
    before = set(cache_folder().iterdir())
    with pytest.raises(BadInputError) as raised:
        load_federation("leaf", {"folder": str(path), **options})
    assert set(cache_folder().iterdir()) == before
    assert raised.value.exit_code == 2
    return raised.value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.pop("users"), "is not LEAF's: it has no 'users'"),
        (lambda f: f.pop("user_data"), "is not LEAF's: it has no 'user_data'"),
        (lambda f: f["users"].append("eve"), "has 3 users but 2 numbers in num_samples"),
        (lambda f: f["num_samples"].pop(), "has 2 users but 1 numbers in num_samples"),
        (lambda f: f.update(num_samples=[2, "1"]), "num_samples must be a list of numbers of samples"),
        (lambda f: f.update(num_samples=[2, 3]), "user 'bob' has 1 samples, but num_samples says 3"),
        (lambda f: f.update(num_samples=[1, 1]), "user 'ann' has 2 samples, but num_samples says 1"),
        (lambda f: f.update(users=["ann", 7]), "users must be a list of strings"),
        (lambda f: f.update(users=["ann", "eve"]), "user 'eve' is in users, but has nothing in user_data"),
        (lambda f: f.update(users=["ann", "ann"]), "user 'ann' is in users twice"),
        (
            lambda f: f.update(users=["ann"], num_samples=[2]),
            "user 'bob' has samples in user_data, but is not",
        ),
        (lambda f: f.update(user_data=[]), "user_data must be an object with an entry for every user"),
        (lambda f: f["user_data"].update(bob=[1]), "user 'bob' must have two lists, x and y"),
        (lambda f: f["user_data"]["ann"]["y"].pop(), "user 'ann' has 2 samples in x, but 1 in y"),
        (lambda f: f.update(hierarchies=["a"]), "has 2 users but 1 hierarchies"),
        (lambda f: f.update(hierarchies=["a", {}]), "the hierarchy of user 'bob' must be text"),
        (
            lambda f: f["user_data"]["bob"].update(x=[[3]]),
            "user 'bob': x has 1 numbers in a sample, where",
        ),
        (lambda f: f["user_data"]["bob"].update(x=[[3, "b"]]), "user 'bob': x must be lists of 2 numbers"),
        (lambda f: f["user_data"]["bob"].update(x=[[3, None]]), "user 'bob': x holds null, or a number that is too"),
        (lambda f: f["user_data"]["bob"].update(x=[[3, -1e39]]), "user 'bob': x holds null, or a number that is too"),
        (
            lambda f: f["user_data"]["ann"].update(x=[[1, [2]], [1, [2]]]),
            "user 'ann': x must be a list of numbers, or of lists of equal length",
        ),
        (
            lambda f: f["user_data"]["bob"].update(y=[0.5]),
            "user 'bob': y holds 0.5, which is no label: labels are whole",
        ),
        (lambda f: f["user_data"]["bob"].update(y=["7_0"]), "y holds both words such as '7_0' and numbers such as 0"),
        (lambda f: f["user_data"]["bob"].update(y=[2**60]), "user 'bob': y holds 1.152921504606847e.18, which is no"),
        (lambda f: f["user_data"]["bob"].update(y=[[1, 2]]), "user 'bob': y must be one label for every sample, a num"),
        (lambda f: f["user_data"]["bob"].update(y=[None]), "user 'bob': y must be one label for .*, not None"),
        (lambda f: f["user_data"]["ann"].update(x=["1.jpg", "2.jpg"]), "the federation celeba reads them"),
        (
            lambda f: f["user_data"]["ann"].update(x=[[["a"]], [["b"]]]),
            "LEAF's Reddit, which the federation reddit reads",
        ),
        (lambda f: f["user_data"]["ann"].update(x=[None, None]), "x is None, which is no sample of LEAF's"),
        (lambda f: f.update(fedarena={"version": 1}), "fedarena.federation is missing"),
    ],
)
def test_contents_that_do_not_fit(tmp_path: Path, change: Change, sentence: str) -> None:
    content = file()
    change(content)
    path = tmp_path / "all_data.json"
    path.write_text(json.dumps(content))
    error = refusal(path)
    assert str(path) in str(error)
    assert re.search(sentence, str(error)), str(error)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is damaged: it ends in the middle of its JSON"),
        (json.dumps(file()).encode()[:-20], "is damaged: it ends in the middle of its JSON"),
        (json.dumps(file()).encode() + b"{}", r"is not valid JSON \(trailing garbage"),
        (json.dumps(file()).replace("0.5", "NaN").encode(), "is not valid JSON .*; JSON has no NaN and no Infinity"),
        (b'{"users": ["\xff"]}', "is damaged: it holds bytes that are not UTF-8"),
        (b"[1, 2]", "it is not an object with users, num_samples and user_data"),
        (b"id,text\n1,hello\n", "is not valid JSON"),
        (b'{"users": [], "users": []}', "it has 'users' twice"),
        (b'{"users": [], "num_samples": [], "user_data": {}}', "There are no samples in"),
        (b'{"users": ["a"], "num_samples": [1], "user_data": {"a": {}, "a": {}}}', "user 'a' is in user_data twice"),
    ],
)
def test_files_that_cannot_be_parsed(tmp_path: Path, text: bytes, sentence: str) -> None:
    path = tmp_path / "all_data.json"
    path.write_bytes(text)
    error = refusal(path)
    assert str(path) in str(error)
    assert re.search(sentence, str(error)), str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("where", ['{"users": %s}', '{"user_data": {"ann": {"x": %s}}}'])
def test_lists_that_are_too_deep(tmp_path: Path, where: str) -> None:
    """Refused while they are looked through: each level of a value costs memory."""
    path = tmp_path / "a.json"
    path.write_text(where % ("[" * 200_000))
    assert "lists and objects are in each other more than 64 deep" in str(refusal(path))


def test_the_deepest_lists(tmp_path: Path) -> None:
    """Of 64 levels four are the file, user_data, the user and the list of samples."""
    path = tmp_path / "a.json"
    text = '{"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [%s1%s], "y": [0]}}}'
    path.write_text(text % ("[" * 60, "]" * 60))
    assert load_federation("leaf", {"folder": str(path)}).columns["x"].shape == (1,) * 60
    path.write_text(text % ("[" * 61, "]" * 61))
    assert "more than 64 deep" in str(refusal(path))


def test_damage_behind_the_users_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "all_data.json"
    path.write_text(json.dumps(file())[:-3])
    assert isinstance(refusal(path), DamagedFileError)


def test_users_without_samples_are_left_out_if_asked(tmp_path: Path) -> None:
    content = file()
    content["user_data"]["bob"] = {"x": [], "y": []}
    content["num_samples"][1] = 0
    (tmp_path / "a.json").write_text(json.dumps(content))
    error = refusal(tmp_path)
    assert str(error).startswith("User 'bob' has no samples, like 1 of 2 users; federation.minimum_samples=1 leaves")
    kept = load_federation("leaf", {"folder": str(tmp_path), "minimum_samples": 1})
    assert kept.client_ids(kept.clients()) == ["ann"]


def test_the_same_user_in_two_files(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(file()))
    assert str(refusal(tmp_path)) == f"User 'ann' is in {tmp_path / 'a.json'} and in {tmp_path / 'b.json'}"


def test_the_same_file_for_two_parts(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / f"all_data_{part}_9.json").write_text(json.dumps(file()))
    assert "train_9.json and " in str(error := refusal(tmp_path))
    assert "test_9.json are the same file, and cannot be for two parts" in str(error)


def test_folders_without_files(tmp_path: Path) -> None:
    assert "holds no data of LEAF: there are no files that end in .json" in str(refusal(tmp_path))
    assert "There is no folder or file" in str(refusal(tmp_path / "nowhere"))


def test_what_is_no_tweet_among_tweets(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    tweet = ["1467", "Mon Apr 06", "NO_QUERY", "ann", "good"]
    for other in (["just", "some", "words", "of", "mine"], "a text", ["1", "2"], ["1467", "Mon", "NO", "ann", 5]):
        content = {"users": ["ann"], "num_samples": [2], "user_data": {"ann": {"x": [tweet, other], "y": [0, 1]}}}
        path.write_text(json.dumps(content))
        sentence = "x must be lists of id, date, query, user and text, as the first sample looks, not"
        assert sentence in str(refusal(path))
        assert "write lists of words as texts" in str(refusal(path))


def test_options_that_do_not_fit_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(file()))
    assert "x is no text, so samples cannot be characters" in str(refusal(path, kind="characters"))
    assert "x must be texts, words, or lists of id, date, query, user and text" in str(refusal(path, kind="tweets"))
    assert "y holds 2, which is no label from 0 to 1" in str(refusal(path, classes=2))
    assert "nobody has more than 2 samples" in str(refusal(path, minimum_samples=3))
    assert "federation.length: input should be less than or equal to 100000" in str(refusal(path, length=10**12))
    assert "federation.classes: input should be less than or equal to 100000" in str(refusal(path, classes=10**12))
    content = file()
    content["user_data"]["bob"]["y"] = [-1]
    path.write_text(json.dumps(content))
    sentence = "federation.classes is 5, but y holds 3 labels that are no numbers from 0 (-1, 0, 1); leave classes out"
    assert sentence in str(refusal(path, classes=5))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda f: f["fedarena"]["clients"].append(2),
            "fedarena: clients, groups and attributes do not fit",
        ),
        (lambda f: f["fedarena"].update(clients=[0, 0]), "user 'client-0001' has the number of somebody else"),
        (lambda f: f["fedarena"].update(clients=[0, 5]), "user 'client-0001' has the number of somebody else"),
        (
            lambda f: f["user_data"]["client-0000"]["x"][0].pop(),
            "'client-0000': x holds something else than lists of 64",
        ),
        (lambda f: f["user_data"]["client-0000"]["x"][0].append(1), "x holds something else than lists"),
        (lambda f: f["user_data"]["client-0000"]["x"][0].__setitem__(0, None), "x holds null, or a number that is"),
        (lambda f: f["user_data"]["client-0000"]["x"][0].__setitem__(0, 1e39), "too large for the type float32"),
        (
            lambda f: f["user_data"]["client-0001"]["y"].__setitem__(0, 1.5),
            "y holds numbers that are not",
        ),
        (lambda f: f["user_data"]["client-0001"]["y"].__setitem__(0, 10), "only 0 to 9 are valid labels"),
    ],
)
def test_exported_files_that_were_changed(tmp_path: Path, change: Change, sentence: str) -> None:
    federation = load_federation("digits", {"partition": {"name": "iid", "clients": 2}})
    export_leaf(federation, tmp_path / "leaf", 10, lambda fraction, text: None)
    path = tmp_path / "leaf" / "train" / "all_data_0_train.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    assert re.search(sentence, str(error := refusal(tmp_path / "leaf"))), str(error)
