"""The table of jobs as arrays, read once and without a loop over its rows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.metrics import USED

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JobTable:
    """The jobs of a run, under the names of the columns (see `fedarena.storage.tables`) that are read as numbers.

    What is not known or was not reached is NaN.
    """

    outcome_names: tuple[str, ...]
    outcome: IntArray  # index into the names
    round: IntArray
    index: IntArray
    start_version: IntArray
    staleness: IntArray
    samples: IntArray
    begin_seconds: FloatArray
    downloaded_seconds: FloatArray
    trained_seconds: FloatArray
    uploaded_seconds: FloatArray
    end_seconds: FloatArray
    worked_seconds: FloatArray
    loss: FloatArray
    bytes_down: IntArray
    bytes_up: IntArray
    joules: FloatArray

    @classmethod
    def from_table(cls, table: pa.Table) -> JobTable:
        """Reads the table ``jobs`` of a run."""
        outcomes = pc.dictionary_encode(table["outcome"].combine_chunks())
        names = tuple(map(str, outcomes.dictionary.to_pylist()))
        others = [field.name for field in fields(cls) if not field.name.startswith("outcome")]
        return cls(names, _numbers(outcomes.indices, missing=-1), **{name: _numbers(table[name]) for name in others})

    def __len__(self) -> int:
        return len(self.round)

    @cached_property
    def used(self) -> npt.NDArray[np.bool_]:
        """Whose updates went into a model."""
        return np.asarray(self.outcome == (self.outcome_names.index(USED) if USED in self.outcome_names else -2))

    @property
    def bytes(self) -> FloatArray:
        """Down and up."""
        return (self.bytes_down + self.bytes_up).astype(np.float64)


def _numbers(values: pa.ChunkedArray | pa.Array, missing: int = 0) -> npt.NDArray[Any]:
    """The numbers of a column as its type says: NaN stands for what is missing, or another number if all are whole."""
    if pa.types.is_integer(values.type):
        whole = pc.fill_null(pc.cast(values, pa.int64()), missing)
        return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.asarray(pc.fill_null(values, float("nan")).to_numpy(zero_copy_only=False), dtype=np.float64)
