"""The source of those parts of a run that are somebody's own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedarena.core.errors import DamagedFileError
from fedarena.core.options import parts_in
from fedarena.core.own_source import OwnSource, source_of
from fedarena.metrics import METRICS
from fedarena.runs.config import NOT_DECISIVE, RunConfig
from fedarena.runs.parts import LISTED_PARTS, NAMED_PARTS
from fedarena.storage.run_files import ENVIRONMENT_FILE, RunFiles

OWN_SOURCE = "own_source"  # in environment.json


def own_source(config: RunConfig) -> OwnSource:
    """The source of all parts of a configuration that are not built in."""
    return source_of(_parts(config))


def changed_source_of(config: RunConfig, folder: Path) -> list[str]:
    """What of the own source of a run's parts is not as it was when the run began."""
    try:
        recorded = json.loads(RunFiles.open(folder).read(ENVIRONMENT_FILE))
        return changed_source(own_source(config), recorded)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{folder / ENVIRONMENT_FILE} cannot be read: {error!r}") from None


def changed_source(now: OwnSource, recorded: Mapping[str, Any]) -> list[str]:
    """What of somebody's own source is not as it was when a run began, by its ``environment.json``."""
    not_taken_down: dict[str, Any] = {"files": {}, "fingerprints": {}}  # by an earlier version
    return now.changes_since(recorded.get(OWN_SOURCE, not_taken_down))


def _parts(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Every part with its name."""
    settings = config.to_dict()
    for key, registry in NAMED_PARTS.items():
        if settings[key]["name"] in registry.names() or ":" in settings[key]["name"]:  # others are chosen later
            yield from parts_in(registry, settings[key])
    for key, registry in LISTED_PARTS.items():
        for one in () if key in NOT_DECISIVE else settings[key]:
            yield from parts_in(registry, one)
    yield from ((name, METRICS.get(name)) for name in config.task.get("metrics") or () if ":" in name)
