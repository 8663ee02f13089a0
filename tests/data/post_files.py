"""Small dumps in the form of Stack Exchange's Posts.xml."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

from fedarena.data import Federation, load_federation

Row = dict[str, object]

ASKED = "<p>Are <b>hops</b> &lt;3?</p>\n"
POSTS: list[Row] = [
    {"Id": 1, "PostTypeId": 1, "OwnerUserId": 7, "Title": "Which hops?", "Body": ASKED, "Tags": "<hops><taste>"},
    {"Id": 2, "PostTypeId": 2, "ParentId": 1, "OwnerUserId": 8, "Body": "<p>Citra\xa0hops</p>"},
    {"Id": 3, "PostTypeId": 1, "OwnerUserId": 8, "Title": "Old ale", "Body": "<p>how old</p>", "Tags": "|history|"},
    {"Id": 4, "PostTypeId": 2, "ParentId": 3, "Body": "<p>of a deleted user</p>", "OwnerDisplayName": "gone"},
    {"Id": 5, "PostTypeId": 2, "ParentId": 99, "OwnerUserId": 7, "Body": "<p>of a deleted question</p>"},
    {"Id": 6, "PostTypeId": 5, "Body": "what a tag is"},
    {"Id": 7, "PostTypeId": 1, "Title": "Orphan", "Body": "<p>asks</p>", "Tags": "<hops>"},
    {"Id": 8, "PostTypeId": 2, "ParentId": 7, "OwnerUserId": 9, "Body": "<p>answers hops</p>"},
    {"Id": 9, "PostTypeId": 1, "OwnerUserId": 9, "Title": "Rare", "Body": "", "Tags": "<rare>"},
    {"Id": 10, "PostTypeId": 2, "ParentId": 3, "OwnerUserId": 7, "Body": "<p>Very</p>"},
]  # fmt: skip


def dump(rows: list[Row] = POSTS) -> bytes:
    lines = ["  <row " + " ".join(f"{name}={_quoted(value)}" for name, value in row.items()) + " />" for row in rows]
    return "\n".join(['\ufeff<?xml version="1.0" encoding="utf-8"?>', "<posts>", *lines, "</posts>"]).encode()


def _quoted(value: object) -> str:
    return quoteattr(str(value), {"\n": "&#xA;"})


def write(folder: Path, content: bytes = dump(), name: str = "Posts.xml") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def load(folder: Path, progress=None, **options: object) -> Federation:
    defaults = {"tags": 2, "split": "by_client", "train_fraction": 1.0, "validation_fraction": 0.0}
    return load_federation("stackexchange", {"folder": str(folder), **defaults, **options}, progress)


def posts_of(federation: Federation) -> dict[str, list[tuple[str, list[str]]]]:
    """The words of every user's posts, and their tags."""
    words, tags, found = federation.task.token_names, federation.task.label_names, {}
    for client, user in enumerate(federation.client_ids(federation.clients())):
        columns = federation.samples([client]).columns
        texts = [" ".join(words[token] for token in row if token) for row in columns["x"]]
        labels = [[tag for tag, has in zip(tags, row, strict=True) if has] for row in columns["y"]]
        found[user] = list(zip(texts, labels, strict=True))
    return found
