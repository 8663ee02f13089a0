"""A table as it was given, as files, data frames or records: columns of Arrow, and where their rows are from."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from numbers import Complex, Real
from numbers import Number as NumberType
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")  # endings of files
Columns = dict[str, pa.ChunkedArray]
ReadFile = Callable[[Path], Columns]
FilesIn = Callable[[Path], tuple[list[Path], tuple[str, ...]]]  # of a folder, and what of it is left out


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length; `pieces` are the names and lengths of the tables that they were put together from."""

    columns: Columns
    pieces: tuple[tuple[str | None, int], ...]
    are_files: bool = False  # so that names may begin with what only says that they belong together
    notes: tuple[str, ...] = ()  # what of it was not read, in sentences
    mixed: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # columns that are two things in two tables

    @property
    def piece_names(self) -> tuple[str, ...]:
        """What the tables are called as clients: like their files, without what all begin with."""
        names = [str(name) for name, _ in self.pieces]
        beginning = shared_beginning(names) if self.are_files else ""
        # Only whole words are left out: "clinic-1" and "clinic-2" are 1 and 2, but "clinic1" and "clinic2" stay.
        length = max((beginning.rfind(mark) + 1 for mark in "-_. "), default=0)
        return tuple(name[length:] for name in names) if all(name[length:] for name in names) else tuple(names)

    @property
    def num_rows(self) -> int:
        """How many samples there are."""
        return sum(rows for _, rows in self.pieces)

    def column(self, name: Any, option: str) -> pa.ChunkedArray:
        """The column that an option names."""
        self.require(name, option)
        if name in self.mixed:
            here, there = self.mixed[name]
            raise BadInputError(
                f"Column {quoted(name)} holds values of the type {here} in one table and of the type {there} in "
                "another; write them in one way, as numbers or as words."
            )
        return self.columns[name]

    def require(self, name: Any, option: str) -> None:
        """Raises unless there is the column that an option names."""
        if name not in self.columns:
            raise BadInputError(f"{option}: the table has no column {quoted(name)}; {nearest(str(name), self.columns)}")

    def where(self, row: int) -> str:
        """A row in words, counted from 1 in its own table."""
        piece = bisect_right(list(accumulate(rows for _, rows in self.pieces)), row)
        name = self.pieces[piece][0]
        number = row - sum(rows for _, rows in self.pieces[:piece]) + 1
        return f"row {number:,}" if name is None or len(self.pieces) == 1 else f"row {number:,} of {name}"


def gather(table: Any, read_file: ReadFile, files_in: FilesIn, index_names: set[str]) -> RawTable:
    """Whatever is a table, or several: a file, a folder or a list of files, a mapping of names to tables, an object.

    `index_names` are those columns that may also be in the index of a data frame.
    """
    if isinstance(table, str | os.PathLike):
        path = Path(table).expanduser()
        paths, notes = files_in(path) if path.is_dir() else ([path], ())
        return replace(_together([(stem(file), read_file(file)) for file in paths], are_files=True), notes=notes)
    if isinstance(table, Mapping) and table and all(_is_table(value) for value in table.values()):
        return _together([(str(name), _columns_of(value, read_file, index_names)) for name, value in table.items()])
    if isinstance(table, list | tuple) and table and all(isinstance(value, str | os.PathLike) for value in table):
        return _together(
            [(stem(path), read_file(path)) for path in (Path(value).expanduser() for value in table)], are_files=True
        )
    return _together([(None, _columns_of(table, read_file, index_names))])


def stem(path: Path) -> str:
    """The name of a file without what says how it is written and compressed."""
    without = path.with_suffix("") if path.suffix.lower() in COMPRESSED and len(path.suffixes) > 1 else path
    return without.stem


def shared_beginning(names: Sequence[str]) -> str:
    """What all names begin with."""
    same = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in same)


def _is_table(value: Any) -> bool:
    if isinstance(value, str | os.PathLike) or _is_frame(value):
        return True
    # Series and chunked arrays are streams, too, but of one column.
    has_columns = any(hasattr(type(value), what) for what in ("columns", "schema"))
    return hasattr(value, "__arrow_c_stream__") and has_columns


def _is_frame(value: Any) -> bool:
    """Whether it is a data frame of pandas, which takes long to import."""
    return type(value).__name__ == "DataFrame" and type(value).__module__.partition(".")[0] == "pandas"


def _columns_of(table: Any, read_file: ReadFile, index_names: set[str]) -> Columns:
    if isinstance(table, str | os.PathLike):
        return read_file(Path(table).expanduser())
    if _is_frame(table):
        levels = [name for name in table.index.names if name in index_names and name not in table.columns]
        frame = table.reset_index(level=levels) if levels else table
        return named((str(name), array_of(str(name), frame.iloc[:, place])) for place, name in enumerate(frame.columns))
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table) or hasattr(table, "__arrow_c_stream__"):
        try:
            found = table if isinstance(table, pa.Table) else pa.table(table)
        except pa.ArrowInvalid as error:
            raise BadInputError(
                f"A {type(table).__name__} is one column, and a table has one for clients and one for labels, too; "
                "a mapping of names to columns is a table."
            ) from error
        return named(zip(found.column_names, found.columns, strict=True))
    if isinstance(table, Mapping):
        return named((str(name), array_of(str(name), values)) for name, values in table.items())
    if isinstance(table, list | tuple) and all(isinstance(record, Mapping) for record in table):
        return records(table)
    raise BadInputError(
        "A table is a file, a folder or a list of files, a data frame, an Arrow table, a mapping of names to columns "
        f"or to tables, or a list of records, not {quoted(table)}."
    )


def records(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of records, some of which may lack some."""
    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        for name in row:
            if name not in columns:
                columns[name] = [None] * number
        for name, values in columns.items():
            values.append(row.get(name))
    return named((str(name), array_of(str(name), values)) for name, values in columns.items())


def array_of(name: str, values: Any) -> pa.ChunkedArray:
    """A column of Arrow; values of several kinds become text, so that what is wrong with them can be said later."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if isinstance(values, np.ma.MaskedArray):
        return pa.chunked_array([pa.array(values.tolist(), from_pandas=True)])  # None where they are masked
    if hasattr(values, "__arrow_c_stream__") and not hasattr(values, "dtypes"):  # a series of Polars
        return pa.chunked_array(values)
    is_of_pandas = type(values).__module__.partition(".")[0] == "pandas"  # NumPy would drop digits beside a gap
    if hasattr(values, "__array__") and not is_of_pandas and np.ndim(values) > 0:  # arrays and tensors
        numbers = np.asarray(known_to_numpy(values))
        values = list(numbers.reshape(len(numbers), -1)) if numbers.ndim > 1 else numbers
    try:
        found = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        if isinstance(values, str) or not isinstance(values, Iterable) or np.ndim(np.asarray(values, object)) == 0:
            raise BadInputError(f"Column {quoted(name)} must be a list of values, not {quoted(values)}.") from None
        found = pa.array([_as_text(name, value) for value in values], pa.string())
    return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])


def known_to_numpy(values: Any) -> Any:
    """A tensor of torch without its gradient, here, and in a type that NumPy has; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    plain = values.detach().cpu()
    try:
        return plain.numpy()
    except TypeError:  # of bfloat16, every number of which float32 has
        return plain.float().numpy()


def _as_text(name: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise BadInputError(
                f"Column {quoted(name)} holds {quoted(value)}, which is no text: it has half a character."
            )
        return value
    if isinstance(value, NumberType) and (isinstance(value, Real) or not isinstance(value, Complex)):
        return None if value != value else str(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    raise BadInputError(f"Column {quoted(name)} holds {quoted(value)}, which is neither a number nor a word.")


def named(columns: Iterable[tuple[str, Any]]) -> Columns:
    """Columns by name, all of the same length and no two of a name."""
    found: Columns = {}
    for name, values in columns:
        if name in found:
            raise BadInputError(f"The table has two columns called {quoted(name)}; rename one of them.")
        found[name] = values
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise BadInputError(f"The columns of the table have unequal lengths: {quoted(lengths)}.")
    return found


def _together(pieces: Sequence[tuple[str | None, Columns]], are_files: bool = False) -> RawTable:
    """Tables with the same columns, one after the other."""
    first_name, first = pieces[0]
    for name, columns in pieces[1:]:
        different = sorted(columns.keys() ^ first.keys())
        if different:
            lacking, having = (name, first_name) if different[0] in first else (first_name, name)
            raise BadInputError(f"{lacking} has no column {quoted(different[0])}, which {having} has.")
    sizes = [(name, len(next(iter(columns.values()), ()))) for name, columns in pieces]
    joined: Columns = {}
    mixed: dict[str, tuple[str, str]] = {}
    for name in first:
        try:
            joined[name] = _join([columns[name] for _, columns in pieces])
        except _MixedError as error:  # which does not matter if the column is left out
            joined[name], mixed[name] = pa.chunked_array([pa.nulls(sum(rows for _, rows in sizes))]), error.kinds
    table = RawTable(joined, tuple(sizes), are_files, mixed=mixed)
    if not first or table.num_rows == 0:
        raise BadInputError("The table has no rows." if first else "The table has no columns.")
    names = [name for name, _ in sizes]
    if are_files and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInputError(
            f"Two of the files are called {twice}; give them other names, or a mapping of names to files."
        )
    return table


class _MixedError(Exception):
    """Columns of a name hold things of which one cannot tell what they have in common."""

    def __init__(self, types: set[pa.DataType]):
        super().__init__()
        first, second, *_ = sorted(map(str, types))
        self.kinds = (first, second)


def _join(arrays: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    types = {array.type for array in arrays if not pa.types.is_null(array.type)}
    if len(types) > 1 and any(map(pa.types.is_dictionary, types)):  # what is a category in one table is one in all
        return _join([_without_dictionary(array) for array in arrays]).dictionary_encode()
    if pa.bool_() in types and all(map(_is_number, types - {pa.bool_()})) and len(types) > 1:  # true and 1 are the same
        return _join([array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array for array in arrays])
    if not types:
        return arrays[0] if len(arrays) == 1 else pa.chunked_array([c for array in arrays for c in array.chunks])
    if len(types) == 1:
        common = next(iter(types))
    elif all(pa.types.is_integer(one) for one in types):
        common = pa.int64()
    elif all(map(_is_number, types)):
        common = pa.float64()
    elif all(map(_is_list, types)):
        lists = [array.combine_chunks() for array in arrays if not pa.types.is_null(array.type)]
        common = pa.large_list(_join([pa.chunked_array([pc.list_flatten(one)]) for one in lists]).type)
    elif not all(map(_is_word_or_number, types)):  # as text, the same moments may differ
        raise _MixedError(types)
    else:
        common = pa.string()
    try:
        return _as_one(arrays, common)
    except pa.ArrowInvalid:  # numbers that do not fit keep their digits as text
        return _as_one(arrays, pa.string())
    except pa.ArrowNotImplementedError:
        raise _MixedError(types) from None


def _without_dictionary(array: pa.ChunkedArray) -> pa.ChunkedArray:
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_word_or_number(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(is_text or pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or _is_number(kind))


def _as_one(arrays: Sequence[pa.ChunkedArray], common: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for array in arrays for chunk in array.cast(common).chunks], type=common)
