"""A run on phones that takes a second, and what trackers have of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fedarena.runs.config import resolve
from fedarena.runs.merging import merge

SMALL = {
    "name": "small",
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4], "share": 0.6, "slot_seconds": 300},
    "protocol": "synchronous",
    "rounds": 12,
    "cohort": 4,
    "evaluation.every": 3,
}


def config(**settings: Any):
    return resolve(merge({}, SMALL | settings))


def content(folder: Path) -> dict[str, bytes]:
    """Everything about a run that a tracker must not change."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    tensors = (folder / "checkpoint" / state["tensors"]["file"]).read_bytes()
    summary = json.loads((folder / "summary.json").read_text())
    del summary["timing"]
    tables = {name: (folder / f"{name}.parquet").read_bytes() for name in ("rounds", "clients", "jobs")}
    return {"tensors": tensors, "summary": json.dumps(summary).encode(), **tables}


def expected(folder: Path, part: str = "test") -> dict[str, dict[int, float]]:
    """Some of what trackers must have, straight from the run's table: by name and round."""
    table = pq.read_table(folder / "rounds.parquet").to_pylist()
    names = {f"{part}/{name}": name for name in table[0] if name.startswith(("accuracy", "loss"))}
    names |= {f"systems/{name}": name for name in ("clients", "failed", "bytes_up", "end_seconds")}
    names |= {"training/loss": "train_loss"}
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in table:
        for shown, name in names.items():
            if row[name] is not None:
                values[shown][row["round"]] = float(row[name])
        values["systems/hours"][row["round"]] = (row["end_seconds"] - table[0]["end_seconds"]) / 3600
    return values
