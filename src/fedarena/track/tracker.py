"""What a tracker is: it is handed the rounds of a run, each once, and shows them in its own way."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.storage.run_data import flatten_settings


@dataclass(frozen=True)
class Step:
    """A round as trackers show it: numbers by names such as ``test/accuracy`` and ``systems/hours``."""

    round: int
    hours: float | None  # of virtual time since the start of the run; None where none passes
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is opened for."""

    folder: Path
    id: str  # which no other run has; empty for one of an early version
    name: str
    group: str  # the folder that it lies in: its suite, or all runs
    config: Mapping[str, Any]
    metric: str  # the name of the step's value that the run is judged by
    kept: Mapping[str, Any]  # what `Tracker.kept` said the last time; empty for a run that it has not shown before

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration with dotted keys."""
        return flatten_settings(dict(self.config))

    @property
    def tags(self) -> dict[str, str]:
        """What runs are looked for by."""
        config = self.config
        parts = ("federation", "model", "algorithm", "fleet", "protocol")
        named = {part: str(config[part]["name"]) for part in parts if isinstance(config.get(part), Mapping)}
        return {**named, "seed": str(config.get("seed")), "suite": self.group}


@dataclass(frozen=True)
class Ending:
    """How a run ended, at least for now."""

    status: str  # finished, interrupted, diverged, failed
    message: str | None
    summary: Mapping[str, float]  # the last evaluation, by names like those of steps
    report: Path | None


class Tracker(ABC):
    """Shows a run somewhere else. One of your own is a subclass, and its keyword-only parameters are its options.

    All calls come from one thread that is not the run's, in this order: `begin`, `log` any number of times, `finish`.
    Whatever is raised ends the tracker with one warning, never the run.
    """

    package: ClassVar[str | None] = None  # that it needs, which is also the name of FedArena's extra

    def check(self) -> None:
        """Refuses, before a run begins, what cannot work; must be quick."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            raise BadInputError(
                f"The tracker {self.package} needs the package {self.package}, which is not installed: "
                f"pip install 'fedarena[{self.package}]'"
            )

    @abstractmethod
    def begin(self, run: TrackedRun) -> int | None:
        """Opens what shows the run, or goes on with what `run.kept` tells of.

        Returns the last round that is there already, -1 if there is none, or None if the tracker cannot tell; then
        what it was handed the last time counts.
        """

    @abstractmethod
    def log(self, steps: Sequence[Step]) -> None:
        """Shows further rounds; they are on disk or sent when it returns."""

    def kept(self) -> dict[str, Any]:
        """What it takes to go on with this run another time, as plain values."""
        return {}

    def finish(self, ending: Ending) -> None:  # noqa: B027  (there may be nothing to do)
        """The run ended, or pauses."""


TRACKERS: Registry[type[Tracker]] = Registry("tracker", base=Tracker, takes=())
