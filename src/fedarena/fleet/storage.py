"""A fleet on disk: a folder that appears complete or not at all, and opens without being read.

``devices.arrow`` and ``availability.arrow`` are uncompressed Arrow files of one record batch with a row per device.
They are mapped into memory. ``fleet.json`` describes them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import reading, write_json
from fedarena.core.folders import new_folder
from fedarena.fleet.arrays import AnyArray, Ragged
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import MEASURED_COLUMNS, NUMBER_COLUMNS, Devices
from fedarena.fleet.intervals import seconds_before

FORMAT, FORMAT_VERSION = "fedarena fleet", 1
MANIFEST_NAME = "fleet.json"
DEVICES_NAME = "devices.arrow"
AVAILABILITY_NAME = "availability.arrow"

_TRACE_STARTS = "trace_start_seconds"  # a column that not all fleets have
INTERVAL_TYPE = pa.struct(
    [pa.field(name, pa.int32(), nullable=False) for name in ("start_seconds", "end_seconds", "seconds_before")]
)


def write_fleet(path: Path, manifest: dict[str, Any], devices: Devices, availability: Availability) -> None:
    """Writes the folder `path`, which must not exist; `manifest` is what ``fleet.json`` says besides the files."""
    if path.exists():
        raise BadInputError(f"{path} already exists; remove it or choose another folder.")
    with new_folder(path, "the fleet") as folder:
        files = {
            DEVICES_NAME: _write_table(folder / DEVICES_NAME, _devices_batch(devices)),
            AVAILABILITY_NAME: _write_table(folder / AVAILABILITY_NAME, _availability_batch(availability)),
        }
        write_json(folder / MANIFEST_NAME, {"format": FORMAT, "version": FORMAT_VERSION, **manifest, "files": files})


def read_fleet(path: Path) -> tuple[dict[str, Any], Devices, Availability]:
    """The content of ``fleet.json`` and the arrays, which are views of the files."""
    manifest = _read_manifest(path)
    devices = _map_table(path / DEVICES_NAME, manifest)
    availability = _map_table(path / AVAILABILITY_NAME, manifest)
    return (
        manifest,
        _devices_from(path / DEVICES_NAME, devices),
        _availability_from(path / AVAILABILITY_NAME, availability),
    )


def arrays_of(part: Devices | Availability) -> list[AnyArray]:
    """All numbers that a part of a fleet consists of, in an order that never changes."""
    if isinstance(part, Availability):
        return [part.offsets, part.starts, part.ends, part.periods]
    lists = [getattr(part, name) or Ragged.from_lists([]) for name in MEASURED_COLUMNS]
    return [
        *(getattr(part, name) for name in NUMBER_COLUMNS),
        *(array for ragged in lists for array in (ragged.offsets, ragged.values)),
    ]


def _write_table(path: Path, batch: pa.RecordBatch) -> dict[str, int]:
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
        return {"rows": batch.num_rows, "bytes": file.tell()}


def _devices_batch(devices: Devices) -> pa.RecordBatch:
    columns = {name: pa.array(getattr(devices, name), type=pa.float64()) for name in NUMBER_COLUMNS}
    for name in MEASURED_COLUMNS:
        lists: Ragged | None = getattr(devices, name)
        if lists is not None:
            columns[name] = pa.LargeListArray.from_arrays(pa.array(lists.offsets), pa.array(lists.values))
    return _batch(columns)


def _availability_batch(availability: Availability) -> pa.RecordBatch:
    # The sums are computed here, so that a file never has other ones than its intervals.
    sums = seconds_before(availability.offsets, availability.starts, availability.ends)
    numbers = (availability.starts, availability.ends, sums)
    intervals = pa.StructArray.from_arrays([pa.array(values) for values in numbers], fields=list(INTERVAL_TYPE))
    columns = {
        "period_seconds": pa.array(availability.periods),
        "intervals": pa.LargeListArray.from_arrays(pa.array(availability.offsets), intervals),
    }
    if availability.trace_starts is not None:
        columns[_TRACE_STARTS] = pa.array(availability.trace_starts)
    return _batch(columns)


def _batch(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    schema = pa.schema([pa.field(name, array.type, nullable=False) for name, array in columns.items()])
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST_NAME
    try:
        with reading(file):
            content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInputError(f"{path} is not a fleet: it has no {MANIFEST_NAME}.") from None
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadInputError(f"{file} does not describe a fleet.")
    if content.get("version") != FORMAT_VERSION:
        raise BadInputError(
            f"{path} has version {content.get('version')} of the format of fleets; this program reads "
            f"version {FORMAT_VERSION}."
        )
    expected = {"name": str, "paired": bool, "fingerprint": str, "files": dict}
    if not all(isinstance(content.get(key), kind) for key, kind in expected.items()):
        raise DamagedFileError(f"{file} is incomplete; it should have {', '.join(expected)}.")
    return content


def _map_table(path: Path, manifest: dict[str, Any]) -> pa.RecordBatch:
    """The one record batch of a file, as a view of it."""
    try:
        expected = manifest["files"][path.name]
        found_bytes = path.stat().st_size
        if found_bytes != expected["bytes"]:
            raise DamagedFileError(f"{path} has {found_bytes} bytes where {expected['bytes']} were written.")
        with reading(path), pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
            batch.validate(full=True)
        if len(set(batch.schema.names)) != batch.num_columns:
            raise DamagedFileError(f"{path} has several columns of one name.")
        if batch.num_rows != expected["rows"]:
            raise DamagedFileError(f"{path} has {batch.num_rows} rows where {expected['rows']} were written.")
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing.") from None
    except (KeyError, TypeError):
        raise DamagedFileError(f"{path.with_name(MANIFEST_NAME)} does not describe {path.name}.") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedFileError(f"{path} cannot be read as an Arrow file: {first_line}") from error
    return batch


def _devices_from(path: Path, batch: pa.RecordBatch) -> Devices:
    numbers: dict[str, Any] = {
        name: _numbers(path, _column(path, batch, name), pa.float64()) for name in NUMBER_COLUMNS
    }
    measured: dict[str, Any] = {}
    for name in MEASURED_COLUMNS:
        if name in batch.schema.names:
            lists = _lists(path, _column(path, batch, name), pa.float64())
            measured[name] = Ragged(
                _numbers(path, lists.offsets, pa.int64()), _numbers(path, lists.values, pa.float64())
            )
    return Devices(**numbers, **measured)


def _availability_from(path: Path, batch: pa.RecordBatch) -> Availability:
    lists = _lists(path, _column(path, batch, "intervals"), INTERVAL_TYPE)
    starts, ends, before = (
        _numbers(path, lists.values.field(number), pa.int32()) for number in range(INTERVAL_TYPE.num_fields)
    )
    periods = _numbers(path, _column(path, batch, "period_seconds"), pa.int64())
    offsets = _numbers(path, lists.offsets, pa.int64())
    trace_starts = None
    if _TRACE_STARTS in batch.schema.names:
        trace_starts = _numbers(path, batch.column(_TRACE_STARTS), pa.int64())
    return Availability.with_sums(offsets, starts, ends, periods, before, trace_starts)


def _column(path: Path, batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise DamagedFileError(f"{path} has no column {name!r}.")
    return batch.column(name)


def _lists(path: Path, array: pa.Array, value_type: pa.DataType) -> pa.LargeListArray:
    if not pa.types.is_large_list(array.type) or array.type.value_type != value_type or array.null_count:
        raise DamagedFileError(f"{path} has {array.type} where lists of {value_type} were expected.")
    return array


def _numbers(path: Path, array: pa.Array, expected: pa.DataType) -> AnyArray:
    """A view of the numbers in a file."""
    if array.type != expected or array.null_count:
        raise DamagedFileError(f"{path} has {array.type} with {array.null_count} gaps where {expected} was expected.")
    # Arrow's own conversions import pandas, which takes longer than all the rest.
    dtype = np.dtype(str(expected))
    if len(array) == 0:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)
