"""LEAF's metrics files: stat_metrics.csv (accuracy of every client) and sys_metrics.csv (bytes and FLOPs of every job).

LEAF's older files, such as those of its baselines, have neither the column ``set`` nor ``loss``; both forms are read.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.files import read_bytes, write_text
from fedarena.core.registry import nearest
from fedarena.data.leaf.description import hierarchy_among
from fedarena.storage.run_data import RunData
from fedarena.storage.tables import sent_bytes

FloatArray = npt.NDArray[np.float64]
Form = Literal["released", "baseline"]

STATISTICAL, SYSTEMS = "stat_metrics.csv", "sys_metrics.csv"
_COMMON = ("client_id", "round_number", "hierarchy", "num_samples")
_SYSTEMS = ("bytes_written", "bytes_read", "local_computations")
_PERCENTILES = (10, 25, 50, 75, 90)
_TRAINING = "train"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what begins a formula, for one spreadsheet or another


@dataclass(frozen=True)
class LeafTable:
    """One file: a row for a client in a round."""

    name: str  # what the accuracies and the costs of an experiment share
    folder: Path
    columns: dict[str, FloatArray]  # the numbers in it
    is_training: npt.NDArray[np.bool_]  # rows about samples for training

    @property
    def is_statistical(self) -> bool:
        """Whether it has accuracies; otherwise it has bytes and computations."""
        return "accuracy" in self.columns


@dataclass(frozen=True)
class AccuracyCurve:
    """Accuracies over clients, round by round; what is weighted counts every sample the same."""

    rounds: FloatArray
    clients: FloatArray
    weighted: FloatArray
    mean: FloatArray
    percentiles: dict[int, FloatArray]


def accuracy_curve(table: LeafTable) -> AccuracyCurve:
    """How accuracy goes in the samples for testing (in all, if the file does not tell them apart)."""
    chosen = ~table.is_training if not table.is_training.all() else table.is_training
    round_of, accuracy, samples = (table.columns[key][chosen] for key in ("round_number", "accuracy", "num_samples"))
    rounds = np.unique(round_of)
    values = [(accuracy[round_of == round], samples[round_of == round]) for round in rounds]
    return AccuracyCurve(
        rounds,
        np.array([len(found) for found, _ in values], dtype=np.float64),
        np.array([np.average(found, weights=sizes) if sizes.any() else np.nan for found, sizes in values]),
        np.array([found.mean() for found, _ in values]),
        {
            level: np.array([np.percentile(found, level) for found, _ in values], dtype=np.float64)
            for level in _PERCENTILES
        },
    )


def summed_costs(table: LeafTable) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Rounds, and what all clients together had sent, received and computed up to each."""
    rounds, place = np.unique(table.columns["round_number"], return_inverse=True)
    return rounds, {key: np.cumsum(np.bincount(place, weights=table.columns[key])) for key in _SYSTEMS}


def spent_until(evaluated: FloatArray, rounds: FloatArray, summed: FloatArray) -> FloatArray:
    """What had been spent when models were evaluated, each at the end of its round."""
    places = np.searchsorted(rounds, evaluated, side="right")
    places[evaluated == 0] = 0  # the untrained model, also where LEAF counts the rounds of training from 0
    return np.concatenate([[0.0], summed])[places]


def read_leaf_metrics(path: Path) -> LeafTable:
    """Reads a file of LEAF's, compressed with gzip or not."""
    try:
        text = read_bytes(path).decode()
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadInputError(f"{path}, line {line}: this is not UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = next(reader)
        wanted = _wanted_columns(header, path)
        for row in reader:
            if len(row) != len(header):
                raise BadInputError(f"{path}, line {reader.line_num}: {len(row)} cells for {len(header)} columns")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: {error}") from None
    if not rows:
        raise BadInputError(f"{path} has no rows, only the names of its columns")
    columns = {key: _numbers(path, key, [row[header.index(key)] for row in rows], lines) for key in wanted}
    of_set = [row[header.index("set")] for row in rows] if "set" in header else [""] * len(rows)
    return LeafTable(_shared_name(path), path.parent, columns, np.array(of_set) == _TRAINING)


def _shared_name(path: Path) -> str:
    """k_10 of stat_metrics_k_10.csv, a of a_stat.csv; that of the folder where the file's name says no more."""
    stem = path.name.removesuffix(".gz").removesuffix(".csv")
    return re.sub(r"^(stat|sys)_metrics_?|_?(stat|sys)$", "", stem, count=1) or path.resolve().parent.name or stem


def _wanted_columns(header: list[str], path: Path) -> list[str]:
    """The columns with numbers."""
    if len(set(header)) < len(header):
        raise BadInputError(f"{path}, line 1: two columns have the same name")
    kind = _SYSTEMS if any(key in header for key in _SYSTEMS) else ("accuracy",)
    wanted = ["round_number", "num_samples", *kind]
    missing = [key for key in ("client_id", *wanted) if key not in header]
    if missing:
        raise BadInputError(
            f"{path}, line 1: there is no column {missing[0]}; LEAF's files have {', '.join(_COMMON)} and then "
            f"accuracy, or {', '.join(_SYSTEMS)}"
        )
    return wanted


def _numbers(path: Path, key: str, cells: list[str], lines: list[int]) -> FloatArray:
    try:
        numbers = np.array(cells, dtype=np.float64)
    except ValueError:
        numbers = np.array([_number(cell) for cell in cells])
    highest = 1.0 if key == "accuracy" else np.inf
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0) & (numbers <= highest)))
    if len(wrong):
        limits = "between 0 and 1" if key == "accuracy" else "of 0 or more"
        raise BadInputError(f"{path}, line {lines[wrong[0]]}: {key} is {cells[wrong[0]]!r}, not a number {limits}")
    return numbers


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


Rows = list[dict[str, Any]]


def accuracy_rows(run: RunData, hierarchy: str | None = None) -> Rows:
    """What a run has of stat_metrics.csv, with the columns of the released code."""
    of_client = _hierarchies(run, hierarchy)
    part = run.evaluated_part
    return [
        {
            "client_id": row["client"],
            "round_number": row["round"],
            "hierarchy": of_client.get(row["client"], ""),
            # What the accuracy is a mean over: characters or words, where these are predicted.
            "num_samples": row.get("predictions") or row["samples"],
            "set": {"validation": "val"}.get(part, part),
            "accuracy": row["accuracy"],
            "loss": row["loss"],
        }
        for row in run.clients.to_pylist()
    ]


def cost_rows(run: RunData, hierarchy: str | None = None) -> Rows:
    """What a run has of sys_metrics.csv."""
    of_client = _hierarchies(run, hierarchy)
    written, read = (sent_bytes(run.jobs, name).to_pylist() for name in ("bytes_up", "bytes_down"))
    return [
        {
            "client_id": job["client"],
            "round_number": job["round"],
            "hierarchy": of_client.get(job["client"], ""),
            "num_samples": job["samples"],
            "set": _TRAINING,
            "bytes_written": job_written,
            "bytes_read": job_read,
            "local_computations": round(job["flops"] or 0),  # runs of before do not say
        }
        for job, job_written, job_read in zip(run.jobs.to_pylist(), written, read, strict=True)
    ]


def _hierarchies(run: RunData, name: str | None) -> dict[str, str]:
    """The attribute that LEAF would call a hierarchy, of every evaluated client: as said, or the first that is text."""
    if run.attributes is None:
        known, texts = [], []
    else:
        known = [field.name for field in run.attributes.schema if field.name != "client"]
        texts = [column for column in known if pa.types.is_string(run.attributes.schema.field(column).type)]
    if name is not None and name not in known:
        raise BadInputError(f"The clients of {run.path} have no attribute {name!r}; {nearest(name, known)}")
    name = name or hierarchy_among(texts)
    if run.attributes is None or name is None:
        return {}
    return dict(zip(run.attributes["client"].to_pylist(), map(str, run.attributes[name].to_pylist()), strict=True))


def write_leaf_metrics(run: RunData, folder: Path, form: Form, hierarchy: str | None = None) -> list[Path]:
    """Writes a run's tables into a folder as LEAF's two files; `baseline` leaves out the columns set and loss."""
    left_out = ("set", "loss") if form == "baseline" else ()
    files = (
        (folder / STATISTICAL, accuracy_rows(run, hierarchy), ("accuracy", "loss")),
        (folder / SYSTEMS, cost_rows(run, hierarchy), _SYSTEMS),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for path, rows, measured in files:
        write_text(path, _csv([key for key in (*_COMMON, "set", *measured) if key not in left_out], rows))
    return [path for path, _, _ in files]


def _csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _not_a_formula(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def _not_a_formula(value: Any) -> Any:
    """A value that no spreadsheet computes: where a text would be a formula, it begins with an apostrophe.

    Quotes would not help, since they belong to CSV and are gone before a cell is looked at. A text that has an
    apostrophe before a formula gets another one, so that different ids stay different.
    """
    if not isinstance(value, str) or not value.lstrip("'").startswith(_FORMULA) or not np.isnan(_number(value)):
        return value
    return f"'{value}"


def accuracies_of_run(run: RunData) -> LeafTable:
    """A run's accuracies as if they were read from a file."""
    return _table(run, accuracy_rows(run), ("accuracy",))


def costs_of_run(run: RunData) -> LeafTable:
    """What a run cost as if it were read from a file."""
    return _table(run, cost_rows(run), _SYSTEMS)


def _table(run: RunData, rows: Rows, measured: Sequence[str]) -> LeafTable:
    keys = ("round_number", "num_samples", *measured)
    columns = {key: np.array([row[key] for row in rows], dtype=np.float64) for key in keys}
    return LeafTable(run.name, run.path, columns, np.zeros(len(rows), dtype=np.bool_))
