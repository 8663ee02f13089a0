"""Small files of Reddit comments, made as LEAF's code makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedarena.data import Federation, load_federation
from fedarena.data.registry import cached_path

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


def load(folder: Path, progress=None, **options: object) -> Federation:
    return load_federation("reddit", {"folder": str(folder), **options}, progress)


def left_over(folder: Path) -> list[str]:
    path = cached_path("reddit", {"folder": str(folder)})
    return sorted(found.name for found in path.parent.glob(f".{path.name}*"))
