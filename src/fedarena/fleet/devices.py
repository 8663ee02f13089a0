"""What devices can do: how fast they compute, send and receive, and what that costs in energy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.fleet.arrays import (
    FloatArray,
    Names,
    Ragged,
    Rows,
    called,
    check_names,
    first_true,
    flat_array,
    known_rows,
)

COMPUTE_COLUMNS = ("seconds_per_sample", "flops_per_second")
SPEED_COLUMNS = ("download_bits_per_second", "upload_bits_per_second")
POWER_COLUMNS = ("compute_watts", "radio_watts")
NUMBER_COLUMNS = (*COMPUTE_COLUMNS, *SPEED_COLUMNS, *POWER_COLUMNS)
MEASURED_COLUMNS = ("measured_download", "measured_upload")


@dataclass(frozen=True, eq=False)
class Devices:
    """One row per device; NaN stands for what is not known.

    The constructor believes what it is given; `from_columns` checks it and fills in what is missing.
    """

    # For training on one sample. Not used where flops_per_second is known, which takes the model into account.
    seconds_per_sample: FloatArray
    flops_per_second: FloatArray
    # On average; may be infinite.
    download_bits_per_second: FloatArray
    upload_bits_per_second: FloatArray
    # Joules per second of computing, and of sending or receiving.
    compute_watts: FloatArray
    radio_watts: FloatArray
    # Bits per second, one of which is drawn for every transfer.
    measured_download: Ragged | None = None
    measured_upload: Ragged | None = None

    @classmethod
    def from_columns(cls, *, names: Names = None, **columns: Any) -> Devices:
        """Makes devices of columns called like the fields, and raises `BadInputError` about what is wrong.

        Needed are one of the columns for computing and both for transfers, of which the measured speeds give the mean
        where it is not given. All else may be left out.

        >>> columns = {"download_bits_per_second": [8e6, 5e6], "upload_bits_per_second": [1e6, 2e6]}
        >>> len(Devices.from_columns(seconds_per_sample=[0.1, 0.2], **columns))
        2
        """
        given = {name: values for name, values in columns.items() if values is not None}
        unknown = sorted(given.keys() - {field.name for field in fields(cls)})
        if unknown:
            known = [field.name for field in fields(cls)]
            raise BadInputError(f"Devices have no column {unknown[0]!r}; {nearest(unknown[0], known)}")
        numbers: dict[str, Any] = {
            name: flat_array(given[name], name).astype(np.float64) for name in NUMBER_COLUMNS if name in given
        }
        measured: dict[str, Any] = {name: _measured(given[name], name) for name in MEASURED_COLUMNS if name in given}
        rows = _one_length({**numbers, **measured})
        check_names(names, rows)
        for column in NUMBER_COLUMNS:
            numbers.setdefault(column, np.full(rows, np.nan))
        for column, speeds in zip(MEASURED_COLUMNS, SPEED_COLUMNS, strict=True):
            if column in measured:
                _check_measured(measured[column], column, names)
                unknown_mean = np.isnan(numbers[speeds])
                numbers[speeds] = np.where(unknown_mean, measured[column].means(), numbers[speeds])
        _check_numbers(numbers, names)
        return cls(**numbers, **measured)

    def __len__(self) -> int:
        return len(self.seconds_per_sample)

    def take(self, rows: Rows) -> Devices:
        """The devices at `rows`, in their order."""
        wanted = known_rows(np.atleast_1d(np.asarray(rows)), len(self))
        return Devices(
            **{name: getattr(self, name)[wanted] for name in NUMBER_COLUMNS},
            **{name: lists.take(wanted) for name in MEASURED_COLUMNS if (lists := getattr(self, name)) is not None},
        )

    def compute_seconds(self, rows: Rows, samples: npt.ArrayLike, flops: npt.ArrayLike) -> FloatArray:
        """How long devices take to process that many samples, which are that many operations altogether."""
        wanted = known_rows(rows, len(self))
        by_operations = np.asarray(flops, dtype=np.float64) / self.flops_per_second[wanted]
        by_samples = np.asarray(samples, dtype=np.float64) * self.seconds_per_sample[wanted]
        return np.where(np.isnan(by_operations), by_samples, by_operations)

    def draw_download(self, rows: Rows, random_bits: npt.ArrayLike) -> FloatArray:
        """Bits per second of one download each: a measured speed that the random bits choose, or the mean."""
        return _draw(self.download_bits_per_second, self.measured_download, rows, random_bits)

    def draw_upload(self, rows: Rows, random_bits: npt.ArrayLike) -> FloatArray:
        """Bits per second of one upload each: a measured speed that the random bits choose, or the mean."""
        return _draw(self.upload_bits_per_second, self.measured_upload, rows, random_bits)

    @cached_property
    def knows_energy(self) -> bool:
        """Whether all devices tell what their work costs."""
        return not any(np.isnan(getattr(self, column)).any() for column in POWER_COLUMNS)

    def joules(self, rows: Rows, compute_seconds: npt.ArrayLike, radio_seconds: npt.ArrayLike) -> FloatArray:
        """The energy for that much time of computing, and of sending or receiving; NaN where it is not known."""
        wanted = known_rows(rows, len(self))
        computing = self.compute_watts[wanted] * np.asarray(compute_seconds, dtype=np.float64)
        return computing + self.radio_watts[wanted] * np.asarray(radio_seconds, dtype=np.float64)


def _draw(means: FloatArray, measured: Ragged | None, rows: Rows, random_bits: npt.ArrayLike) -> FloatArray:
    wanted, bits = np.broadcast_arrays(known_rows(rows, len(means)), np.asarray(random_bits, dtype=np.uint64))
    speeds: FloatArray = np.asarray(means[wanted])
    if measured is None:
        return speeds
    first = measured.offsets[wanted]
    count = measured.offsets[wanted + 1] - first
    several = count > 0
    chosen = first[several] + (bits[several] % count[several].astype(np.uint64)).astype(np.int64)
    speeds[several] = measured.values[chosen]
    return speeds


def _measured(lists: Any, column: str) -> Ragged:
    if not isinstance(lists, Ragged):
        raise BadInputError(f"{column} must be Ragged lists of speeds, not {type(lists).__name__}.")
    return lists


def _one_length(columns: dict[str, Any]) -> int:
    if not columns:
        raise BadInputError(f"Devices need columns: {', '.join(NUMBER_COLUMNS)}.")
    first, *others = columns
    for other in others:
        if len(columns[other]) != len(columns[first]):
            raise BadInputError(
                f"{first} has {len(columns[first])} phones, but {other} has {len(columns[other])}; "
                "they must be equally many."
            )
    return len(columns[first])


def _check_measured(lists: Ragged, column: str, names: Names) -> None:
    wrong = first_true(~((lists.values > 0) & np.isfinite(lists.values)))
    if wrong is not None:
        row = int(np.searchsorted(lists.offsets, wrong, side="right")) - 1
        raise BadInputError(
            f"{column} of {called(row, names)} has a speed of {lists.values[wrong]:g} bits per second; "
            "measured speeds must be positive and finite."
        )


def _check_numbers(numbers: dict[str, FloatArray], names: Names) -> None:
    seconds, flops = (numbers[column] for column in COMPUTE_COLUMNS)
    _refuse(
        "seconds_per_sample",
        seconds,
        ~(np.isnan(seconds) | ((seconds >= 0) & np.isfinite(seconds))),
        names,
        "it must be finite and not negative",
    )
    _refuse("flops_per_second", flops, flops <= 0, names, "it must be positive")
    neither = first_true(np.isnan(seconds) & np.isnan(flops))
    if neither is not None:
        raise BadInputError(
            f"How fast {called(neither, names)} computes is missing; seconds_per_sample or flops_per_second is needed."
        )
    for column in SPEED_COLUMNS:
        missing = first_true(np.isnan(numbers[column]))
        if missing is not None:
            raise BadInputError(f"{column} of {called(missing, names)} is missing; every phone needs a speed.")
        _refuse(column, numbers[column], numbers[column] <= 0, names, "it must be positive")
    for column in POWER_COLUMNS:
        watts = numbers[column]
        _refuse(
            column,
            watts,
            ~(np.isnan(watts) | ((watts >= 0) & np.isfinite(watts))),
            names,
            "it must be finite and not negative",
        )
    one_only = first_true(np.logical_xor(*(np.isnan(numbers[column]) for column in POWER_COLUMNS)))
    if one_only is not None:
        raise BadInputError(
            f"Of {called(one_only, names)} only one of {' and '.join(POWER_COLUMNS)} is given; "
            "energy needs both, or neither."
        )


def _refuse(column: str, values: FloatArray, wrong: npt.NDArray[np.bool_], names: Names, right: str) -> None:
    position = first_true(wrong)
    if position is not None:
        raise BadInputError(f"{column} of {called(position, names)} is {values[position]:g}; {right}.")
