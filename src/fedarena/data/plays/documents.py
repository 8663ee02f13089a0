"""Texts inside an archive, a folder or a file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import MAX_FILE_BYTES, read_bytes
from fedarena.data.raw.folders import files_below, is_hidden, refuse


def documents(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of all files with this ending in a zip archive or a folder, or of the file itself."""
    if path.is_dir():
        for file in sorted(path / name for name, _ in files_below(path) if name.endswith(suffix)):
            yield str(file), read_bytes(file)
    elif path.suffix == ".zip":
        yield from _members(path, suffix)
    else:
        yield str(path), read_bytes(path)


def _members(path: Path, suffix: str) -> Iterator[tuple[str, bytes]]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; an OSError later on means damage
    except OSError as error:
        refuse(error)
    try:
        with file, zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.filename.endswith(suffix) and not is_hidden(member.filename):
                    if member.file_size > MAX_FILE_BYTES:
                        raise BadInputError(f"{path}: {member.filename} is too large: {member.file_size:,} bytes")
                    yield f"{path}: {member.filename}", archive.read(member)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError) as error:
        raise DamagedFileError(f"{path} is damaged: it cannot be unpacked ({error}); get it again") from None
    except (NotImplementedError, RuntimeError) as error:  # another compression, a password
        raise BadInputError(f"{path} cannot be unpacked: {error}") from None


def decoded(content: bytes, where: str) -> str:
    """A text of UTF-8; raises a sentence with the line of the first byte that is not."""
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInputError(f"{where}, line {line}: byte {content[error.start]:#04x} is not UTF-8") from None
