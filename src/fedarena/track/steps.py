"""Rows of a run's tables as steps: numbers by names that sort them into groups.

``test/`` (or another part that is evaluated) has the metrics of the broadcast model with their percentiles over
clients, ``personal/`` those of clients' own models, ``training_set/`` how the model fits the training samples,
``training/`` what clients saw while they trained, ``systems/`` counts, bytes and virtual time, ``timings/`` real time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from fedarena.metrics import PERSONAL, TRAINING_SET
from fedarena.storage.tables import ROUNDS, TIMINGS
from fedarena.track.tracker import Step

ROUNDS_AND_TIMINGS = ("rounds", "timings")
_SYSTEMS = frozenset(column.name for column in ROUNDS)
_TIMINGS = frozenset(column.name for column in TIMINGS)


def name_of(column: str, part: str) -> str:
    """What a column of the table of rounds is called in trackers, if models are evaluated on that part."""
    if column == "train_loss":
        return "training/loss"
    if column in _SYSTEMS:
        return f"systems/{column}"
    for prefix in (PERSONAL, TRAINING_SET):
        if column.startswith(prefix):
            return f"{prefix.rstrip('_')}/{column.removeprefix(prefix)}"
    return f"{part}/{column}"


class StepMaker:
    """Makes steps of rows; it must see the rows of round 0, at which virtual time begins."""

    def __init__(self, part: str):
        self._part = part
        self._begin_seconds: float | None = None

    def __call__(self, tables: Mapping[str, pa.Table]) -> list[Step]:
        """The steps of new rows, in order."""
        rounds: list[dict[str, Any]] = tables["rounds"].to_pylist() if "rounds" in tables else []
        timings = {row["round"]: row for row in tables["timings"].to_pylist()} if "timings" in tables else {}
        return [self._step(row, timings.get(row["round"], {})) for row in rounds]

    def _step(self, row: Mapping[str, Any], timing: Mapping[str, Any]) -> Step:
        if self._begin_seconds is None:
            self._begin_seconds = row.get("end_seconds")
        values = {name_of(key, self._part): value for key, value in row.items() if key != "round"}
        values |= {f"timings/{key}": timing[key] for key in timing if key in _TIMINGS and key != "round"}
        hours = None
        if row.get("end_seconds") is not None and self._begin_seconds is not None:
            hours = values["systems/hours"] = (row["end_seconds"] - self._begin_seconds) / 3600
        return Step(row["round"], hours, numbers(values))


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """What of `values` is a number; truth is 1."""
    return {
        name: float(value) for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def has_clock(steps: Sequence[Step]) -> bool:
    """Whether virtual time has passed by the last of some steps."""
    return bool(steps) and (steps[-1].hours or 0) > 0
