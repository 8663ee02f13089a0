"""Sentiment140's tables: CSV in Latin-1 without a heading, a tweet a line, read in blocks from any line on."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from fedarena.core.errors import BadInputError
from fedarena.data.many_users.line_files import LineFile

BLOCK_BYTES = 1 << 22
COLUMNS = ("polarity", "id", "date", "query", "user", "text")
NEGATIVE, NEUTRAL, POSITIVE = 0, 2, 4
POLARITIES = tuple(str(polarity) for polarity in (NEGATIVE, NEUTRAL, POSITIVE))
_WANTED = ("polarity", "user", "text")


@dataclass(frozen=True)
class Tweets:
    """Some lines, and where the next ones begin."""

    rows: pa.RecordBatch  # polarity as a number, user, text
    next_byte: int
    next_line: int  # from 0


@dataclass(frozen=True)
class TweetFile(LineFile):
    """A table in a folder or in a zip archive."""

    holds: ClassVar[str] = "tweets"

    def read(self, byte: int, line: int) -> Iterator[Tweets]:
        """All tweets from a line on, of which it must be said where it begins."""
        for block in self.blocks(byte, BLOCK_BYTES):
            rows = self._parse(block, line)
            byte, line = byte + len(block), line + len(rows)
            yield Tweets(rows, byte, line)

    def _parse(self, block: bytes, first_line: int) -> pa.RecordBatch:
        """The tweets in whole lines."""
        lines = block.count(b"\n") + (not block.endswith(b"\n"))
        rows = None if b"\0" in block or not _quotes_match(block) else _parse_fast(block)
        if rows is None or len(rows) != lines:
            raise self._explained(block, first_line)
        polarity = pc.index_in(rows.column("polarity"), value_set=pa.array(POLARITIES))
        if polarity.null_count or pc.any(pc.equal(pc.binary_length(rows.column("user")), 0)).as_py():
            raise self._explained(block, first_line)
        numbers = pa.array([NEGATIVE, NEUTRAL, POSITIVE], pa.int8()).take(polarity)
        return pa.RecordBatch.from_arrays([numbers, rows.column("user"), rows.column("text")], names=list(_WANTED))

    def _explained(self, block: bytes, first_line: int) -> BadInputError:
        """What is wrong with the first line that is; line by line, which is slow."""
        for number, line in enumerate(block.decode("latin-1").removesuffix("\n").split("\n"), first_line + 1):
            if (problem := _problem(line)) is not None:
                return BadInputError(f"Line {number:,} of {self} {problem}")
        return BadInputError(f"{self} is not in the form of Sentiment140 after line {first_line:,}")


def _quotes_match(block: bytes) -> bool:
    """Whether every line has an even number of quotes, so that no quoted value goes on in the next line."""
    data = np.frombuffer(block, dtype=np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(data == ord("\n")) + 1])
    starts = starts[starts < len(data)]
    return not (np.add.reduceat(data == ord('"'), starts, dtype=np.int64) % 2).any()


def _parse_fast(block: bytes) -> pa.RecordBatch | None:
    """The wanted columns; None if a line has more or fewer."""
    text = block if block.isascii() else block.decode("latin-1").encode()
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(column_names=COLUMNS, block_size=len(text) + 1, use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(_WANTED, pa.string()), include_columns=_WANTED, check_utf8=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    return table.combine_chunks().to_batches()[0] if len(table) else None


def _problem(line: str) -> str | None:
    if "\0" in line:
        return "has a zero byte"
    if line.count('"') % 2:
        return "has a quote without its counterpart"
    try:
        values = next(csv.reader([line]), [])
    except csv.Error as error:  # too long, or several lines with another mark between them
        return f"cannot be read as CSV ({error})"
    if len(values) != len(COLUMNS):
        return f"has {len(values)} columns; it must have {len(COLUMNS)}: {', '.join(COLUMNS)}"
    found = dict(zip(COLUMNS, values, strict=True))
    if found["polarity"] not in POLARITIES:
        return f"has the polarity {found['polarity']!r}; valid: {', '.join(POLARITIES)}"
    return None if found["user"] else "has no user"
