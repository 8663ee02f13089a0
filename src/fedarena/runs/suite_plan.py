"""What a suite will do: which of its runs are finished, begun, new, or stale because own source or data changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc

from fedarena.core.errors import BadInputError, DamagedFileError, FedArenaError
from fedarena.core.files import write_json
from fedarena.core.words import counted, some
from fedarena.data.registry import is_drawn
from fedarena.runs.building import prepare
from fedarena.runs.built_here import BuiltHere
from fedarena.runs.config import RunConfig
from fedarena.runs.identity import changed_data, data_fingerprints
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation
from fedarena.runs.own_source import changed_source_of
from fedarena.runs.suite import SOLVED_PARTS, SUITE_FILE, Suite, check_same_choices, check_unchanged
from fedarena.storage.run_data import is_finished, load_run
from fedarena.storage.run_files import CONTENT_FINGERPRINT, ENVIRONMENT_FILE, RunFiles

StalePolicy = Literal["refuse", "rerun", "keep"]
STALE_FOLDER = ".stale"  # of a suite, where results go that are not those of the source as it is now


@dataclass(frozen=True)
class PlannedRun:
    """A run of a suite, and what is there of it."""

    name: str
    folder: Path
    config: RunConfig
    state: Literal["new", "begun", "finished"]
    changed: tuple[str, ...] = ()  # files, definitions or data that are not as they were when it began
    built_here: BuiltHere | None = None  # what a new run comes to on this machine

    @property
    def is_stale(self) -> bool:
        """Whether its results are not those of the source and the data as they are now."""
        return bool(self.changed)

    @property
    def is_to_run(self) -> bool:
        """Whether there is something left to do that can be done."""
        return self.state != "finished" and not self.is_stale


def plan_suite(suite: Suite, runs_folder: Path) -> list[PlannedRun]:
    """Looks at what is there of every run, in ``runs_folder/<suite>/<run>``."""
    folder = runs_folder / suite.name
    is_complete = False
    with suppress(FedArenaError):  # about which more is said below
        is_complete = all((folder / name).exists() and is_finished(folder / name) for name in suite.runs)
    data = _DataNow(draw=not is_complete)
    return [_look_at(name, folder / name, config, data) for name, config in suite.runs.items()]


def _look_at(name: str, folder: Path, config: RunConfig, data: _DataNow) -> PlannedRun:
    if not folder.exists():
        return PlannedRun(name, folder, config, "new")
    check_unchanged(folder, config)
    state: Literal["finished", "begun"] = "finished" if is_finished(folder) else "begun"
    changed = [*changed_source_of(config, folder), *data.changes_since(folder, config)]
    if not changed and (complete := data.complete(config)) is not None:  # other data may come to other choices
        check_same_choices(folder, complete)
    return PlannedRun(name, folder, config, state, tuple(changed))


class _DataNow:
    """The data that settings come to now; what runs have in common is looked at once."""

    def __init__(self, draw: bool) -> None:
        # Whether to build what follows from options alone; where nothing is to be run, nobody needs it.
        self._draw = draw
        self._known: dict[str, dict[str, str | None]] = {}
        self._complete: dict[str, RunConfig | None] = {}

    def changes_since(self, folder: Path, config: RunConfig) -> list[str]:
        """What of a run's data has changed since it began; nothing where the data is no longer there."""
        now = self._fingerprints(config)
        try:
            return changed_data(now, config, json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE)))
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedFileError(f"{folder / ENVIRONMENT_FILE} cannot be read: {error!r}") from None

    def complete(self, config: RunConfig) -> RunConfig | None:
        """A configuration with what its data and the rest of it come to; None where the data is not there to tell."""
        is_solved = any(None in getattr(config, part).values() for part in SOLVED_PARTS)
        alike = {"name": None, "label": None} if is_solved else {"name": None, "label": None, "seed": 0}
        key = config.model_copy(update=alike).to_yaml()
        if key not in self._complete:
            self._complete[key] = None
            with suppress(FedArenaError):
                if self._draw or not is_drawn(config.federation):
                    found = prepare(config, Observer()).config if is_solved else open_federation(config, Observer())[1]
                    self._complete[key] = found
        return self._complete[key]

    def _fingerprints(self, config: RunConfig) -> dict[str, str | None]:
        decisive = ("federation", "fleet", "weights", "model", "adaptation", "task")
        key = json.dumps({name: config.to_dict().get(name) for name in decisive}, sort_keys=True, default=str)
        if key not in self._known:
            found: dict[str, str | None] = {}
            with suppress(FedArenaError):
                if self._draw or not is_drawn(config.federation):
                    found |= self._of_federation(config)
                if found and (config.fleet["name"] != "ideal" or config.weights is not None):
                    others = data_fingerprints(prepare(config, Observer()))  # settings may not fit other data
                    found |= {f"{part}_fingerprint": others[part] for part in ("fleet", "weights")}
            self._known[key] = found
        return self._known[key]

    @staticmethod
    def _of_federation(config: RunConfig) -> dict[str, str | None]:
        federation, _ = open_federation(config, Observer())
        return {
            "federation_fingerprint": federation.fingerprint,
            CONTENT_FINGERPRINT: federation.content_fingerprint,
        }


def begin_suite(
    planned: Sequence[PlannedRun],
    observer: Observer,
    stale: StalePolicy = "refuse",
    say: Callable[[str], None] = lambda sentence: None,
) -> list[PlannedRun]:
    """Checks everything before the first run starts, and does with stale runs what the user wants.

    New runs come back with complete configurations. Stale ones are refused, kept (`say` is told), or run again; then
    the old results are moved aside.
    """
    of_old = [run for run in planned if run.is_stale]
    if of_old and stale == "refuse":
        raise BadInputError(stale_sentence(planned))
    ready = []
    for run in planned:
        if run.is_stale and stale == "rerun":
            run = replace(run, state="new", changed=())
        if run.state == "new":  # whatever does not fit is refused before the first run starts
            experiment = prepare(run.config, observer)
            run = replace(run, config=experiment.config, built_here=BuiltHere.of(experiment))
        ready.append(run)
    for run in of_old if stale == "rerun" else ():
        aside = _put_aside(run.folder)
        say(f"{run.name} is stale: {some(run.changed)} changed since; it is run again. What it was: {aside}")
    for run in of_old if stale == "keep" else ():
        say(f"{run.name} is stale: {some(run.changed)} changed since; it is kept")
    folder = ready[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SUITE_FILE, {"name": folder.name, "runs": {run.name: run.config.rounds for run in ready}})
    return ready


def stale_sentence(planned: Sequence[PlannedRun]) -> str:
    """Which runs are stale, why, and what can be done about it."""
    stale = [run for run in planned if run.is_stale]
    changed = list(dict.fromkeys(name for run in stale for name in run.changed))
    return (
        f"{len(stale)} of {counted(len(planned), 'run')} {'is' if len(stale) == 1 else 'are'} stale "
        f"({some([run.name for run in stale])}): {some(changed)} changed since. --rerun-stale runs them again "
        'and moves the old results aside, --keep-stale keeps them (in Python: stale="rerun" or "keep")'
    )


def _put_aside(folder: Path) -> Path:
    """Moves a run to where a suite keeps what is stale, under a name that is free."""
    place = folder.parent / STALE_FOLDER
    place.mkdir(exist_ok=True)
    number = 1
    while (place / f"{folder.name}-{number}").exists():
        number += 1
    return folder.rename(place / f"{folder.name}-{number}")


def expected_seconds(planned: Sequence[PlannedRun], to_do: Sequence[PlannedRun], jobs: int = 1) -> float | None:
    """How long the runs that are left will take, by the rounds that are done; None if there is none."""
    seconds, rounds = 0.0, 0
    rounds_left = sum(run.config.rounds for run in to_do)
    for run in planned:
        with suppress(FedArenaError):
            data = load_run(run.folder)
            rounds += data.summary["rounds_done"]
            rounds_left -= data.summary["rounds_done"] if run in to_do and not run.is_stale else 0
            seconds += sum(pc.sum(data.timings[name]).as_py() or 0.0 for name in ("train_seconds", "evaluate_seconds"))
    return rounds_left * seconds / rounds / min(jobs, len(to_do)) if rounds else None
