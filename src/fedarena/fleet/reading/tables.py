"""Plain tables in CSV and Parquet files: their columns as arrays, with sentences that name file, column and line."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fedarena.core.arrow_memory import arrow_file
from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes, replacing
from fedarena.core.registry import nearest
from fedarena.fleet.arrays import FloatArray, Ragged
from fedarena.fleet.reading.traces import as_shown

CSV_ENDINGS = (".csv", ".csv.gz")
PARQUET_ENDING = ".parquet"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class PlainTable:
    """A table whose columns are all known by name."""

    def __init__(self, path: str | Path, known: Sequence[str], required: Sequence[str]):
        self.path = path
        table = self._read(read_bytes(path))
        self.rows = len(table)
        self._columns = dict(zip(table.column_names, table.columns, strict=True))
        for name in table.column_names:
            if name not in known:
                raise BadInputError(f"{path} has a column {name!r}, which means nothing; {nearest(name, known)}")
        for name in required:
            if name not in self._columns:
                raise BadInputError(f"{path} has no column {name!r}; {nearest(name, self._columns)}")
        if not self.rows:
            raise BadInputError(f"{path} has no rows")

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def place(self, row: int) -> str:
        """Where a row is, for sentences."""
        return f"{self.path}, line {row + 2}" if self._is_csv else f"{self.path}, row {row + 1}"

    def texts(self, column: str) -> list[str]:
        """The texts of a column, none of which may be missing; whole numbers count as texts."""
        values = self._columns[column]
        if pa.types.is_integer(values.type):
            values = values.cast(pa.string())
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise BadInputError(f"{self.path}: the column {column!r} must hold texts, not {values.type}")
        texts: list[str] = pc.utf8_trim_whitespace(values).to_pylist()
        for row, text in enumerate(texts):
            if not text:
                raise BadInputError(f"{self.place(row)}: {column!r} is missing")
        return texts

    def numbers(self, column: str) -> FloatArray:
        """The numbers of a column; NaN where there is none."""
        values = self._columns[column]
        if pa.types.is_null(values.type):
            return np.full(self.rows, np.nan)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = pc.utf8_trim_whitespace(values)
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise BadInputError(f"{self.path}: the column {column!r} must hold numbers, not {values.type}")
        try:
            numbers = values.cast(pa.float64())
        except pa.ArrowInvalid:
            raise self._no_number(values, column) from None
        return np.array(numbers.fill_null(float("nan")).to_numpy(), dtype=np.float64)

    def lists(self, column: str) -> Ragged:
        """The lists of numbers of a column, in a CSV file separated by spaces."""
        values = self._columns[column]
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            rows = [row or [] for row in values.to_pylist()]
        elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            rows = [(text or "").split() for text in values.to_pylist()]
        else:
            raise BadInputError(f"{self.path}: the column {column!r} must hold lists of numbers, not {values.type}")
        try:
            return Ragged.from_lists([list(map(float, row)) for row in rows])
        except (ValueError, TypeError):
            wrong = next(row for row, numbers in enumerate(rows) if not all(map(_is_number, numbers)))
            raise BadInputError(
                f"{self.place(wrong)}: {column!r} must be numbers, not {as_shown(rows[wrong])}"
            ) from None

    def _no_number(self, values: Any, column: str) -> BadInputError:
        for row, value in enumerate(values):
            try:
                value.cast(pa.float64())
            except pa.ArrowInvalid:
                return BadInputError(f"{self.place(row)}: {column!r} must be a number, not {as_shown(value.as_py())}")
        raise AssertionError("a column that cannot be converted has a value that cannot")

    @property
    def _is_csv(self) -> bool:
        return str(self.path).lower().endswith(CSV_ENDINGS)

    def _read(self, data: bytes) -> Any:
        if self._is_csv:
            return self._read_csv(data)
        if not str(self.path).lower().endswith(PARQUET_ENDING):
            raise BadInputError(f"{self.path} must end in {', '.join(CSV_ENDINGS)} or {PARQUET_ENDING}")
        try:
            table = pyarrow.parquet.read_table(arrow_file(data))
        except (pa.ArrowException, OSError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise BadInputError(f"{self.path} cannot be read as a Parquet file: {first}") from None
        return table

    def _read_csv(self, data: bytes) -> Any:
        # Nothing but the last line may be empty, so that a row's number tells its line.
        header, _, body = data.removeprefix(_BYTE_ORDER_MARK).rstrip().partition(b"\n")
        try:
            names = [name.strip() for name in next(csv.reader([header.decode()]))]
        except (UnicodeDecodeError, csv.Error):
            raise BadInputError(f"{self.path}, line 1 must be names of columns, separated by commas") from None
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise BadInputError(f"{self.path} has two columns {repeated!r}")
        if not body:
            return pa.table({name: pa.array([], pa.string()) for name in names})
        wrong_rows: list[Any] = []

        def remember(row: Any) -> str:
            wrong_rows.append(row)
            return "skip"

        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(body),
                pyarrow.csv.ReadOptions(column_names=names, use_threads=False),  # rows are numbered by one thread only
                pyarrow.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=remember),
                pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
            )
        except pa.ArrowException as error:
            first = (str(error).splitlines() or [""])[0]
            raise BadInputError(f"{self.path} cannot be read as a CSV file: {first}") from None
        if wrong_rows:
            row = wrong_rows[0]
            raise BadInputError(
                f"{self.path}, line {row.number + 1} has {row.actual_columns} values for {row.expected_columns} columns"
            )
        return table


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def write_table(path: str | Path, columns: Mapping[str, pa.Array]) -> None:
    """Writes columns of texts, numbers and lists of numbers to a CSV or Parquet file, as the ending of `path` says."""
    target, name = Path(path).expanduser(), str(path).lower()
    if not name.endswith((".csv", PARQUET_ENDING)):
        raise BadInputError(f"{path} must end in .csv or {PARQUET_ENDING}")
    try:
        with replacing(target) as temporary:
            if name.endswith(PARQUET_ENDING):
                pyarrow.parquet.write_table(pa.table(dict(columns)), temporary)
            else:
                with open(temporary, "w", encoding="utf-8", newline="") as file:
                    _write_csv(file, columns)
    except OSError as error:
        raise BadInputError(f"{path} cannot be written: {error.strerror or error}") from None


def _write_csv(file: io.TextIOBase, columns: Mapping[str, pa.Array]) -> None:
    texts = [[_as_text(value) for value in values.to_pylist()] for values in columns.values()]
    file.write(",".join(columns) + "\n")
    file.writelines(",".join(row) + "\n" for row in zip(*texts, strict=True))


def _as_text(value: Any) -> str:
    if value is None or value != value:  # NaN, which differs from itself
        return ""
    if isinstance(value, list):
        return " ".join(map(repr, value))
    return value if isinstance(value, str) else repr(value)
