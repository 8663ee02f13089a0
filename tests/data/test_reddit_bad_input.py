"""Files that are not LEAF's Reddit: one sentence each, and nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comment_files import COMMENTS, leaf_json, left_over, load, write

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.many_users import json_stream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "raw", COMMENTS)


NUMBER = "a number of 5,000 digits"


def changed(content: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> str:
    change(content)
    return json.dumps(content).replace(json.dumps(NUMBER), "9" * 5_000)


def user_1(content: dict[str, Any]) -> dict[str, Any]:
    return content["user_data"]["1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.pop("user_data"), "is not LEAF's JSON: it has no user_data"),
        (lambda c: c["users"].append("9"), "lists 3 different users and has the data of 2"),
        (lambda c: c["users"].remove("3"), "has data of user '3', who is not among its users"),
        (lambda c: c["users"].append("3"), "lists user '3' twice"),
        (lambda c: c.update(users=["1", "9"], user_data=c.pop("user_data")), "has data of user '3', who is not among"),
        (lambda c: c.update(user_data=c.pop("user_data"), users=[*c.pop("users")[1:], "9"]), "lists other users than"),
        (lambda c: c.update(users="1"), "users must be a list of names"),
        (lambda c: c.update(user_data=[]), r"is not LEAF's JSON: line 1, byte \d+ cannot be read"),
        (lambda c: user_1(c).pop("y"), "user '1' must have the lists x and y"),
        (lambda c: user_1(c)["x"].pop(), "user '1' has 2 comments in x and 3 in y"),
        (lambda c: user_1(c)["y"][1].pop("subreddit"), "user '1' has no subreddit of comment 2"),
        (lambda c: c.update(num_samples=[NUMBER]), r"is not LEAF's JSON: line 1, byte \d+ cannot be read"),
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


@pytest.mark.parametrize("key", ["users", "user_data"])
def test_keys_that_are_there_twice(folder: Path, key: str) -> None:
    path = folder / "train" / "reddit_1_train.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content)[:-1] + f', "{key}": {json.dumps(content[key])}' + "}")
    with pytest.raises(BadInputError, match=f"{path} has {key} twice"):
        load(folder)
    assert left_over(folder) == []


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


def test_a_file_that_is_missing_from_one_of_the_folders(folder: Path) -> None:
    (folder / "train" / "reddit_1_train.json").unlink()
    with pytest.raises(BadInputError, match=r"train/reddit_1_train\.json is missing, and .*val/reddit_1_val\.json has"):
        load(folder)
    assert left_over(folder) == []
