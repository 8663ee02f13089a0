"""Records of published files as rows for buckets, which remember how many of them they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.data.many_users.buckets import USER, Piece, Position
from fedarena.data.raw.folders import files_below

PIECE_BYTES = 1 << 22
PIECE_ROWS = 1 << 13
GROUP, LINE = "group", "line"
_BYTES_OF_A_NUMBER = 8


@dataclass(frozen=True)
class Record:
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
        for number in range(at["file"], len(self._files)):
            before, size = sum(self._sizes[:number]), self._sizes[number]
            first = at["record"] if number == at["file"] else 0
            waiting: list[Record] = []
            waiting_bytes, count = 0, first
            for record in islice(self._records(self._files[number]), first, None):
                waiting.append(record)
                waiting_bytes += sum(
                    len(value) if isinstance(value, str | bytes) else _BYTES_OF_A_NUMBER for value in record.values
                )
                if len(waiting) >= PIECE_ROWS or waiting_bytes >= PIECE_BYTES:
                    count += len(waiting)
                    fraction = (before + size * record.done) / self.total_bytes
                    yield Piece(self._rows(number, waiting), {"file": number, "record": count}, fraction)
                    waiting, waiting_bytes = [], 0
            after = {"file": number + 1, "record": 0}
            yield Piece(self._rows(number, waiting), after, (before + size) / self.total_bytes)

    def _rows(self, number: int, records: Sequence[Record]) -> pa.RecordBatch:
        columns = [[record.user for record in records]]
        columns += [[record.values[place] for record in records] for place in range(len(self._schema) - 1)]
        try:
            arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        except UnicodeEncodeError:  # JSON can write half a character
            raise BadInputError(f"{self._files[number]} has text that is not valid Unicode") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def bytes_of(path: Path) -> int:
    """How long a file is, or all files of a folder."""
    if path.is_dir():
        return sum(entry.stat().st_size for _, entry in files_below(path))
    return path.stat().st_size * (4 if path.suffix in (".gz", ".xz", ".bz2", ".tgz") else 1)
