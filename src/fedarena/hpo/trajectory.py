"""What a search went through: every evaluation in its order, the best one known after each, and the file of it.

Simulated time is that of the system which a problem describes. The real time that an optimizer itself took is kept in a
column of its own, and the two are never added: one is hours of phones, the other milliseconds of this machine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedarena.core.arrow_memory import arrow_file
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import reading, replacing
from fedarena.core.sealed_json import CHECKSUM_KEY
from fedarena.hpo.space import Configuration, Hyperparameter, Space

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NOT_YET: Final = -1  # the incumbent while there is none
_KEY: Final = b"fedarena.search"
_FORMAT: Final = 1
_NUMBERS: Final = ("value", "cost_s", "course_s", "simulated_s", "overhead_s")
_SETTING, _METRIC = "config:", "metric:"  # before names of columns, so that neither can be mistaken for another


@dataclass(frozen=True)
class Searched:
    """What was searched, and by what: with all of this equal, a search is the same one."""

    problem: str
    mode: str
    objective: str  # the metric that is looked at
    maximize: bool  # whether larger values of it are better; values of evaluations are its negative then
    space: Mapping[str, Any]  # as ``search:`` describes it
    min_rounds: int
    max_rounds: int
    client_sample_rate: float
    optimizer: Mapping[str, Any]  # its name, and all its options
    seed: int  # of the optimizer
    problem_seed: int = 0
    problem_options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""  # of what the problem answers from, where it has one


@dataclass(frozen=True)
class Evaluation:
    """One answer of a problem, as a search got it."""

    course: int  # evaluations of one course go on with the same training
    configuration: Configuration
    rounds: int
    value: float  # what is minimized; infinite for a course that diverged
    metrics: Mapping[str, float]
    cost_s: float  # simulated seconds that were paid for it: of a course that went on, the difference
    course_s: float  # simulated seconds of its course from the start
    simulated_s: float  # simulated seconds of the search when it was there
    overhead_s: float  # real seconds that the optimizer took to ask for it and to learn of it


class Trajectory:
    """The evaluations of a search, column by column; ``trajectory[3]`` is the fourth of them.

    `is_complete` says that the budget was spent as far as it goes: whatever the optimizer asked for next would have
    cost more than what was left.
    """

    def __init__(
        self, searched: Searched, budget_s: float, evaluations: Iterable[Evaluation], is_complete: bool
    ) -> None:
        self.searched, self.budget_s, self.is_complete = searched, budget_s, is_complete
        self._columns = _columns(searched, list(evaluations))

    @classmethod
    def _of_columns(cls, searched: Searched, budget_s: float, columns: _Columns, is_complete: bool) -> Trajectory:
        made = cls(searched, budget_s, (), is_complete)
        made._columns = columns
        return made

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Evaluation]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> Evaluation:
        numbers = self._columns.numbers
        metrics = {name: float(column[place]) for name, column in self._columns.metrics.items()}
        return Evaluation(
            course=int(self._columns.course[place]),
            configuration={name: column[place] for name, column in self._columns.settings.items()},
            rounds=int(self.rounds[place]),
            metrics={name: number for name, number in metrics.items() if not math.isnan(number)},
            **{name: float(column[place]) for name, column in numbers.items()},
        )

    @property
    def rounds(self) -> IntArray:
        """How long each evaluation's course had been trained."""
        return self._columns.rounds

    @property
    def values(self) -> FloatArray:
        """What each evaluation came to; smaller ones are better."""
        return self._columns.numbers["value"]

    @property
    def simulated_s(self) -> FloatArray:
        """When each evaluation was there, in simulated seconds."""
        return self._columns.numbers["simulated_s"]

    @property
    def courses(self) -> int:
        """How many trainings were begun."""
        return len(np.unique(self._columns.course))

    @property
    def overhead_s(self) -> float:
        """Real seconds of the optimizer itself, all in all."""
        return float(self._columns.numbers["overhead_s"].sum())

    @cached_property
    def incumbents(self) -> IntArray:
        """After each evaluation, the place of the best so far; see `incumbent_places`."""
        return incumbent_places(self.rounds, self.values)

    @property
    def best(self) -> Evaluation | None:
        """The incumbent in the end, if there is one."""
        place = int(self.incumbents[-1]) if len(self) else NOT_YET
        return None if place == NOT_YET else self[place]

    def best_at(self, simulated_s: Sequence[float] | FloatArray) -> FloatArray:
        """The value of the incumbent at these times; infinite as long as there is none."""
        places = np.searchsorted(self.simulated_s, np.asarray(simulated_s, dtype=np.float64), side="right") - 1
        incumbents = np.append(self.incumbents, NOT_YET)[places]  # a place of -1 is before the first evaluation
        return np.asarray(np.append(self.values, np.inf)[incumbents], dtype=np.float64)

    def within(self, budget_s: float) -> Trajectory:
        """The same search with a smaller budget, which would have gone the same way."""
        kept = int(np.searchsorted(self.simulated_s, budget_s, side="right"))
        columns = self._columns.first(kept)
        return self._of_columns(self.searched, budget_s, columns, self.is_complete or kept < len(self))

    def table(self) -> pa.Table:
        """All of it as an Arrow table, with the incumbent after each evaluation; ``.to_pandas()`` converts it."""
        columns = {
            "course": pa.array(self._columns.course),
            "rounds": pa.array(self.rounds),
            **{name: pa.array(column) for name, column in self._columns.numbers.items()},
            "incumbent": pa.array(self.incumbents),
        }
        for one in Space.parse(self.searched.space):
            values = self._columns.settings[one.name]
            columns[_SETTING + one.name] = (
                pa.array([json.dumps(value) for value in values], pa.string())
                if _number_type(one) is None
                else pa.array(values, _number_type(one))
            )
        for name, column in self._columns.metrics.items():
            columns[_METRIC + name] = pa.array(column)
        about = {
            "format": _FORMAT,
            **asdict(self.searched),
            "budget_s": self.budget_s,
            "is_complete": self.is_complete,
        }
        table = pa.table(columns)
        about[CHECKSUM_KEY] = _checksum(about, table)
        return table.replace_schema_metadata({_KEY: json.dumps(about).encode()})


def incumbent_places(rounds: Sequence[int] | IntArray, values: Sequence[float] | FloatArray) -> IntArray:
    """After each evaluation, which of them is the best: longer training comes first, then the smaller value.

    So what was seen after few rounds never takes the place of what was seen after many. What is not finite is never the
    best; there is `NOT_YET` one until something is.

    >>> incumbent_places([81, 3, 9], [0.50, 0.45, 2.0]).tolist()
    [0, 0, 0]
    >>> incumbent_places([3, 9, 9, 3], [0.45, 2.0, 1.5, 0.1]).tolist()
    [0, 1, 2, 2]
    """
    places = np.full(len(rounds), NOT_YET, dtype=np.int64)
    best, place = (-1, math.inf), NOT_YET
    for now, (trained, value) in enumerate(zip(np.asarray(rounds).tolist(), np.asarray(values).tolist(), strict=True)):
        if math.isfinite(value) and (trained > best[0] or (trained == best[0] and value < best[1])):
            best, place = (trained, value), now
        places[now] = place
    return places


def write_trajectory(trajectory: Trajectory, path: Path) -> None:
    """Writes a search, complete or not, in place of what was in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(trajectory.table(), temporary, compression="zstd")


def read_trajectory(path: Path) -> Trajectory:
    """The search in a file."""
    try:
        with reading(path):
            content = path.read_bytes()  # at once, since a search that goes on replaces the file
        table = pq.read_table(arrow_file(content))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DamagedFileError(f"{path} is damaged: it is no Parquet file that can be read") from error
    try:
        about = json.loads((table.schema.metadata or {})[_KEY])
        if about["format"] != _FORMAT:
            raise DamagedFileError(f"{path} keeps a search in the form of another version; remove it to search again")
        checksum = about.pop(CHECKSUM_KEY, None)  # searches of earlier versions have none
        if checksum is not None and checksum != _checksum(about, table):
            raise DamagedFileError(f"{path} is damaged: its numbers do not match its checksum")
        searched = Searched(**{one.name: about[one.name] for one in fields(Searched)})
        columns = _columns_of_table(table, searched)
        return Trajectory._of_columns(searched, about["budget_s"], columns, about["is_complete"])
    except (KeyError, TypeError, ValueError, BadInputError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path} is damaged, or holds something else than a search") from error


def _checksum(about: Mapping[str, Any], table: pa.Table) -> str:
    """What changes when anything in a search does: Parquet's pages and its footer have no checksums."""
    digest = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
    for name in table.column_names:
        column = table[name]
        is_text = pa.types.is_string(column.type)
        digest.update(json.dumps([name, str(column.type), column.to_pylist() if is_text else len(column)]).encode())
        digest.update(b"" if is_text else np.ascontiguousarray(column.to_numpy()).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Columns:
    """What evaluations are, turned by a quarter: thousands of them take little memory that way."""

    course: IntArray
    rounds: IntArray
    numbers: Mapping[str, FloatArray]
    settings: Mapping[str, list[Any]]
    metrics: Mapping[str, FloatArray]  # NaN where a metric is not known

    def first(self, kept: int) -> _Columns:
        return _Columns(
            self.course[:kept],
            self.rounds[:kept],
            {name: column[:kept] for name, column in self.numbers.items()},
            {name: column[:kept] for name, column in self.settings.items()},
            {name: column[:kept] for name, column in self.metrics.items()},
        )


def _columns(searched: Searched, found: Sequence[Evaluation]) -> _Columns:
    names = dict.fromkeys(name for one in found for name in one.metrics)
    return _Columns(
        np.array([one.course for one in found], dtype=np.int64),
        np.array([one.rounds for one in found], dtype=np.int64),
        {name: np.array([getattr(one, name) for one in found], dtype=np.float64) for name in _NUMBERS},
        {name: [one.configuration[name] for one in found] for name in searched.space},
        {name: np.array([one.metrics.get(name, math.nan) for one in found], dtype=np.float64) for name in names},
    )


def _columns_of_table(table: pa.Table, searched: Searched) -> _Columns:
    settings = {}
    for one in Space.parse(searched.space):
        column = table[_SETTING + one.name].to_pylist()
        values = column if _number_type(one) is not None else [json.loads(text) for text in column]
        settings[one.name] = [one.check(value) for value in values]
    numbers = {name: table[name].to_numpy().astype(np.float64) for name in _NUMBERS}
    metrics = [name for name in table.column_names if name.startswith(_METRIC)]
    return _Columns(
        table["course"].to_numpy().astype(np.int64),
        table["rounds"].to_numpy().astype(np.int64),
        numbers,
        settings,
        {name.removeprefix(_METRIC): table[name].to_numpy().astype(np.float64) for name in metrics},
    )


def _number_type(one: Hyperparameter) -> pa.DataType | None:
    """How values are stored; choices may be anything that YAML knows, and are JSON where they are not all numbers."""
    if one.kind != "choice":
        return pa.int64() if one.kind == "int" else pa.float64()
    if all(isinstance(value, int) and not isinstance(value, bool) for value in one.choices):
        return pa.int64()
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in one.choices)
    return pa.float64() if numbers else None
