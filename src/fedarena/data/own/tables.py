"""Tables of somebody's own, read in pieces: CSV, Parquet and JSON lines, pandas, Arrow, or a mapping of columns."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.own.labels import as_texts
from fedarena.data.own.quotes import check_quotes
from fedarena.data.tables.files import refuse_unsaid_utf16, without_doubles

_ROWS_PER_PIECE = 1 << 14
_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_PARQUET = (".parquet", ".pq")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_COMPRESSED = (".gz", ".bz2", ".zst")
_MOST_OF_A_NAME = 40
_COMPRESSION = 4  # how much longer texts are than what is made of them


@dataclass(frozen=True)
class TextForm:
    """The form of text files, where it is not the usual one."""

    columns: Sequence[str] | None = None  # if the first line does not name them
    delimiter: str | None = None
    encoding: str = "utf8"
    quotes: bool = True  # whether a value that begins with a quotation mark goes on to the next one
    line_breaks: bool = False  # whether values in quotes may hold lines that look like rows

    def __post_init__(self) -> None:
        if self.delimiter is not None and (not isinstance(self.delimiter, str) or len(self.delimiter.encode()) != 1):
            raise BadInputError(f"delimiter must be one character, not {quoted(self.delimiter)}.")
        if isinstance(self.columns, str):
            raise BadInputError(f"columns must be a list of names, not {quoted(self.columns)}.")


USUAL_FORM = TextForm()


class OwnTable:
    """A table on disk or in memory, of which some columns are read piece by piece.

    `table` is a file's name, a DataFrame, an Arrow table or a mapping of columns.
    """

    def __init__(self, table: Any, form: TextForm = USUAL_FORM):
        self.path = Path(table).expanduser() if isinstance(table, str | Path) else None
        self._form = form
        if self.path is not None:
            if not self.path.is_file():
                raise BadInputError(f"There is no table {self.path}: it must be a CSV, Parquet or JSON lines file.")
            self._ending = _ending(self.path)
            if not self._is_csv and self._ending not in (*_PARQUET, *_JSON_LINES):
                raise BadInputError(
                    f"{self.path} is not a table that is known by its ending: .csv, .tsv, .parquet and .jsonl are "
                    "(a delimiter makes any other ending a CSV file)."
                )
        self._are_quotes_checked = self.path is None or not self._is_csv or not form.quotes
        self._memory: pa.Table = None if self.path is not None else _without_views(_from_memory(table))
        self.columns = self._column_names()

    @property
    def name(self) -> str:
        """What the table is called within sentences."""
        return "the table" if self.path is None else str(self.path)

    @property
    def start(self) -> str:
        """What it is called where a sentence begins."""
        return "The table" if self.path is None else str(self.path)

    @property
    def size_bytes(self) -> int:
        """About how much there is to read."""
        if self.path is None:
            return int(self._memory.nbytes)
        is_compressed = self._ending in _PARQUET or self.path.name.lower().endswith(_COMPRESSED)
        return self.path.stat().st_size * (_COMPRESSION if is_compressed else 1)

    def state(self, columns: Sequence[str]) -> list[Any]:
        """What changes when the table does."""
        if self.path is not None:
            seen = self.path.stat()
            return [str(self.path.absolute()), seen.st_size, seen.st_mtime_ns, vars(self._form)]
        digest = hashlib.blake2b(digest_size=16)
        for piece in self.read(columns):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, piece.schema) as stream:
                stream.write_batch(piece)
            digest.update(sink.getvalue())
        return [digest.hexdigest()]

    def require(self, option: str, column: str) -> None:
        """Raises unless there is such a column; `option` is what named it."""
        if not isinstance(column, str):
            raise BadInputError(f"{option} must be the name of a column of the table, not {quoted(column)}.")
        if column not in self.columns:
            names = [name if len(name) <= _MOST_OF_A_NAME else f"{name[:_MOST_OF_A_NAME]}…" for name in self.columns]
            hint = " (columns=[…] names them if the file does not)" if self.path and self._is_csv else ""
            raise BadInputError(
                f"{option} is {column!r}, but {self.name} has no such column; {nearest(column, names)}{hint}"
            )

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns, some rows at a time, in the order of the table."""
        wanted = list(dict.fromkeys(columns))
        try:
            for piece in self._pieces(wanted):
                for start in range(0, piece.num_rows, _ROWS_PER_PIECE):
                    yield piece.slice(start, _ROWS_PER_PIECE)
        except (pa.ArrowException, UnicodeError, LookupError, OverflowError) as error:
            raise BadInputError(f"{self.start} cannot be read: {_one_line(error)}") from error

    @property
    def _is_csv(self) -> bool:
        return self._form.delimiter is not None or self._ending in _DELIMITERS

    def _column_names(self) -> list[str]:
        try:
            if self.path is None:
                names = self._memory.column_names
            elif self._is_csv:
                with pa.input_stream(str(self.path)) as stream:
                    refuse_unsaid_utf16(stream.read(4), self._form.encoding, self.path)
                with self._open_csv([]) as reader:
                    names = reader.schema.names
            elif self._ending in _PARQUET:
                names = pa.parquet.read_schema(self.path).names
            else:
                names = list(dict.fromkeys(name for row in next(self._json_pieces(), []) for name in row))
        except (pa.ArrowException, UnicodeError, LookupError) as error:
            if isinstance(error, pa.ArrowInvalid):
                self._check_quotes()  # a mark that swallows rows is the likely reason, and easier to find
            raise BadInputError(f"{self.start} cannot be read: {_one_line(error)}") from error
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadInputError(f"{self.start} has two columns called {twice[0]!r}.")
        return list(names)

    def _pieces(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self.path is None:
            yield from self._memory.select(columns).to_batches()
        elif self._is_csv:
            self._check_quotes()
            with self._open_csv(columns) as reader:
                yield from reader
        elif self._ending in _PARQUET:
            with pa.parquet.ParquetFile(self.path) as file:
                yield from file.iter_batches(_ROWS_PER_PIECE, columns=columns)
        else:
            for rows in self._json_pieces():
                arrays = [pa.array([row.get(name) for row in rows]) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=columns)

    def _open_csv(self, columns: list[str]) -> pa.csv.CSVStreamingReader:
        """What is read of a CSV file is text, and empty where it is missing: only the reader knows what it means."""
        assert self.path is not None
        return pa.csv.open_csv(
            str(self.path),
            read_options=pa.csv.ReadOptions(
                encoding=self._form.encoding,
                column_names=self._form.columns,
                skip_rows_after_names=int(self._begins_with_names()),
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=self._form.quotes,
                quote_char='"' if self._form.quotes else False,
            ),
            convert_options=pa.csv.ConvertOptions(
                include_columns=columns or None,
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    @property
    def _delimiter(self) -> str:
        return self._form.delimiter or _DELIMITERS.get(self._ending, ",")

    def _check_quotes(self) -> None:
        if not self._are_quotes_checked:
            with self._text() as file:
                try:
                    check_quotes(file, self._delimiter, str(self.path), self._form.line_breaks)
                except UnicodeError:
                    raise BadInputError(
                        f"{self.path} is not text in {self._form.encoding}; say which encoding it has, such as latin1"
                    ) from None
            self._are_quotes_checked = True

    def _begins_with_names(self) -> bool:
        """Whether the first line says the names of columns that were given, too."""
        if self._form.columns is None:
            return False
        with self._text() as file:
            quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if self._form.quotes else csv.QUOTE_NONE
            try:
                first = next(csv.reader(file, delimiter=self._delimiter, quoting=quoting), [])
            except csv.Error:  # a first value that is longer than any name
                return False
        return [value.strip() for value in first] == list(self._form.columns)

    @contextmanager
    def _text(self) -> Iterator[io.TextIOWrapper]:
        """The text of the file, with its line ends as they are."""
        encoding = "utf-8-sig" if self._form.encoding.lower() in ("utf8", "utf-8") else self._form.encoding
        with (
            pa.input_stream(str(self.path)) as stream,
            io.TextIOWrapper(stream, encoding=encoding, newline="") as file,
        ):
            yield file

    def _json_pieces(self) -> Iterator[list[dict[str, Any]]]:
        assert self.path is not None
        rows: list[dict[str, Any]] = []
        with self._text() as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line, object_pairs_hook=without_doubles)
                except BadInputError as error:
                    raise BadInputError(f"{self.path}, line {number}: {error}") from None
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    raise BadInputError(f"{self.path}, line {number} must be a JSON object: a row of the table.")
                rows.append(row)
                if len(rows) == _ROWS_PER_PIECE:
                    yield rows
                    rows = []
        if rows:
            yield rows


def without_missing(
    pieces: Iterator[pa.RecordBatch], columns: Mapping[str, str], table: str, drop: bool
) -> Iterator[pa.RecordBatch]:
    """The pieces without rows that lack one of the columns (by what they are for), or a sentence about the first."""
    first = 1
    for piece in pieces:
        complete = pa.array([True] * piece.num_rows, pa.bool_())
        for what, column in columns.items():
            values = piece.column(column)
            # A text may be empty, or "NA"; an id or a label may not.
            there = (values if what == "text" else as_texts(values, f"Column {column!r}")).is_valid()
            if not drop and (lacking := pc.index(there, False).as_py()) >= 0:
                raise BadInputError(
                    f"{table}, row {first + lacking}: the {what} (column {column!r}) is missing; "
                    "fill it in, or leave such rows out: missing='drop'."
                )
            complete = pc.and_(complete, there)
        first += piece.num_rows
        kept = piece.filter(complete)
        if kept.num_rows:
            yield kept


def _plain(values: Any) -> list[Any]:
    """The values of a column; None where they are masked."""
    return values.tolist() if isinstance(values, np.ma.MaskedArray) else list(values)


def _from_memory(table: Any) -> pa.Table:
    try:
        if isinstance(table, pa.Table):
            return table
        if isinstance(table, pa.RecordBatch):
            return pa.Table.from_batches([table])
        if hasattr(table, "to_arrow"):  # Polars, DuckDB
            return pa.table(table.to_arrow())
        if hasattr(table, "iloc"):
            return pa.Table.from_pandas(table, preserve_index=False)
        if isinstance(table, Mapping):
            return pa.table({str(name): pa.array(_plain(values)) for name, values in table.items()})
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadInputError(f"The table cannot be used: {_one_line(error)}") from error
    raise BadInputError(
        f"A table is a file's name, a DataFrame, an Arrow table or a mapping of columns, not a {type(table).__name__}."
    )


def _without_views(table: pa.Table) -> pa.Table:
    """The table with texts as Arrow's functions take them: few know those of Polars."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.large_string()))
    return table


def _ending(path: Path) -> str:
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return Path(name).suffix


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
