"""One run in the list of all: its status, how far it is, and how long it may take, read with as little as possible.

Of a run that ended, its manifest and summary are read, once. Of one that goes on, what is new in two tables.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any, Final

from fedarena.core.errors import BadInputError, DamagedFileError, FedArenaError
from fedarena.core.yaml_files import parse_yaml
from fedarena.display.reporting import REPORT_FILE
from fedarena.metrics.info import FORMER_METRICS
from fedarena.runs.suite import SUITE_FILE
from fedarena.storage.recorder import is_being_written
from fedarena.storage.run_files import CONFIG_FILE, ENVIRONMENT_FILE, MANIFEST_FILE, STATE_FILE, RunFiles
from fedarena.track.rows import RowReader, read_summary

SILENT_SECONDS: Final = 10.0  # without a commit, after which somebody asks whether the run is still at work
_RECENT_ROUNDS: Final = 20  # by which the time left is told

Stamp = tuple[tuple[int, int], ...]


def key_of(folder: Path) -> str:
    """A short name for a run folder that says nothing about the disk and stays the same."""
    return hashlib.blake2b(bytes(folder.absolute()), digest_size=6).hexdigest()


class WatchedRun:
    """A run folder; `shown` is what the page knows about it, `version` when that changed last."""

    def __init__(self, folder: Path, suite: str | None):
        self.folder, self.suite, self.key = folder, suite, key_of(folder)
        self.shown: dict[str, Any] = {"key": self.key, "name": folder.name, "suite": suite, "status": "unknown"}
        self.version = 0
        self.is_open = True  # may still change by the second
        self._stamp: Stamp = ()
        self._looked = self._moved = 0.0
        self._progress: _Progress | None = None

    def look(self, now: float) -> bool:
        """Whether something is new at this time (in seconds, of any clock)."""
        stamp = _stamp(self.folder)
        if stamp == self._stamp and not (self.is_open and now - self._looked >= SILENT_SECONDS):
            return False
        if stamp != self._stamp:
            # At first sight nobody knows how long ago something moved.
            self._moved = now if self._stamp else now - SILENT_SECONDS
        before, self._stamp, self._looked = (self._stamp, self.shown), stamp, now
        common: dict[str, Any] = {"key": self.key, "name": self.folder.name, "suite": self.suite}
        common["changed"] = max(changed for changed, _ in stamp) / 1e9
        common["report"] = (self.folder / REPORT_FILE).exists()
        try:
            self.shown = common | self._describe(now)
        except FedArenaError as error:
            self.is_open, self._progress = False, None
            damaged = isinstance(error, DamagedFileError)
            self.shown = common | {"status": "damaged" if damaged else "unreadable", "message": str(error)}
        return (self._stamp, self.shown) != before

    def _describe(self, now: float) -> dict[str, Any]:
        files = RunFiles.open(self.folder)
        summary = read_summary(files)
        self.is_open = not summary
        origin = {"run": files.run_id or ""}  # another run may begin in the same folder
        if self.is_open:
            if self._progress is None or self._progress.run != origin["run"]:
                self._progress = _Progress(files)
            moves = now - self._moved < SILENT_SECONDS or is_being_written(self.folder)
            return origin | {"status": "running" if moves else "interrupted", **self._progress.read()}
        self._progress = None
        metric = _leading(summary)
        return origin | {
            "status": str(summary.get("status")),
            "message": summary.get("message"),
            "round": summary.get("rounds_done"),
            "rounds": summary.get("rounds"),
            "metric": metric,
            "score": (summary.get("final") or {}).get(metric["name"]),
            "hours": summary.get("virtual_hours"),
            "seconds": (summary.get("timing") or {}).get("wall_seconds"),
        }


class _Progress:
    """How far a run is that goes on."""

    def __init__(self, files: RunFiles):
        config = parse_yaml(files.read(CONFIG_FILE).decode(), CONFIG_FILE)
        try:
            self._metric = _leading(json.loads(files.read(ENVIRONMENT_FILE)))
            self._rounds = int(config["rounds"])
            limit = (config.get("clock") or {}).get("hours")
            self._limit_hours = None if limit is None else float(limit)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedFileError(
                f"{files.folder} cannot be understood: it lacks rounds, or what it measures"
            ) from None
        self.run = files.run_id or ""
        self._reader = RowReader(files.folder, ("rounds", "timings"))
        self._seconds: deque[float] = deque(maxlen=_RECENT_ROUNDS)
        self._total_seconds = 0.0
        self._begin: float | None = None
        self._end = 0.0
        self._score: float | None = None

    def read(self) -> dict[str, Any]:
        """What is known by now."""
        tables = self._reader.read()
        for row in tables["timings"].to_pylist() if "timings" in tables else ():
            seconds = (row["train_seconds"] or 0.0) + (row["evaluate_seconds"] or 0.0)
            self._total_seconds += seconds
            if row["round"] > 0:
                self._seconds.append(seconds)
        if "rounds" in tables and len(tables["rounds"]):
            self._take(tables["rounds"])
        done, hours = self._reader.last_round, self._hours()
        return {
            "round": max(done, 0) if done >= 0 else None,
            "rounds": self._rounds,
            "metric": self._metric,
            "score": self._score,
            "hours": hours or None,
            "share": min(1.0, max(done / self._rounds, hours / self._limit_hours if self._limit_hours else 0.0, 0.0)),
            "seconds": self._total_seconds,
            "seconds_left": self._seconds_left(done, hours),
        }

    def _take(self, rounds: Any) -> None:
        ends = [end for end in rounds["end_seconds"].to_pylist() if end is not None]
        if ends:
            self._begin = ends[0] if self._begin is None else self._begin
            self._end = ends[-1]
        if self._metric["name"] in rounds.column_names:
            scores = [score for score in rounds[self._metric["name"]].to_pylist() if score is not None]
            self._score = scores[-1] if scores else self._score

    def _hours(self) -> float:
        return 0.0 if self._begin is None else (self._end - self._begin) / 3600

    def _seconds_left(self, done: int, hours: float) -> float | None:
        if not self._seconds:
            return None
        left = float(self._rounds - done)
        if self._limit_hours is not None and hours > 0:  # a run may end by the clock before its last round
            left = min(left, max(0.0, self._limit_hours - hours) / (hours / done))
        return left * sum(self._seconds) / len(self._seconds)


def _leading(about: dict[str, Any]) -> dict[str, Any]:
    """The metric that a run is judged by, as its summary or its environment tells; that of former days otherwise."""
    name = about.get("primary_metric")
    for info in about.get("metrics") or ():
        if isinstance(info, dict) and info.get("name") == name:
            return {key: info.get(key) for key in ("name", "label", "decimals", "higher_is_better")}
    former = next((metric for metric in FORMER_METRICS if metric.name == name), FORMER_METRICS[-1])
    return {key: value for key, value in former.to_json().items() if key not in ("low", "high")}


def _stamp(folder: Path) -> Stamp:
    """What changes when a run commits, ends, gets a report or goes on."""
    found = []
    for name in (MANIFEST_FILE, STATE_FILE, REPORT_FILE):
        try:
            status = os.stat(folder / name)
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def read_plan(folder: Path) -> dict[str, int]:
    """Which runs a suite will have, and of how many rounds, as it wrote down when it began; none if it did not."""
    try:
        plan = json.loads((folder / SUITE_FILE).read_bytes())["runs"]
        return {str(name): int(rounds) for name, rounds in plan.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInputError):
        return {}
