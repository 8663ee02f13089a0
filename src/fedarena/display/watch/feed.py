"""Rounds of a run as the page draws them: the leading metric with its spread, and what phones did."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.yaml_files import parse_yaml
from fedarena.metrics import USED
from fedarena.runs.round_text import is_simulated
from fedarena.storage.run_files import CONFIG_FILE, RunFiles
from fedarena.track.rows import RowReader

MOST_ROWS: Final = 2_000  # at once; more would not be seen, so neighbours become one
_PIECES: Final = 120  # of time, in which phones at work are told
_NUMBERS: Final = ("clients", "invited", "failed")
_TOLD: Final = ("epsilon", "attack_success")


class Feed:
    """The rounds of one run after the one that the page has; each is given once."""

    def __init__(self, folder: Path, metric: str, known: tuple[str, int] = ("", -1)):
        """The page has the rounds of a run up to one; it may be another run that was in the same folder before."""
        files = RunFiles.open(folder)
        self.run = files.run_id or ""
        self.after = known[1] if known[0] == self.run else -1
        self._metric = metric
        self._reader = RowReader(folder, ("rounds", "jobs"))
        config = parse_yaml(files.read(CONFIG_FILE).decode(), CONFIG_FILE)
        self.is_simulated = isinstance(config, dict) and is_simulated(config)  # what the run says about its privacy
        self._begin: float | None = None
        self._phones = PhonesAtWork()

    def read(self) -> list[dict[str, Any]]:
        """Rounds that were committed since the last call."""
        tables = self._reader.read()
        if "rounds" not in tables:
            return []
        failures: dict[int, dict[str, int]] = defaultdict(dict)
        if "jobs" in tables:
            failures = _failures(tables["jobs"])
            self._phones.add(tables["jobs"])
        wanted = {"round", "end_seconds", *_NUMBERS, *_TOLD, *(f"{self._metric}{end}" for end in ("", "_p10", "_p90"))}
        rounds = tables["rounds"].select([name for name in tables["rounds"].column_names if name in wanted])
        rows = [self._row(row, failures) for row in rounds.to_pylist()]
        rows = [row for row in rows if row["round"] > self.after]
        self.after = max(self.after, self._reader.last_round)
        return _fewer(rows)

    def phones_at_work(self) -> dict[str, list[float]]:
        """How many phones worked on jobs, over virtual hours, in the whole run as far as it has been read."""
        return self._phones.over_hours(self._begin or 0.0)

    def _row(self, row: Mapping[str, Any], failures: Mapping[int, Mapping[str, int]]) -> dict[str, Any]:
        end, metric = row.get("end_seconds"), self._metric
        self._begin = end if self._begin is None else self._begin
        return {
            "round": row["round"],
            "hours": None if end is None or self._begin is None else (end - self._begin) / 3600,
            "score": row.get(metric),
            "low": row.get(f"{metric}_p10"),
            "high": row.get(f"{metric}_p90"),
            **{name: row.get(name) for name in (*_NUMBERS, *_TOLD)},
            "failures": failures.get(row["round"], {}),
        }


class PhonesAtWork:
    """How many jobs went on at a time, from their beginnings and ends; those that have not ended are not known."""

    def __init__(self) -> None:
        self._begins, self._ends = np.empty(0), np.empty(0)

    def add(self, jobs: pa.Table) -> None:
        """Further jobs that ended."""
        jobs = jobs.filter(pc.and_(pc.is_valid(jobs["begin_seconds"]), pc.is_valid(jobs["end_seconds"])))
        begins, ends = (
            np.asarray(jobs[name].to_numpy(), dtype=np.float64) for name in ("begin_seconds", "end_seconds")
        )
        self._begins = np.sort(np.concatenate([self._begins, begins]))
        self._ends = np.sort(np.concatenate([self._ends, ends]))

    def over_hours(self, start_seconds: float) -> dict[str, list[float]]:
        """Means over equal pieces of the time that has passed, and the middles of these in hours since the start."""
        last = float(self._ends[-1]) if self._ends.size else start_seconds
        if last <= start_seconds:
            return {"hours": [], "phones": []}
        edges = np.linspace(start_seconds, last, _PIECES + 1)
        worked = _seconds_since(self._begins, edges) - _seconds_since(self._ends, edges)  # by all phones, until then
        middles = (edges[:-1] + edges[1:]) / 2
        phones = np.diff(worked) / np.diff(edges)
        return {"hours": ((middles - start_seconds) / 3600).tolist(), "phones": phones.tolist()}


def _seconds_since(moments: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of every time, the sum of the seconds since those of the (sorted) moments that have passed by then."""
    passed = np.searchsorted(moments, times)
    origin = moments[0]
    sums = np.concatenate([[0.0], np.cumsum(moments - origin)])
    return np.asarray(passed * (times - origin) - sums[passed])


def _failures(jobs: pa.Table) -> dict[int, dict[str, int]]:
    """Failed jobs of every round by reason."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for row in jobs.group_by(["round", "outcome"]).aggregate([("job", "count")]).to_pylist():
        if row["outcome"] != USED:
            found[row["round"]][str(row["outcome"])] = row["job_count"]
    return found


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
        together.append({**scored, **summed, "failures": dict(failures)})
    return together


def as_json(value: Any) -> str:
    """JSON on one line, as an event stream wants it."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # numbers that are none, which JSON cannot say
        return as_json(json.loads(json.dumps(value), parse_constant=lambda _: None))
