"""What the readers of trace files share: opening files, checking records, making intervals fit for an availability.

Everything that is wrong with a file becomes one sentence that names the file and the place.
"""

from __future__ import annotations

import json
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes
from fedarena.core.pickles import parse_pickle
from fedarena.core.registry import nearest
from fedarena.fleet.arrays import FloatArray, IntArray, first_true

_LONGEST_SHOWN = 80
_SHORT = reprlib.Repr()  # looks at the beginning of large values only
_SHORT.maxstring = _SHORT.maxother = 60
_MAX_SECONDS = 2.0**53  # beyond, floating-point numbers are not exact; no period is nearly as long


def read_json(path: str | Path) -> Any:
    """The value in a JSON file."""
    return _parse_json(read_bytes(path), path)


def read_json_or_pickle(path: str | Path) -> Any:
    """The value in a file that is JSON or a pickle of plain data; nothing in a pickle is executed."""
    data = read_bytes(path)
    # No pickle begins like this: they begin with a protocol, or, in protocol 0, with an instruction.
    return _parse_json(data, path) if data.lstrip()[:1] in (b"{", b"[") else parse_pickle(data, path)


def _parse_json(data: bytes, path: str | Path) -> Any:
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not JSON: byte {error.start:,} is not part of a text") from None
    except (RecursionError, ValueError) as error:
        raise BadInputError(f"{path} is not JSON that can be used: {error}") from None


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Puts the name of a file before sentences about what was in it."""
    try:
        yield
    except BadInputError as error:
        raise BadInputError(f"{path}: {error}") from None


def as_shown(value: Any) -> str:
    """A value of a file in a sentence, cut short."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def records_by_name(value: Any, path: str | Path) -> dict[str, Mapping[str, Any]]:
    """What should be a dictionary of dictionaries, one per phone; names of phones become texts."""
    if not isinstance(value, dict) or not value:
        raise BadInputError(f"{path} must hold an entry for every phone, not {as_shown(value)}")
    for name, record in value.items():
        if not isinstance(record, dict):
            raise BadInputError(
                f"{path}: the entry of phone {as_shown(name)} must be a dictionary, not {as_shown(record)}"
            )
    records = {str(name): record for name, record in value.items()}
    if len(records) < len(value):
        raise BadInputError(f"{path} has two phones of the same name, once as a number and once as a text")
    return records


def records_in_list(value: Any, path: str | Path) -> list[dict[str, Any]]:
    """What should be a list of dictionaries."""
    if not isinstance(value, list) or not value:
        raise BadInputError(f"{path} must hold a list of records, not {as_shown(value)}")
    for number, record in enumerate(value, start=1):
        if not isinstance(record, dict):
            raise BadInputError(f"{path}: record {number} must be a dictionary, not {as_shown(record)}")
    return value


def entries(records: Iterable[Mapping[str, Any]], key: str, places: Sequence[str]) -> list[Any]:
    """``record[key]`` of all records; `places` says in errors where each record is."""
    values = []
    for position, record in enumerate(records):
        try:
            values.append(record[key])
        except KeyError:
            known = [str(name) for name in record]
            raise BadInputError(f"{places[position]} has no {key!r}; {nearest(key, known)}") from None
    return values


def lists(values: Sequence[Any], key: str, places: Sequence[str]) -> Sequence[Sequence[Any]]:
    """`values`, which must all be lists."""
    for position, value in enumerate(values):
        if not isinstance(value, list | tuple):
            raise BadInputError(f"{key!r} of {places[position]} must be a list, not {as_shown(value)}")
    return values


def numbers(values: Sequence[Any], key: str, places: Sequence[str], *, above: float | None = None) -> FloatArray:
    """`values` as an array; raises unless all are finite numbers, and above a limit if there is one."""
    if not set(map(type, values)) <= {int, float}:
        wrong = next(position for position, value in enumerate(values) if type(value) not in (int, float))
        raise BadInputError(f"{key!r} of {places[wrong]} must be a number, not {as_shown(values[wrong])}")
    try:
        array = np.fromiter(values, dtype=np.float64, count=len(values))
    except OverflowError:
        array = np.array([float("inf") if abs(value) > 1e300 else value for value in values], dtype=np.float64)
    position = first_true(~np.isfinite(array) | (array <= (-np.inf if above is None else above)))
    if position is not None:
        condition = "a finite number" if above is None else f"a finite number above {above:g}"
        raise BadInputError(f"{key!r} of {places[position]} must be {condition}, not {as_shown(values[position])}")
    return array


def flat_numbers(values: Sequence[Sequence[Any]], key: str, places: Sequence[str]) -> tuple[IntArray, FloatArray]:
    """The numbers of all lists one after the other, and the position in `values` of the list that each is from."""
    counts = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    owners = np.repeat(np.arange(len(values)), counts)
    flat = list(chain.from_iterable(values))
    return owners, numbers(flat, key, _PlaceOfOwner(places, owners))


class _PlaceOfOwner(Sequence[str]):
    """Places of numbers in lists, put into words only when one is asked for."""

    def __init__(self, places: Sequence[str], owners: IntArray):
        self._places, self._owners = places, owners

    def __len__(self) -> int:
        return len(self._owners)

    def __getitem__(self, position: Any) -> Any:
        return self._places[self._owners[position]]


class Places(Sequence[str]):
    """How sentences call records of a file: ``Places("phone", names)[3]``; put into words only when asked for."""

    def __init__(self, kind: str, names: Sequence[Any]):
        self._kind, self._names = kind, names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, position: Any) -> Any:
        return f"{self._kind} {self._names[position]!r}"


def whole_seconds(seconds: FloatArray) -> IntArray:
    """Times rounded to whole seconds."""
    return np.rint(np.clip(seconds, -_MAX_SECONDS, _MAX_SECONDS)).astype(np.int64)


def merge_intervals(rows: IntArray, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Intervals sorted by row and start, with those that touch or overlap made into one."""
    order = np.lexsort((starts, rows))
    rows, starts, ends = rows[order], starts[order], ends[order]
    if not len(rows):
        return rows, starts, ends
    # The latest end so far in the same row: rows are moved so far apart that ends of earlier ones do not count.
    apart = rows * (int(ends.max()) - min(int(starts.min()), 0) + 1)
    latest = np.maximum.accumulate(ends + apart)
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (rows[1:] != rows[:-1]) | (starts[1:] + apart[1:] > latest[:-1])
    closes = np.append(begins[1:], True)
    return rows[begins], starts[begins], (latest - apart)[closes]


def report(path: str | Path, count: int, what: str) -> None:
    """Warns of something in a file that was put right, if there was anything."""
    if count:
        warnings.warn(f"{path}: {count:,} {what}", stacklevel=3)
