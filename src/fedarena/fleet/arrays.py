"""Arrays of the fleet: their types, lists of different lengths in flat arrays, and checks with sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError

AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]
IntArray = npt.NDArray[np.int64]
# Rows of devices: any whole numbers, in any shape.
Rows = npt.NDArray[np.integer[Any]] | Sequence[int] | int
Names = Sequence[str] | None


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of different lengths, one after the other: list i is ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: IntArray
    values: FloatArray

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[float]]) -> Ragged:
        """Makes flat arrays of lists.

        >>> Ragged.from_lists([[1.0, 2.0], [], [5.0]]).offsets.tolist()
        [0, 2, 2, 3]
        """
        offsets = np.zeros(len(lists) + 1, dtype=np.int64)
        np.cumsum([len(values) for values in lists], out=offsets[1:])
        flat = np.fromiter((value for values in lists for value in values), dtype=np.float64, count=int(offsets[-1]))
        return cls(offsets, flat)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Rows) -> Ragged:
        """The lists at `rows`, in their order."""
        offsets, positions = gather_lists(self.offsets, np.asarray(rows))
        return Ragged(offsets, self.values[positions])

    def means(self) -> FloatArray:
        """The mean of every list; NaN for an empty one."""
        counts = np.diff(self.offsets)
        filled = counts > 0
        means = np.full(len(self), np.nan)
        if filled.any():  # between the beginnings of two lists that are not empty lies exactly the first of them
            means[filled] = np.add.reduceat(self.values, self.offsets[:-1][filled]) / counts[filled]
        return means


def gather_lists(offsets: IntArray, rows: AnyArray) -> tuple[IntArray, IntArray]:
    """Where the lists at `rows` lie: their offsets when put one after the other, and the positions of their values."""
    firsts = offsets[rows]
    counts = offsets[rows + 1] - firsts
    taken = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(counts, out=taken[1:])
    positions = np.arange(taken[-1], dtype=np.int64)
    positions += np.repeat(firsts - taken[:-1], counts)
    return taken, positions


def known_rows(rows: Rows, devices: int) -> IntArray:
    """`rows` as an array; raises unless all exist, because NumPy would count negative ones from the end."""
    array = np.asarray(rows)
    if array.size and array.dtype.kind not in "iu":
        raise IndexError(f"rows of phones must be whole numbers, not {array.dtype}")
    if array.size and not (array.min() >= 0 and array.max() < devices):
        raise IndexError(f"rows of phones must be between 0 and {devices - 1}")
    return array.astype(np.int64, copy=False)


def first_true(mask: BoolArray) -> int | None:
    """The position of the first True, if there is one."""
    if not len(mask):
        return None
    position = int(mask.argmax())
    return position if mask[position] else None


def called(row: int, names: Names) -> str:
    """How a sentence calls a device."""
    return f"phone {names[row]!r}" if names is not None else f"phone {row}"


def check_names(names: Names, devices: int) -> None:
    """Raises unless there is a name for every device, or there are none."""
    if names is not None and len(names) != devices:
        raise BadInputError(f"There are {len(names)} names for {devices} phones; every phone needs one.")


def flat_array(values: Any, what: str) -> AnyArray:
    """`values` as an array of numbers in one dimension."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise BadInputError(f"{what} must be a list of numbers, not an array of {array.ndim} dimensions.")
    if array.size == 0 and array.dtype == np.float64:
        return array.astype(np.int64)  # what NumPy makes of an empty list
    if array.dtype.kind not in "iuf":
        raise BadInputError(f"{what} must be numbers, not {array.dtype}.")
    return array


def whole_numbers(values: Any, what: str) -> npt.NDArray[np.integer[Any]]:
    """`values` as an array of whole numbers; raises where one is not."""
    array = flat_array(values, what)
    if array.dtype.kind != "f":
        return array
    wrong = first_true(~np.isfinite(array) | (array != np.rint(array)))
    if wrong is not None:
        raise BadInputError(f"{what} must be whole numbers, but number {wrong} is {array[wrong]:g}.")
    return array.astype(np.int64)
