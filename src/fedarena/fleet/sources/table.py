"""Fleets in plain tables, CSV or Parquet: what to write to use phones of one's own, and to share a fleet.

A table of devices has a row for every phone and columns called like the fields of `Devices`; what is empty is not
known. Lists of measured speeds are lists in a Parquet file and separated by spaces in a CSV file. A table of
availabilities has a row for every interval: ``phone``, ``start_seconds``, ``end_seconds`` and ``period_seconds``; a row
without start and end is that of a phone that is never available.

If the devices have a column ``phone`` as well, both tables are about the same phones. If not, a client gets a row of
the one and a phone of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.fleet.arrays import BoolArray, FloatArray, IntArray, first_true
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import MEASURED_COLUMNS, NUMBER_COLUMNS, Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.tables import PlainTable, write_table
from fedarena.fleet.reading.traces import naming, report, whole_seconds
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.plain_parts import ideal_devices

PHONE, START, END, PERIOD = "phone", "start_seconds", "end_seconds", "period_seconds"


@FLEETS.register("table")
def table(
    phones: int,
    *,
    devices: PathOption | None = None,
    availability: PathOption | None = None,
    period_seconds: Annotated[int, Field(ge=1)] | None = None,
) -> Fleet:
    """Phones of one or two tables; without `devices` they take no time, without `availability` they are always there.

    `period_seconds` holds for all phones if the table has no such column.
    """
    if devices is None and availability is None:
        raise BadInputError("The fleet 'table' needs a table of devices, one of availability, or both")
    names, made_devices = (None, None) if devices is None else read_devices(devices)
    if availability is None:
        assert made_devices is not None
        return Fleet("table", made_devices, Availability.always(len(made_devices)), paired=True)
    intervals = _Intervals(availability, period_seconds)
    if names is not None:
        intervals.order_phones(names, str(devices))
    made_availability = intervals.availability()
    if made_devices is None:
        return Fleet("table", ideal_devices(len(made_availability)), made_availability, paired=True)
    return Fleet("table", made_devices, made_availability, paired=names is not None)


def write_tables(fleet: Fleet, *, devices: str | Path, availability: str | Path) -> None:
    """Writes a fleet as two tables, from which `table` makes the same fleet; the paths end in .csv or .parquet.

    Phones are called by their numbers. If devices and availabilities do not belong together, the devices have no name.
    """
    columns = {PHONE: _names(np.arange(len(fleet.devices)))} if fleet.paired else {}
    for name in NUMBER_COLUMNS:
        values = getattr(fleet.devices, name)
        if not np.isnan(values).all():
            columns[name] = pa.array(values, mask=np.isnan(values))
    for name in MEASURED_COLUMNS:
        speeds = getattr(fleet.devices, name)
        if speeds is not None:
            columns[name] = pa.LargeListArray.from_arrays(speeds.offsets, speeds.values)
    write_table(devices, columns)
    counts = np.diff(fleet.availability.offsets)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    exists = (counts > 0)[rows]
    starts, ends = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    starts[exists], ends[exists] = fleet.availability.starts, fleet.availability.ends
    write_table(
        availability,
        {
            PHONE: _names(rows),
            START: pa.array(starts, mask=~exists),
            END: pa.array(ends, mask=~exists),
            PERIOD: pa.array(fleet.availability.periods[rows]),
        },
    )


def _names(rows: IntArray) -> pa.Array:
    return pa.array(rows).cast(pa.string())


def read_devices(path: str) -> tuple[list[str] | None, Devices]:
    """The names of phones, if there are any, and their devices."""
    content = PlainTable(path, known=(PHONE, *NUMBER_COLUMNS, *MEASURED_COLUMNS), required=())
    names = content.texts(PHONE) if PHONE in content else None
    row_of: dict[str, int] = {}
    for row, name in enumerate(names or ()):
        if row_of.setdefault(name, row) != row:
            raise BadInputError(
                f"{content.place(row)}: the phone {name!r} has a row already, {content.place(row_of[name])}"
            )
    columns: dict[str, Any] = {name: content.numbers(name) for name in NUMBER_COLUMNS if name in content}
    columns |= {name: content.lists(name) for name in MEASURED_COLUMNS if name in content}
    with naming(path):
        return names, Devices.from_columns(names=_NamesWithPlaces(content, names), **columns)


class _NamesWithPlaces(Sequence[str]):
    """Names of phones that tell in sentences where in the table they are."""

    def __init__(self, content: PlainTable, names: list[str] | None):
        self._content, self._names = content, names

    def __len__(self) -> int:
        return self._content.rows

    def __getitem__(self, row: Any) -> Any:
        name = str(row) if self._names is None else self._names[row]
        return _NameWithPlace(name, self._content.place(row))


class _NameWithPlace(str):
    __slots__ = ("_place",)
    _place: str

    def __new__(cls, name: str, place: str) -> _NameWithPlace:
        made = super().__new__(cls, name)
        made._place = place
        return made

    def __repr__(self) -> str:
        return f"{super().__repr__()} ({self._place})"


class _Intervals:
    """The rows of a table of availabilities."""

    def __init__(self, path: str, period_seconds: int | None):
        self._content = PlainTable(path, known=(PHONE, START, END, PERIOD), required=(PHONE, START, END))
        if (period_seconds is None) == (PERIOD not in self._content):
            problem = "has no column 'period_seconds'" if period_seconds is None else "has a column 'period_seconds'"
            raise BadInputError(
                f"{path} {problem}; it must have one or fleet.period_seconds must be given, but not both"
            )
        names = self._content.texts(PHONE)
        row_of: dict[str, int] = {}
        self._path = path
        self._phones: IntArray = np.array([row_of.setdefault(name, len(row_of)) for name in names], dtype=np.int64)
        self._names = list(row_of)
        self._starts, self._ends = self._content.numbers(START), self._content.numbers(END)
        self._periods: FloatArray = (
            self._content.numbers(PERIOD)
            if period_seconds is None
            else np.full(self._content.rows, period_seconds, dtype=np.float64)
        )

    def order_phones(self, names: list[str], devices_path: str) -> None:
        """Puts phones in the order of `names`; both must be the same phones."""
        row_of = {name: row for row, name in enumerate(names)}
        stranger = next((name for name in self._names if name not in row_of), None)
        if stranger is not None:
            row = int(np.argmax(self._phones == self._names.index(stranger)))
            raise BadInputError(f"{self._content.place(row)}: the phone {stranger!r} is not in {devices_path}")
        if len(self._names) < len(names):
            missing = next(name for name in names if name not in set(self._names))
            raise BadInputError(
                f"{self._path} has no row of the phone {missing!r} of {devices_path}; "
                "a phone that is never available has one without start_seconds and end_seconds"
            )
        self._phones = np.array([row_of[name] for name in self._names], dtype=np.int64)[self._phones]
        self._names = names

    def availability(self) -> Availability:
        """The intervals, checked and rounded to whole seconds."""
        first_rows = np.full(len(self._names), len(self._phones), dtype=np.int64)
        np.minimum.at(first_rows, self._phones, np.arange(len(self._phones)))
        exists = self._check(first_rows)
        phones = self._phones[exists]
        starts, ends = whole_seconds(self._starts[exists]), whole_seconds(self._ends[exists])
        lasts = starts < ends
        with naming(self._path):
            periods = whole_seconds(self._periods[first_rows])
            availability = Availability.from_intervals(phones[lasts], starts[lasts], ends[lasts], periods, self._names)
        report(self._path, int((~lasts).sum()), "intervals are empty when rounded to whole seconds and were left out")
        return availability

    def _check(self, first_rows: IntArray) -> BoolArray:
        starts, ends, periods = self._starts, self._ends, self._periods
        self._refuse(~(periods > 0) | np.isinf(periods), "the period must be a number of seconds above 0")
        self._refuse(
            periods != periods[first_rows][self._phones], "the period differs from the one before of the phone"
        )
        self._refuse(np.isnan(starts) != np.isnan(ends), "an interval needs both start_seconds and end_seconds")
        exists: BoolArray = ~np.isnan(starts)
        self._refuse(exists & ~(starts >= 0), "start_seconds must be at least 0")
        self._refuse(exists & ~(starts < ends), "end_seconds must be above start_seconds")
        self._refuse(exists & ~(ends <= periods), "end_seconds must not be above the period")
        rows = np.flatnonzero(exists)
        rows = rows[np.lexsort((starts[rows], self._phones[rows]))]
        same = self._phones[rows[1:]] == self._phones[rows[:-1]]
        overlap = first_true(same & (starts[rows[1:]] < ends[rows[:-1]]))
        if overlap is not None:
            one, other = sorted((int(rows[overlap]), int(rows[overlap + 1])))
            raise BadInputError(
                f"{self._content.place(other)}: the interval of {self._phone(other)} overlaps that in "
                f"{self._content.place(one)}; intervals of a phone must be apart"
            )
        return exists

    def _refuse(self, wrong: BoolArray, sentence: str) -> None:
        row = first_true(wrong)
        if row is not None:
            raise BadInputError(
                f"{self._content.place(row)}: {sentence}, but the row of {self._phone(row)} says "
                f"{self._starts[row]:g} to {self._ends[row]:g} of {self._periods[row]:g}"
            )

    def _phone(self, row: int) -> str:
        return f"phone {self._names[self._phones[row]]!r}"
