"""Writing files so that a reader sees the old content or the new one, never a half of it; reading compressed ones."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, CannotReadError, DamagedFileError

MAX_FILE_BYTES = 1 << 31
_GZIP = b"\x1f\x8b"
# Reasons not to get at a file that have nothing to do with what is in it.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
_NOT_DAMAGED = "that does not mean that it is damaged"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside `path`; on success the file there is made durable and takes its place.

    What is not a plain file, such as ``/dev/stdout``, is written to: its place must not be taken.
    """
    is_special = _is_special(path)
    folder = Path(tempfile.gettempdir()) if is_special else path.parent
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        if is_special:
            with open(temporary, "rb") as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            return
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
def reading(path: Path) -> Iterator[None]:
    """Tells a shortage from damage: a file that cannot be read for lack of memory, say, may be as good as ever.

    What is not a plain file is refused: whoever opens a pipe waits for somebody to write to it.
    """
    try:
        if _is_special(path):
            raise DamagedFileError(f"{path} cannot be read: it is neither a file nor a folder")
        yield
    except MemoryError as error:
        raise CannotReadError(f"{path} cannot be read: there is not enough memory; {_NOT_DAMAGED}") from error
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise CannotReadError(f"{path} cannot be read: {os.strerror(error.errno).lower()}; {_NOT_DAMAGED}") from error


def _is_special(path: Path) -> bool:
    """Whether something is there that is neither a file nor a folder, such as a pipe or a device."""
    return path.exists() and not path.is_file() and not path.is_dir()


def as_people_sort(name: str) -> list[tuple[int, str]]:
    """A key to sort names by: numbers in them count as numbers, so that epochs5 comes before epochs20."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]{1,18})", name)]


def fingerprint_of(source: bytes) -> str:
    """What tells one content of a source file from another, however lines end."""
    return hashlib.blake2b(source.replace(b"\r\n", b"\n"), digest_size=8).hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces the content of `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Replaces the content of `path` atomically."""
    write_bytes(path, text.encode())


def json_text(value: Any) -> str:
    """`value` as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Replaces the content of `path` atomically with `value` as indented JSON."""
    write_text(path, json_text(value))


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
