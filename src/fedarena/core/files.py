"""Writing files so that a reader sees the old content or the new one, never a half of it; reading compressed ones."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, RunFailedError

MAX_FILE_BYTES = 1 << 31
_GZIP = b"\x1f\x8b"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside `path`; on success the file there is made durable and takes its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        # Nobody asked for the temporary file, and a full disk names none.
        if error.errno is not None and error.filename in (None, str(temporary), temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, what: str) -> Iterator[Path]:
    """A temporary folder beside `path`, which gets that name when the block ends, unless it raises."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_folder(temporary)
        if path.exists():  # renaming would replace an empty folder without a word
            raise BadInputError(f"{path} was made by somebody else meanwhile.")
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunFailedError(f"Cannot write {what} {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def as_people_sort(name: str) -> list[tuple[int, str]]:
    """A key to sort names by: numbers in them count as numbers, so that epochs5 comes before epochs20."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]{1,18})", name)]


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replaces the content of `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replaces the content of `path` atomically with `value` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, uncompressed if it is compressed with gzip."""
    file = os.path.expanduser(path)  # which leaves unknown users alone
    try:
        with open(file, "rb") as opened:
            begin = opened.read(len(_GZIP))
            opened.seek(0)
            if begin == _GZIP:
                with gzip.open(opened) as uncompressed:
                    data = uncompressed.read(MAX_FILE_BYTES + 1)
            else:
                data = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise BadInputError(f"There is no file {path}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise BadInputError(f"{path} is damaged: it begins like a gzip file but cannot be uncompressed") from None
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadInputError(f"{path} is too large: more than {MAX_FILE_BYTES:,} bytes")
    if not data.strip():
        raise BadInputError(f"{path} is empty")
    return data
