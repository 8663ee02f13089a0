"""Records of published files as rows for buckets, which remember how many of them they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.many_users.buckets import USER, Piece, Position
from fedarena.data.raw.folders import files_below

PIECE_BYTES = 1 << 22
PIECE_ROWS = 1 << 13
GROUP, LINE = "group", "line"
_BYTES_OF_A_NUMBER = 8


class Record(NamedTuple):
    """A sample of somebody: the values of the columns after ``user``, and how much of its file has been read."""

    user: str
    values: tuple[Any, ...]
    done: float


Records = Callable[[Path], Iterator[Record]]


class RecordReader:
    """Reads files one after the other; going on after an interruption, it passes over what it has read before.

    Files are parsed again up to there, which takes a fraction of the time that it takes to keep their rows.
    """

    def __init__(self, files: Sequence[Path], records: Records, columns: dict[str, pa.DataType]):
        self._files, self._records = list(files), records
        self._schema = pa.schema({USER: pa.string(), **columns})
        self._sizes = [max(bytes_of(path), 1) for path in self._files]
        self.total_bytes = sum(self._sizes)

    def read(self, position: Position | None) -> Iterator[Piece]:
        """All records from a position on."""
        at = position or {"file": 0, "record": 0}
        waiting: list[tuple[int, Record]] = []  # with the number of the file; a piece may be of several files
        waiting_bytes, bytes_before = 0, sum(self._sizes[: at["file"]])
        kinds = [field.type for field in self._schema][1:]
        texts = [place for place, kind in enumerate(kinds) if kind in (pa.string(), pa.binary())]
        number_bytes = _BYTES_OF_A_NUMBER * (len(kinds) - len(texts))
        for number in range(at["file"], len(self._files)):
            first = at["record"] if number == at["file"] else 0
            for count, record in enumerate(islice(self._records(self._files[number]), first, None), first + 1):
                waiting.append((number, record))
                waiting_bytes += number_bytes
                for place in texts:
                    waiting_bytes += len(record.values[place])
                if len(waiting) >= PIECE_ROWS or waiting_bytes >= PIECE_BYTES:
                    fraction = (bytes_before + self._sizes[number] * record.done) / self.total_bytes
                    yield Piece(self._rows(waiting), {"file": number, "record": count}, fraction)
                    waiting, waiting_bytes = [], 0
            bytes_before += self._sizes[number]
        yield Piece(self._rows(waiting), {"file": len(self._files), "record": 0}, 1.0)

    def _rows(self, waiting: Sequence[tuple[int, Record]]) -> pa.RecordBatch:
        columns: list[list[Any]] = [[record.user for _, record in waiting]]
        columns += [[record.values[place] for _, record in waiting] for place in range(len(self._schema) - 1)]
        try:
            arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        except UnicodeEncodeError:  # JSON can write half a character
            wrong = next(number for number, record in waiting if not _is_unicode(record))
            raise BadInputError(f"{self._files[wrong]} has text that is not valid Unicode") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _is_unicode(record: Record) -> bool:
    try:
        "".join(value for value in (record.user, *record.values) if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        return False
    return True


def bytes_of(path: Path) -> int:
    """How long a file is, or all files of a folder."""
    if path.is_dir():
        return sum(entry.stat().st_size for _, entry in files_below(path))
    return path.stat().st_size * (4 if path.suffix in (".gz", ".xz", ".bz2", ".tgz") else 1)
