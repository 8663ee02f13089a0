"""Large files of lines, in a folder or in a zip archive, read in blocks of whole lines from any line on."""

from __future__ import annotations

import errno
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from fedarena.core.errors import BadInputError, DamagedFileError

MAX_LINE_BYTES = 1 << 23


@dataclass(frozen=True)
class LineFile:
    """A file in a folder or in a zip archive."""

    place: Path
    name: str
    holds: ClassVar[str] = "lines"  # for sentences

    def __str__(self) -> str:
        return f"{self.name} in {self.place}" if self.place.is_file() else str(self.place / self.name)

    def size_bytes(self) -> int:
        """How long it is, uncompressed."""
        if self.place.is_dir():
            size = (self.place / self.name).stat().st_size
        else:
            with self._reading(), zipfile.ZipFile(self.place) as archive:
                if self.name not in archive.namelist():
                    raise BadInputError(f"{self.place} does not contain {self.name}")
                size = archive.getinfo(self.name).file_size
        if size == 0:
            raise BadInputError(f"{self} is empty")
        return size

    def blocks(self, byte: int, block_bytes: int, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
        """Whole lines, many at a time, from a byte on at which one begins."""
        with self._reading(), self._open() as file:
            file.seek(byte)
            rest = b""
            while True:
                read = file.read(block_bytes)
                block = rest + read
                end = block.rfind(b"\n") + 1 if read else len(block)
                block, rest = block[:end], block[end:]
                byte += len(block)
                if len(rest) > max_line_bytes:
                    raise BadInputError(
                        f"{self} is not a table of {self.holds}: the line that begins after {byte:,} bytes does not end"
                    )
                if block:
                    yield block
                if not read:
                    return

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self.place.is_dir():
            with open(self.place / self.name, "rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self.place) as archive, archive.open(self.name) as member:
                yield member

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: encrypted, unknown method
            raise self._damaged(error) from None
        except OSError as error:
            # Places outside of the file, and bzip2 data that is none; everything else is the machine's failure.
            if self.place.is_dir() or error.filename is not None or error.errno not in (None, errno.EINVAL):
                raise
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> DamagedFileError:
        return DamagedFileError(f"{self.place} is damaged: {self.name} cannot be unpacked ({error})")
