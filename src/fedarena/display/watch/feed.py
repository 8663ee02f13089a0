"""Rounds of a run as the page draws them: the leading metric with its spread, and what phones did."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from fedarena.metrics import USED
from fedarena.track.rows import RowReader

MOST_ROWS: Final = 2_000  # at once; more would not be seen, so neighbours become one
_NUMBERS: Final = ("clients", "invited", "failed")


class Feed:
    """The rounds of one run after the one that the page has; each is given once."""

    def __init__(self, folder: Path, metric: str, after: int = -1):
        self.after = after
        self._metric = metric
        self._reader = RowReader(folder, ("rounds", "jobs"))
        self._begin: float | None = None
        self._previous: float | None = None

    def read(self) -> list[dict[str, Any]]:
        """Rounds that were committed since the last call."""
        tables = self._reader.read()
        if "rounds" not in tables:
            return []
        outcomes, phone_seconds = _by_round(tables.get("jobs"))
        wanted = {"round", "end_seconds", *_NUMBERS, *(f"{self._metric}{end}" for end in ("", "_p10", "_p90"))}
        rounds = tables["rounds"].select([name for name in tables["rounds"].column_names if name in wanted])
        rows = [self._row(row, outcomes, phone_seconds) for row in rounds.to_pylist()]
        rows = [row for row in rows if row["round"] > self.after]
        self.after = max(self.after, self._reader.last_round)
        return _fewer(rows)

    def _row(
        self, row: Mapping[str, Any], outcomes: Mapping[int, Mapping[str, int]], phone_seconds: Mapping[int, float]
    ) -> dict[str, Any]:
        end, number, metric = row.get("end_seconds"), row["round"], self._metric
        self._begin = end if self._begin is None else self._begin
        lasted = 0.0 if end is None or self._previous is None else end - self._previous
        self._previous = end
        return {
            "round": number,
            "hours": None if end is None or self._begin is None else (end - self._begin) / 3600,
            "score": row.get(metric),
            "low": row.get(f"{metric}_p10"),
            "high": row.get(f"{metric}_p90"),
            **{name: row.get(name) for name in _NUMBERS},
            # Phones that worked at a time, on average over the round.
            "phones": phone_seconds[number] / lasted if lasted > 0 and number in phone_seconds else None,
            "failures": outcomes.get(number, {}),
        }


def _by_round(jobs: pa.Table | None) -> tuple[dict[int, dict[str, int]], dict[int, float]]:
    """Failed jobs by reason, and the time that phones spent on jobs, of every round."""
    failures: dict[int, dict[str, int]] = defaultdict(dict)
    seconds: dict[int, float] = defaultdict(float)
    if jobs is None or not len(jobs):
        return failures, seconds
    counted = jobs.group_by(["round", "outcome"]).aggregate([("job", "count"), ("worked_seconds", "sum")])
    for row in counted.to_pylist():
        if row["outcome"] != USED:
            failures[row["round"]][str(row["outcome"])] = row["job_count"]
        seconds[row["round"]] += row["worked_seconds_sum"] or 0.0
    return failures, seconds


def _fewer(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `MOST_ROWS` rows: of neighbours the last score, and their failures together."""
    size = -(-len(rows) // MOST_ROWS)
    if size <= 1:
        return list(rows)
    together = []
    for begin in range(0, len(rows), size):
        group = rows[begin : begin + size]
        scored = next((row for row in reversed(group) if row["score"] is not None), group[-1])
        failures: dict[str, int] = defaultdict(int)
        for row in group:
            for reason, number in row["failures"].items():
                failures[reason] += number
        summed = {name: sum(row[name] or 0 for row in group) for name in _NUMBERS}
        at_work = [row["phones"] for row in group if row["phones"] is not None]
        phones = sum(at_work) / len(at_work) if at_work else None
        together.append({**scored, **summed, "failures": dict(failures), "phones": phones, "round": scored["round"]})
    return together


def as_json(value: Any) -> str:
    """JSON on one line, as an event stream wants it."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # numbers that are none, which JSON cannot say
        return as_json(json.loads(json.dumps(value), parse_constant=lambda _: None))
