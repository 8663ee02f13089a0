"""All runs below some folders, looked at from time to time as long as somebody looks at the page."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedarena.display.watch.watched_run import WatchedRun, key_of, read_plan
from fedarena.runs.suite import SUITE_FILE
from fedarena.storage.run_files import CONFIG_FILE

_PAUSE_SECONDS: Final = 0.4  # between looks at runs that go on
_REST_SECONDS: Final = 2.0  # between looks at those that ended, and for new ones
_PUBLISH_EVERY: Final = 100  # runs, while the list is made for the first time


@dataclass(frozen=True)
class Changes:
    """What is new since a version of the index."""

    version: int
    runs: list[dict[str, Any]]
    keys: list[str]  # of runs whose tables may have grown
    gone: list[str]
    suites: list[dict[str, Any]]
    is_complete: bool  # whether every run has been looked at


class RunIndex:
    """Keeps a line about every run; who waits for news gets it through `wait_for_changes`."""

    def __init__(self, roots: Sequence[Path]):
        self.roots = [root.absolute() for root in roots]
        self._runs: dict[str, WatchedRun] = {}
        self._gone: dict[str, int] = {}  # when a run was found to be removed
        self._version = 0
        self._is_complete = False
        self._suite_names: dict[Path, str] = {}
        self._plans: dict[str, dict[str, int]] = {}
        self._scanned = float("-inf")
        self._news = threading.Condition()
        self._watchers = 0
        self._ended = threading.Event()
        threading.Thread(target=self._keep_looking, name="index of runs", daemon=True).start()

    def __enter__(self) -> RunIndex:
        """Somebody looks at the page."""
        with self._news:
            self._watchers += 1
            self._news.notify_all()
        return self

    def __exit__(self, *error: object) -> None:
        with self._news:
            self._watchers -= 1

    def close(self) -> None:
        """Nobody will look any more."""
        self._ended.set()
        with self._news:
            self._news.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether the page is over."""
        return self._ended.is_set()

    def folder(self, key: str) -> Path | None:
        """The folder of a run."""
        with self._news:
            run = self._runs.get(key)
        return None if run is None else run.folder

    def wait_for_changes(self, since: int, seconds: float) -> Changes | None:
        """What is new since a version, at once or after some time; None if nothing is."""
        with self._news:
            self._news.wait_for(lambda: self._version > since or self.is_closed, seconds)
            if self._version <= since:
                return None
            changed = [run for run in self._runs.values() if run.version > since]
            gone = [key for key, version in self._gone.items() if version > since]
            return Changes(
                self._version,
                [run.shown for run in changed],
                [run.key for run in changed],
                gone,
                self._suites(),
                self._is_complete,
            )

    def _keep_looking(self) -> None:
        while not self._ended.is_set():
            with self._news:
                self._news.wait_for(lambda: self._watchers > 0 or self.is_closed)
            if not self._ended.is_set():
                self.look()
                self._ended.wait(_PAUSE_SECONDS)

    def look(self) -> None:
        """Looks at all runs that may have changed, and now and then for new ones."""
        now = time.monotonic()
        is_full = now - self._scanned >= _REST_SECONDS
        if is_full:
            self._scanned = now
            self._scan()
        waiting: list[WatchedRun] = []
        for run in list(self._runs.values()):
            if (is_full or run.is_open) and run.look(now):
                waiting.append(run)
                if len(waiting) == _PUBLISH_EVERY and not self._is_complete:
                    self._publish(waiting)
                    waiting = []
        first = not self._is_complete
        self._is_complete = True
        if waiting or first:
            self._publish(waiting)

    def _publish(self, runs: Sequence[WatchedRun], gone: Sequence[str] = ()) -> None:
        with self._news:
            self._version += 1
            for run in runs:
                run.version = self._version
            for key in gone:
                del self._runs[key]
                self._gone[key] = self._version
            self._news.notify_all()

    def _scan(self) -> None:
        found = {key_of(folder): (folder, suite) for root in self.roots for folder, suite in _run_folders(root)}
        suites = dict.fromkeys(suite for _, suite in found.values() if suite is not None)
        for path in suites:  # of several suites of one name all but the first are called by their paths
            name = str(path) if path.name in self._suite_names.values() else path.name
            self._suite_names.setdefault(path, name)
        self._plans = {self._suite_names[path]: read_plan(path) for path in suites}
        gone = [key for key in self._runs if key not in found]
        with self._news:
            for key, (folder, suite) in found.items():
                if key not in self._runs:
                    self._runs[key] = WatchedRun(folder, None if suite is None else self._suite_names[suite])
                    self._gone.pop(key, None)
        if gone:
            self._publish([], gone)

    def _suites(self) -> list[dict[str, Any]]:
        """How far suites are, by what they planned; where nothing was written down, by the runs that are there."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for run in self._runs.values():
            if run.suite is not None:
                groups.setdefault(run.suite, []).append(run.shown)
        return [_suite(name, shown, self._plans.get(name, {})) for name, shown in groups.items()]


def _suite(name: str, runs: Sequence[dict[str, Any]], plan: dict[str, int]) -> dict[str, Any]:
    planned = {run["name"]: run.get("rounds") or 0 for run in runs} | plan
    ended = [run for run in runs if run["status"] in ("finished", "diverged", "failed")]
    done = {run["name"]: planned[run["name"]] for run in ended}
    done |= {run["name"]: (run.get("share") or 0) * planned[run["name"]] for run in runs if "share" in run}
    total, so_far = sum(planned.values()), sum(done.values())
    running = [run for run in runs if run["status"] == "running"]
    played = sum(run.get("round") or 0 for run in runs)
    pace = sum(run.get("seconds") or 0.0 for run in runs) / played if played else None
    left = None if pace is None or not running else (total - so_far) * pace / len(running)
    return {
        "name": name,
        "runs": len(planned),
        "ended": len(ended),
        "share": so_far / total if total else 0.0,
        "seconds_left": left,
    }


def _run_folders(root: Path) -> Iterator[tuple[Path, Path | None]]:
    """Run folders, each with its suite's folder: `root` itself, those in it, and in the folders in it."""
    if (root / CONFIG_FILE).exists():
        yield root, _suite_of(root)
        return
    is_suite = (root / SUITE_FILE).exists()
    for folder in _folders(root):
        if (folder / CONFIG_FILE).exists():
            yield folder, root if is_suite else None
        else:
            for inner in _folders(folder):
                if (inner / CONFIG_FILE).exists():
                    yield inner, folder


def _suite_of(folder: Path) -> Path | None:
    return folder.parent if (folder.parent / SUITE_FILE).exists() else None


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:  # removed, or not ours to read
        return []
