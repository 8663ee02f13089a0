"""The table of jobs as arrays, read once and without a loop over its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.metrics import USED

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JobTable:
    """The jobs of a run; what is not known or was not reached is NaN."""

    round: IntArray  # in which a job ended
    client: IntArray
    outcome_names: tuple[str, ...]
    outcome: IntArray  # index into the names
    used: npt.NDArray[np.bool_]
    staleness: IntArray
    begin: FloatArray  # these five in seconds of virtual time
    downloaded: FloatArray
    trained: FloatArray
    uploaded: FloatArray
    end: FloatArray
    worked: FloatArray  # seconds of computing, sending and receiving, without pauses
    bytes: FloatArray  # down and up
    joules: FloatArray

    @classmethod
    def from_table(cls, table: pa.Table) -> JobTable:
        """Reads the table ``jobs`` of a run."""
        outcomes = pc.dictionary_encode(table["outcome"].combine_chunks())
        names = tuple(map(str, outcomes.dictionary.to_pylist()))
        code = _integers(outcomes.indices)
        return cls(
            round=_integers(table["round"]),
            client=_integers(table["index"]),
            outcome_names=names,
            outcome=code,
            used=code == (names.index(USED) if USED in names else -2),
            staleness=_integers(table["staleness"], missing=0),
            begin=_floats(table["begin_seconds"]),
            downloaded=_floats(table["downloaded_seconds"]),
            trained=_floats(table["trained_seconds"]),
            uploaded=_floats(table["uploaded_seconds"]),
            end=_floats(table["end_seconds"]),
            worked=_floats(table["worked_seconds"]),
            bytes=np.nan_to_num(_floats(table["bytes_down"])) + np.nan_to_num(_floats(table["bytes_up"])),
            joules=_floats(table["joules"]),
        )

    def __len__(self) -> int:
        return len(self.round)


def _integers(values: pa.ChunkedArray | pa.Array, missing: int = -1) -> IntArray:
    whole = pc.fill_null(pc.cast(values, pa.int64()), missing)
    return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)


def _floats(values: pa.ChunkedArray) -> FloatArray:
    values = pc.cast(values, pa.float64(), safe=False)
    return np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)
