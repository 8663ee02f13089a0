"""Small files in the published form of Sentiment140: an archive with two tables, Latin-1, everything quoted."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

from fedarena.data import Federation, load_federation
from fedarena.data.registry import cached_path
from fedarena.data.sources.sent140 import TABLES

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


def load(folder: Path, progress=None, **options: object) -> Federation:
    return load_federation("sent140", {"folder": str(folder), "verify": False, **options}, progress)


def left_over(folder: Path, **options: object) -> list[str]:
    """What a build left besides the store."""
    path = cached_path("sent140", {"folder": str(folder), "verify": False, **options})
    return sorted(found.name for found in path.parent.glob(f".{path.name}*"))
