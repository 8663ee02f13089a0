"""Published files, plain or packed, read forward: as bytes, as lines, as tables, and archives member by member."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from typing import IO, NamedTuple, cast

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.outside_text import quoted
from fedarena.data.raw.folders import is_hidden
from fedarena.data.raw.trees import open_tree

PACKINGS = (".gz", ".xz", ".bz2")
_TARS = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")
_MOST_BYTES_OF_A_VALUE = 1 << 26
MAX_MEMBER_BYTES = 1 << 28


@dataclass(frozen=True)
class Opened:
    """A file that is read forward, unpacked."""

    path: Path
    file: IO[bytes]
    _packed: IO[bytes]
    _size: int

    def fraction(self) -> float:
        """How much of the file has been read."""
        return min(self._packed.tell() / self._size, 1.0)


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Opens a file and unpacks it while it is read; a file that cannot be unpacked is damaged."""
    size = path.stat().st_size
    if size == 0:
        raise BadInputError(f"{path} is empty")
    with open(path, "rb") as packed:
        file: IO[bytes] = packed
        if path.suffix == ".gz":
            file = cast(IO[bytes], gzip.GzipFile(fileobj=packed))
        elif path.suffix == ".xz":
            file = cast(IO[bytes], lzma.LZMAFile(packed))  # noqa: SIM115 (nothing is left open but `packed`)
        elif path.suffix == ".bz2":
            file = cast(IO[bytes], bz2.BZ2File(packed))
        with unpacking(path):
            yield Opened(path, file, packed, size)


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Turns what unpackers complain about into a sentence."""
    try:
        yield
    except (lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise DamagedFileError(f"{path} is damaged: it cannot be unpacked ({error})") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedFileError(f"{path} is damaged: it cannot be unpacked ({error})") from None


def lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str, float]]:
    """Every line with its number, without its end, and how much of the file has been read."""
    with opened(path) as source:
        for number, line in enumerate(source.file, 1):
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError:
                raise BadInputError(f"{path}, line {number:,}: this is not {encoding.upper()} text") from None
            yield number, text.rstrip("\r\n"), source.fraction()


def csv_rows(path: Path, delimiter: str = ",", quotes: bool = True) -> Iterator[tuple[int, list[str], float]]:
    """Every row of a table that is not empty, with the number of its last line."""
    with opened(path) as source, io.TextIOWrapper(source.file, "utf-8-sig", newline="") as text:
        reader = (
            csv.reader(text, delimiter=delimiter)
            if quotes
            else csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE)
        )
        while True:
            usual = csv.field_size_limit(_MOST_BYTES_OF_A_VALUE)  # one number for all readers of this process
            try:
                values = next(reader, None)
            except UnicodeDecodeError:
                raise BadInputError(f"{path} is not UTF-8 text after line {reader.line_num:,}") from None
            except csv.Error as error:
                raise BadInputError(f"{path}, line {reader.line_num:,} cannot be read as a table: {error}") from None
            finally:
                csv.field_size_limit(usual)
            if values is None:
                return
            if values:
                yield reader.line_num, values, source.fraction()


class Heading:
    """The names of a table's columns; `place` finds one by any of its names."""

    def __init__(self, path: Path, names: Sequence[str]):
        self.path, self.names = path, [name.strip() for name in names]

    def place(self, *names: str) -> int:
        """Where a column is that has one of these names."""
        found = self.find(*names)
        if found is None:
            raise BadInputError(
                f"{self.path}, line 1 has no column {' or '.join(names)}; it has: {', '.join(self.names)[:200]}"
            )
        return found

    def find(self, *names: str) -> int | None:
        """The same; None if there is no such column."""
        return next((self.names.index(name) for name in names if name in self.names), None)

    def check(self, line: int, values: Sequence[str]) -> None:
        """Raises unless a row has as many values as there are columns."""
        if len(values) != len(self.names):
            raise BadInputError(
                f"{self.path}, line {line:,} has {len(values)} values; the heading has {len(self.names)} columns"
            )


def table_rows(path: Path, delimiter: str = ",", quotes: bool = True) -> tuple[Heading, Iterator[TableRow]]:
    """The heading of a table and its rows."""
    rows = csv_rows(path, delimiter, quotes)
    _, names, _ = next(rows, (1, None, 0.0))
    if names is None:
        raise BadInputError(f"{path} is empty")
    heading = Heading(path, names)

    def checked() -> Iterator[TableRow]:
        for line, values, done in rows:
            heading.check(line, values)
            yield TableRow(line, values, done)

    return heading, checked()


class TableRow(NamedTuple):
    """A row of a table."""

    line: int
    values: list[str]
    done: float  # of the file


@dataclass(frozen=True)
class Member:
    """A file in a folder or in an archive."""

    name: str  # with slashes
    content: bytes
    where: str  # for sentences
    done: float  # of the folder or archive


def members(path: Path, wanted: Pattern[str]) -> Iterator[Member]:
    """The files of a folder, a .zip (both sorted by name) or a .tar, packed or not (as they come), by their names."""
    if path.is_dir() or path.suffix.lower() == ".zip":
        with open_tree(path, wanted) as tree:
            for index, name in enumerate(tree.names):
                yield Member(name, tree.read(index), tree.where(index), (index + 1) / len(tree.names))
        return
    size = max(path.stat().st_size, 1)
    with open(path, "rb") as file, unpacking(path), tarfile.open(fileobj=file, mode="r|*") as archive:
        for entry in archive:
            name = entry.name.removeprefix("./")
            if not entry.isfile() or is_hidden(name) or not wanted.search(name):
                continue
            if entry.size > MAX_MEMBER_BYTES:
                raise BadInputError(f"{name} in {path} has {entry.size:,} bytes, more than {MAX_MEMBER_BYTES:,}")
            content = archive.extractfile(entry)
            assert content is not None  # it is a file
            yield Member(name, content.read(), f"{name} in {path}", min(file.tell() / size, 1.0))


def read_whole(path: str) -> bytes:
    """The bytes of a file that was there when it was looked for."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise BadInputError(f"There is no file {path} any more") from None


def is_archive(path: Path) -> bool:
    """Whether `members` reads it, if it is no folder."""
    return path.is_file() and path.name.lower().endswith((".zip", *_TARS))


def whole_number(text: str, what: str, where: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadInputError(f"{where}: {what} must be a whole number, not {quoted(text)}")
    return int(text)


def number(text: str, what: str, where: str) -> float:
    """A number that is finite."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise BadInputError(f"{where}: {what} must be a number, not {quoted(text)}")
    return value
