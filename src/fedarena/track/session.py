"""One tracker and one run: where it stands, what is new, and how it goes on another time.

``tracking.json`` in the run folder keeps, of every tracker that has shown the run, its settings, what it needs to go on
with the same run of its own, and the last round that it was handed.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.core.files import write_json
from fedarena.core.options import resolve_part
from fedarena.core.yaml_files import parse_yaml
from fedarena.storage.run_files import CONFIG_FILE, ENVIRONMENT_FILE, RunFiles
from fedarena.track.rows import RowReader, read_summary
from fedarena.track.steps import ROUNDS_AND_TIMINGS, StepMaker, name_of, numbers
from fedarena.track.tracker import TRACKERS, Ending, TrackedRun, Tracker

TRACKING_FILE = "tracking.json"
_LOCK_FILE = "tracking.lock"
# Trackers of a run are in threads of one process; only one of them at a time changes the file.
_changing = threading.Lock()


def make_tracker(settings: Mapping[str, Any]) -> Tracker:
    """The tracker that settings name, with its options."""
    options = dict(settings)
    return TRACKERS.get(options.pop("name"))(**options)


class Session:
    """Hands the rounds of a run to a tracker, each once, however often either is stopped."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.folder, self.name = folder, str(settings["name"])
        self.handed = -1  # the last round that the tracker has
        self._settings = dict(settings)
        self._tracker = make_tracker(settings)
        self._reader = RowReader(folder, ROUNDS_AND_TIMINGS)
        # A run may be shown by two trackers of one kind that have other options.
        which = zlib.crc32(json.dumps(self._settings, sort_keys=True, default=str).encode())
        lock = f"{self.name.rpartition(':')[2]}-{which:08x}.{_LOCK_FILE}"
        self._lock = filelock.FileLock(folder / "checkpoint" / lock, timeout=0, thread_local=False)

    def begin(self) -> None:
        """Opens the tracker's own run, or goes on with it."""
        (self.folder / "checkpoint").mkdir(exist_ok=True)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise BadInputError(f"Another process is showing {self.folder} in {self.name}") from None
        files = RunFiles.open(self.folder)
        config = parse_yaml(files.read(CONFIG_FILE).decode(), CONFIG_FILE)
        self._part = str(config.get("evaluation", {}).get("part", "test"))
        self._steps = StepMaker(self._part)
        known = json.loads(files.read(ENVIRONMENT_FILE)) | read_summary(files)
        before = _find(_read(self.folder), self._settings) or {}
        run = TrackedRun(
            folder=self.folder,
            id=files.run_id or "",
            name=str(config.get("name", self.folder.name)),
            group=self.folder.absolute().parent.name,
            config=config,
            metric=name_of(str(known.get("primary_metric", "loss")), self._part),
            kept=before.get("kept", {}),
        )
        there = self._tracker.begin(run)
        self.handed = int(before.get("round", -1)) if there is None else there
        self._remember()

    def send(self) -> int:
        """Hands over what was committed since the last time; returns how many rounds that were."""
        steps = [step for step in self._steps(self._reader.read()) if step.round > self.handed]
        if steps:
            self._tracker.log(steps)
            self.handed = steps[-1].round
            self._remember()
        return len(steps)

    def finish(self, report: Path | None) -> None:
        """Tells the tracker how the run ended."""
        summary = read_summary(RunFiles.open(self.folder))
        final = {name_of(key, self._part): value for key, value in (summary.get("final") or {}).items()}
        status = str(summary.get("status", "interrupted"))
        self._tracker.finish(Ending(status, summary.get("message"), numbers(final), report))
        self._remember()

    def release(self) -> None:
        """Lets other processes go on with the tracker."""
        self._lock.release()

    def _remember(self) -> None:
        entry = {"tracker": self._settings, "kept": self._tracker.kept(), "round": self.handed}
        with _changing:
            others = _read(self.folder)
            found = _find(others, self._settings)
            trackers = [entry if one is found else one for one in others] + ([entry] if found is None else [])
            write_json(self.folder / TRACKING_FILE, {"format": 1, "trackers": trackers})


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / TRACKING_FILE
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_bytes())
        trackers = [dict(one) for one in content["trackers"]]
        if all(isinstance(one["tracker"]["name"], str) and isinstance(one["round"], int) for one in trackers):
            return trackers
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedFileError(f"{path} is damaged; without it, the run would be shown from its beginning again")


def _find(trackers: list[dict[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is known about the tracker with these settings; options that are newer than the file have their defaults."""
    for one in trackers:
        try:
            if one["tracker"] == settings or resolve_part(TRACKERS, one["tracker"], "track") == settings:
                return one
        except BadInputError:  # somebody's own that is not here, or has other options now
            continue
    return None
