"""The source of those parts of a run that are somebody's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedarena.core.options import parts_in
from fedarena.core.own_source import OwnSource, source_of
from fedarena.metrics import METRICS
from fedarena.runs.config import LISTED_PARTS, NAMED_PARTS, NOT_DECISIVE, RunConfig


def own_source(config: RunConfig) -> OwnSource:
    """The source of all parts of a configuration that are not built in."""
    return source_of(_parts(config))


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
