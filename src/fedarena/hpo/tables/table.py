"""A table: what every configuration of a grid came to, by sample rate and round. One Parquet file.

A row is a configuration, a sample rate and a round, in columns that are named: one for every hyperparameter,
``client_sample_rate``, ``round``, one for every score (``validation_loss``, …), and what a round of it asks of the
system (``clients``, ``download_bytes``, ``upload_bytes``, ``steps``). A score is that of the round, up to the row's, in
which the validation loss was smallest, and the mean over seeds of that. Rounds between noted ones are answered by the
last noted one before them, at which the course stood no better than it does then. Numbers are rounded to a few
significant bits, which is what makes a file small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedarena.core.errors import BadInputError, CannotReadError, DamagedFileError
from fedarena.core.files import reading, replacing
from fedarena.hpo.cost import RoundWork
from fedarena.hpo.space import Configuration, Hyperparameter, Space

RATE, ROUND = "client_sample_rate", "round"
WORK = ("clients", "download_bytes", "upload_bytes", "steps")
FORMAT = 1
_KEY = b"fedarena"
_ZSTD_LEVEL = 19
FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Scores by place in the grid, sample rate, score and round; NaN where there is none, infinity after divergence."""

    problem: str
    space: Space  # that the grid is of
    grid: dict[str, tuple[Any, ...]]  # the values of every hyperparameter
    rates: tuple[float, ...]
    rounds: tuple[int, ...]  # that are noted, ascending
    scores: tuple[str, ...]
    values: FloatArray  # [configurations, rates, scores, rounds]
    present: npt.NDArray[np.bool_]  # [configurations, rates]
    work: dict[str, npt.NDArray[Any]]  # [configurations, rates], whole numbers where all are
    seeds: tuple[int, ...]
    about: dict[str, Any] = field(default_factory=dict)  # settings, fingerprints, command, versions

    @property
    def grid_space(self) -> Space:
        """The space of the configurations that the table has."""
        return Space([Hyperparameter(name, "choice", choices=values) for name, values in self.grid.items()])

    @property
    def round_work(self) -> RoundWork:
        """What rounds ask of the system, ``[configurations, rates]``."""
        return RoundWork(**self.work)

    def configurations(self) -> list[Configuration]:
        """All configurations, in the order of the first axis."""
        return list(self.grid_space.grid())

    def score(self, name: str) -> FloatArray:
        """A score, ``[configurations, rates, rounds]``."""
        found: FloatArray = self.values[:, :, self.scores.index(name)]
        return found


def write_table(table: Table, path: Path) -> None:
    """Writes the file; cells that are not present have no rows."""
    configurations, rates, rounds = len(table.values), len(table.rates), len(table.rounds)
    shape = (configurations, rates, rounds)
    rows = np.broadcast_to(table.present[:, :, None], shape).reshape(-1)
    columns: dict[str, Any] = {}
    names = list(table.grid)
    sizes = [len(values) for values in table.grid.values()]
    places = np.unravel_index(np.arange(configurations), sizes)
    for name, chosen in zip(names, places, strict=True):
        indices = np.broadcast_to(chosen[:, None, None], shape).reshape(-1)[rows].astype(np.int32)
        columns[name] = pa.DictionaryArray.from_arrays(indices, _column(table.grid[name]))
    columns[RATE] = np.broadcast_to(np.array(table.rates)[None, :, None], shape).reshape(-1)[rows]
    columns[ROUND] = np.broadcast_to(np.array(table.rounds, dtype=np.int32), shape).reshape(-1)[rows]
    for place, name in enumerate(table.scores):
        columns[name] = table.values[:, :, place].reshape(-1)[rows]
    for name in WORK:
        columns[name] = np.broadcast_to(table.work[name][:, :, None], shape).reshape(-1)[rows]
    about = {
        "format": FORMAT,
        "problem": table.problem,
        "space": table.space.described(),
        "grid": {name: list(values) for name, values in table.grid.items()},
        "rates": list(table.rates),
        "rounds": list(table.rounds),
        "scores": list(table.scores),
        "seeds": list(table.seeds),
        "about": table.about,
        "checksum": table_checksum(table),
    }
    found = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(
            found,
            temporary,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[*names, RATE, ROUND, *WORK],
            use_byte_stream_split=list(table.scores),
            write_statistics=False,
            row_group_size=len(found) or 1,
        )


def read_table(path: Path) -> Table:
    """Reads a table and makes sure that it is what was written."""
    about = _about(path)
    try:
        with reading(path):
            found = pq.read_table(path)
    except CannotReadError:
        raise
    except Exception as error:  # a damaged file can make its reader fail in any way
        raise DamagedFileError(f"The table {path} is damaged: {' '.join(str(error).split())}") from None
    try:
        table = _assemble(found, about)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DamagedFileError(f"The table {path} is damaged: {_what(error)}") from None
    if table_checksum(table) != about.get("checksum"):
        raise DamagedFileError(f"The table {path} is damaged: its numbers do not match its checksum")
    return table


def describe_table(path: Path) -> dict[str, Any]:
    """What a table says about itself, without reading its numbers."""
    return _about(path)


def _about(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise BadInputError(f"There is no table {path}")
    try:
        with reading(path):
            metadata = pq.read_schema(path).metadata or {}
    except CannotReadError:
        raise
    except Exception as error:  # a damaged file can make its reader fail in any way
        raise DamagedFileError(
            f"{path} is no table, or damaged: it cannot be read as Parquet ({' '.join(str(error).split())})"
        ) from None
    if _KEY not in metadata:
        raise BadInputError(f"{path} is a Parquet file, but no table of a problem; fedarena hpo table makes one")
    try:
        about: dict[str, Any] = json.loads(metadata[_KEY])
        version = about["format"]
    except (ValueError, KeyError, TypeError):
        raise DamagedFileError(f"The table {path} is damaged: what it says about itself cannot be read") from None
    if version != FORMAT:
        raise BadInputError(f"The table {path} has format {version}, and this version of FedArena reads {FORMAT}")
    return about


def _assemble(found: pa.Table, about: Mapping[str, Any]) -> Table:
    """Puts every row where it belongs; the order of rows and of columns does not matter, their names do."""
    space = Space.parse(about["space"])
    grid = {name: tuple(about["grid"][name]) for name in space.names}
    rates, rounds, scores = tuple(about["rates"]), tuple(about["rounds"]), tuple(about["scores"])
    missing = [name for name in (*grid, RATE, ROUND, *scores, *WORK) if name not in found.column_names]
    if missing:
        raise ValueError(f"it has no column {missing[0]}")
    sizes = [len(values) for values in grid.values()]
    places = [_places(found[name], values, name) for name, values in grid.items()]
    configuration = np.ravel_multi_index(places, sizes) if len(found) else np.zeros(0, dtype=np.int64)
    rate, round = _places(found[RATE], rates, RATE), _places(found[ROUND], rounds, ROUND)
    configurations = int(np.prod(sizes))
    values = np.full((configurations, len(rates), len(scores), len(rounds)), np.nan, dtype=np.float32)
    counts = np.zeros((configurations, len(rates)), dtype=np.int64)
    np.add.at(counts, (configuration, rate), 1)
    if not np.isin(counts, (0, len(rounds))).all():
        raise ValueError("a cell lacks rounds, or has one twice")
    for place, name in enumerate(scores):
        values[configuration, rate, place, round] = found[name].to_numpy()
    work = {}
    for name in WORK:
        asked = found[name].to_numpy()
        work[name] = np.zeros((configurations, len(rates)), dtype=asked.dtype)
        work[name][configuration, rate] = asked
    return Table(
        problem=str(about["problem"]),
        space=space,
        grid=grid,
        rates=rates,
        rounds=rounds,
        scores=scores,
        values=values,
        present=counts > 0,
        work=work,
        seeds=tuple(about["seeds"]),
        about=dict(about["about"]),
    )


def _column(values: Sequence[Any]) -> pa.Array:
    """Values of a hyperparameter; those that no column can hold together are written as JSON."""
    is_plain = all(isinstance(value, str) for value in values) or all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    return pa.array(values) if is_plain else pa.array([json.dumps(value) for value in values])


def _places(column: pa.ChunkedArray, values: Sequence[Any], name: str) -> IntArray:
    """Which of these values each row has."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    known = {value: place for place, value in enumerate(_column(values).to_pylist())}
    try:
        places = np.array([known[value] for value in encoded.dictionary.to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise ValueError(f"{name} has the value {error}, which is not of the grid") from None
    found: IntArray = places[encoded.indices.to_numpy()]
    return found


def table_checksum(table: Table) -> str:
    """What changes when anything in a table does."""
    digest = hashlib.sha256()
    text = [table.problem, table.space.described(), table.grid, table.rates, table.rounds, table.scores, table.seeds]
    digest.update(json.dumps([*text, table.about], sort_keys=True).encode())
    cells = table.values[table.present]
    digest.update(np.where(np.isnan(cells), np.float32(np.nan), cells).tobytes())
    digest.update(np.ascontiguousarray(table.present).tobytes())
    for name in WORK:
        digest.update(table.work[name][table.present].tobytes())
    return digest.hexdigest()


def _what(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
