"""Tables on disk with cheap random access: Arrow IPC files whose record batches have equally many rows.

Because the batches are equal, the batch of a row is a division, and a table of any length opens without being
read: batches are mapped into memory when one of their rows is asked for.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading
from fedarena.data.store.block_checksums import BLOCK_BYTES, CheckedBlocks, RunningChecksums
from fedarena.data.store.schema import AnyArray, ColumnSpec, FileSpec, IntArray

MAX_RESIDENT_BYTES = 1 << 25
STRING = "string"
_BYTES_AT_ONCE = 1 << 18  # that are written: they are still in a cache of the processor after their checksum was made
# A column of a table: numbers of some shape, files that hold them in an encoding, or strings.
Column = ColumnSpec | str


def arrow_schema(columns: Mapping[str, Column]) -> pa.Schema:
    """The Arrow schema for these columns: tensors are the canonical fixed-shape tensor type."""
    return pa.schema([pa.field(name, _arrow_type(column), nullable=False) for name, column in columns.items()])


def _arrow_type(column: Column) -> pa.DataType:
    if isinstance(column, str):
        return pa.string()
    if column.encoding is not None:
        return pa.large_binary()
    value_type = pa.from_numpy_dtype(np.dtype(column.dtype))
    return pa.fixed_shape_tensor(value_type, column.shape) if column.shape else value_type


class TableReader:
    """A memory-mapped table of equal batches; every batch is mapped at its first use."""

    def __init__(self, path: Path, columns: Mapping[str, Column], spec: FileSpec, checked: bool = True):
        """Unless it is to be `checked`, rows that are damaged but readable are given as they are."""
        self.path, self._spec = path, spec
        self.columns = dict(columns)
        self.rows = spec.rows
        self.rows_per_batch = spec.rows_per_batch
        self._batches: dict[int, pa.RecordBatch] = {}
        self._views: dict[tuple[int, str], Any] = {}
        try:
            found_bytes = path.stat().st_size
            if found_bytes != spec.bytes:
                raise DamagedFileError(f"{path} has {found_bytes} bytes where {spec.bytes} were written.")
            with reading(path):
                with open(path, "rb") as file:
                    self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._blocks = CheckedBlocks(path, self._mapped, spec.crc32, checked)
                self._reader = pa.ipc.open_file(pa.py_buffer(self._mapped))
            schema, num_batches = self._reader.schema, self._reader.num_record_batches
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing.") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedFileError(f"{path} cannot be read as an Arrow file: {_first_line(error)}") from error
        if not schema.equals(arrow_schema(columns)):
            raise DamagedFileError(f"{path} has other columns than its manifest says.")
        if num_batches != -(-spec.rows // spec.rows_per_batch):
            raise DamagedFileError(f"{path} has {num_batches} batches, which do not hold {spec.rows} rows.")
        self._bytes_per_batch = spec.bytes // max(num_batches, 1)
        self._touched_bytes = 0

    @property
    def batches_loaded(self) -> int:
        """How many batches were mapped so far."""
        return len(self._batches)

    def unchecked(self) -> TableReader:
        """The same table for those who look for the damage."""
        return TableReader(self.path, self.columns, self._spec, checked=False)

    def take(self, column: str, rows: IntArray) -> AnyArray:
        """The values of a number column at `rows`, in their order."""
        spec = self.columns[column]
        assert isinstance(spec, ColumnSpec)
        assert spec.encoding is None, "files are taken with take_encoded"
        by_batch = self._by_batch(rows)
        if len(by_batch) == 1:  # copied once
            batch, _, local_rows = by_batch[0]
            of_batch: AnyArray = self._numbers(batch, column, local_rows)[local_rows]
            return of_batch
        result = np.empty((len(rows), *spec.shape), dtype=spec.dtype)
        for batch, positions, local_rows in by_batch:
            result[positions] = self._numbers(batch, column, local_rows)[local_rows]
        return result

    def take_strings(self, column: str, rows: IntArray) -> list[str]:
        """The values of a string column at `rows`, in their order."""
        result = np.empty(len(rows), dtype=object)
        for batch, positions, local_rows in self._by_batch(rows):
            result[positions] = self._values(batch, column).take(pa.array(local_rows)).to_pylist()
        return result.tolist()

    def take_encoded(self, column: str, rows: IntArray) -> list[memoryview]:
        """The files of an encoded column at `rows`, in their order, as views of the table's file."""
        result = np.empty(len(rows), dtype=object)
        for batch, positions, local_rows in self._by_batch(rows):
            place, offsets, content = self._values(batch, column)
            self._blocks.check(place + offsets[local_rows], place + offsets[local_rows + 1])
            views = np.empty(len(local_rows), dtype=object)
            views[:] = [
                content[start:stop]
                for start, stop in zip(offsets[local_rows].tolist(), offsets[local_rows + 1].tolist(), strict=True)
            ]
            result[positions] = views
        return result.tolist()

    def _numbers(self, batch: int, column: str, local_rows: IntArray) -> AnyArray:
        """A view of the numbers of a column in one batch, of which these rows are as they were written."""
        place, numbers = self._values(batch, column)
        self._blocks.check_rows(place, local_rows, numbers[:1].nbytes)
        view: AnyArray = numbers
        return view

    def _by_batch(self, rows: IntArray) -> list[tuple[int, Any, IntArray]]:
        """Groups rows by their batch: (batch, positions in `rows`, rows within the batch)."""
        if len(rows) == 0:
            return []
        batches = rows // self.rows_per_batch
        local_rows = rows - batches * self.rows_per_batch
        first = int(batches[0])
        if (batches == first).all():
            return [(first, slice(None), local_rows)]
        order = np.argsort(batches, kind="stable")
        bounds = np.flatnonzero(np.diff(batches[order])) + 1
        return [(int(batches[group[0]]), group, local_rows[group]) for group in np.split(order, bounds)]

    def _values(self, batch: int, column: str) -> Any:
        """A column in one batch: a view of its numbers, where its files are and their bytes, or an array of strings.

        Before numbers or files comes the place in the table's file at which they begin.
        """
        if (batch, column) not in self._views:
            self._views[batch, column] = self._load(batch, column)
        self._touched_bytes += self._bytes_per_batch
        if self._touched_bytes > MAX_RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            # Linux maps up to two megabytes around a row that is read, so a few thousand rows make all of a
            # large file resident. Letting go of the pages keeps them in the page cache, from where they come
            # back fast.
            self._mapped.madvise(mmap.MADV_DONTNEED)
            self._touched_bytes = 0
        return self._views[batch, column]

    def _load(self, index: int, column: str) -> Any:
        expected_rows = min(self.rows_per_batch, self.rows - index * self.rows_per_batch)
        try:
            with reading(self.path):
                array = self._batch(index).column(column)
                if len(array) != expected_rows:
                    raise pa.ArrowInvalid(f"it has {len(array)} rows instead of {expected_rows}")
                spec = self.columns[column]
                # Damaged strings would crash Arrow later, and damaged places of files lead out of the batch, so they
                # are all looked at; for numbers the length is enough.
                has_places = isinstance(spec, str) or spec.encoding is not None
                if has_places:  # which come before what they are the places of
                    for buffer in _buffers(array)[: None if isinstance(spec, str) else 1]:
                        self._blocks.check_buffer(buffer.address, buffer.size)
                array.validate(full=has_places)
                if isinstance(spec, str):
                    return array
                if spec.encoding is None:
                    view = _numpy_view(array, spec)
                    return view.ctypes.data - self._blocks.base_address, view
                offsets, content = _encoded_view(array)
                begin = np.frombuffer(content, dtype=np.uint8).ctypes.data if len(content) else 0
                return begin - self._blocks.base_address, offsets, content
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DamagedFileError(f"{self.path} is damaged in batch {index}: {_first_line(error)}") from error

    def _batch(self, index: int) -> pa.RecordBatch:
        """A batch, after a look at its head, which says where everything is and lies before the first column."""
        if index not in self._batches:
            self._blocks.check_frame()
            batch = self._reader.get_batch(index)
            places = [buffer.address for column in batch.columns for buffer in _buffers(column)]
            if places:
                start = min(places) - self._blocks.base_address
                self._blocks.check(np.array([max(start - BLOCK_BYTES, 0)]), np.array([start + 1]))
            self._batches[index] = batch
        return self._batches[index]


def _buffers(array: pa.Array) -> list[pa.Buffer]:
    """The pieces of memory that an array's values lie in."""
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    return [buffer for buffer in storage.buffers() if buffer is not None and buffer.size]


def _numpy_view(array: pa.Array, column: ColumnSpec) -> AnyArray:
    numbers = array.storage.values if column.shape else array
    if array.null_count or numbers.null_count:
        raise pa.ArrowInvalid("there are missing values")
    # Arrow's own to_numpy imports pandas, which takes longer than all the rest.
    flat = np.frombuffer(numbers.buffers()[1], dtype=column.dtype, count=len(numbers))
    return flat.reshape(len(array), *column.shape)


def _encoded_view(array: pa.Array) -> tuple[IntArray, memoryview]:
    """Where each file begins and the last one ends, and the bytes of all."""
    if array.null_count:
        raise pa.ArrowInvalid("there are missing values")
    _, offsets, content = array.buffers()
    return np.frombuffer(offsets, dtype=np.int64, count=len(array) + 1), memoryview(content)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class TableWriter:
    """Writes a table of equal batches; holds one batch in memory."""

    def __init__(self, path: Path, columns: Mapping[str, Column], rows_per_batch: int):
        self.rows = 0
        self.rows_per_batch = rows_per_batch
        self._columns = dict(columns)
        self._schema = arrow_schema(columns)
        self._file = _ChecksummedFile(path)
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._filled_rows = 0
        self._buffers: dict[str, Any] = {
            name: np.empty(rows_per_batch, dtype=object)
            if isinstance(column, str) or column.encoding is not None
            else np.empty((rows_per_batch, *column.shape), dtype=column.dtype)
            for name, column in columns.items()
        }

    def append(self, values: Mapping[str, AnyArray | Sequence[str] | Sequence[bytes]], rows: int) -> None:
        """Adds rows; `values` has `rows` entries for every column."""
        done = 0
        while done < rows:
            length = min(rows - done, self.rows_per_batch - self._filled_rows)
            filled = slice(self._filled_rows, self._filled_rows + length)
            for name, buffer in self._buffers.items():
                buffer[filled] = values[name][done : done + length]
            self._filled_rows += length
            done += length
            if self._filled_rows == self.rows_per_batch:
                self._flush()
        self.rows += rows

    def finish(self) -> FileSpec:
        """Writes what is left, makes the file durable, and says what was written."""
        if self._filled_rows:
            self._flush()
        self._writer.close()
        self._file.sync_and_close()
        return FileSpec(
            bytes=self._file.checksums.length_bytes,
            crc32=self._file.checksums.crc32,
            rows=self.rows,
            rows_per_batch=self.rows_per_batch,
        )

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._file.close()

    def _flush(self) -> None:
        arrays = [
            _arrow_array(self._buffers[name][: self._filled_rows], column) for name, column in self._columns.items()
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._filled_rows = 0


def _arrow_array(values: AnyArray, column: Column) -> pa.Array:
    if isinstance(column, str):
        return pa.array(values.tolist(), type=pa.string())
    if column.encoding is not None:
        return pa.array(values.tolist(), type=pa.large_binary())
    if not column.shape:
        return pa.array(values)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), int(np.prod(column.shape)))
    return pa.ExtensionArray.from_storage(_arrow_type(column), storage)


class _ChecksummedFile:
    """A binary file to write, which knows the length and the checksums of what went through it."""

    def __init__(self, path: Path):
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115 - closed by finish() or abandon() of the table writer
        self.checksums = RunningChecksums()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _BYTES_AT_ONCE):
            piece = view[start : start + _BYTES_AT_ONCE]
            self.checksums.add(piece)
            self._file.write(piece)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def sync_and_close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.checksums.write(self._path)
