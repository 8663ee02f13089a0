"""What courses are made of beside their settings and samples: somebody's own source, weights and a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.hpo.problems.declared import settings_digest
from fedarena.hpo.space import Space
from fedarena.runs.building import prepare
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.identity import data_fingerprints
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.own_source import own_source

_DECIDE_DATA = ("federation", "fleet", "weights", "model", "adaptation", "task")


class Silent(Observer):
    """Building is only to see what is there; what there is to warn of is said when a course begins."""

    def warned(self, message: str) -> None:
        """Nothing."""


class MadeOf:
    """Fingerprints of all that, by names that people know; weights and fleets are looked at once."""

    def __init__(self) -> None:
        self._data: dict[str, dict[str, str]] = {}

    def course(self, config: RunConfig) -> dict[str, str]:
        """Of one configuration; nothing where settings and samples alone decide what is trained."""
        return source_of(config) | self._data_of(config)

    def courses(self, settings: Mapping[str, Any], space: Space) -> dict[str, str]:
        """Of all that a space allows."""
        found: dict[str, str] = {}
        for config in with_every_choice(settings, space):
            with suppress(BadInputError):  # not all choices may fit each other
                found |= self.course(config)
        return found

    def _data_of(self, config: RunConfig) -> dict[str, str]:
        if config.fleet["name"] == "ideal" and config.weights is None:
            return {}
        key = settings_digest([getattr(config, name) for name in _DECIDE_DATA])
        if key not in self._data:
            found = data_fingerprints(prepare(config, Silent()))
            names = {"fleet": f"the fleet {config.fleet['name']!r}", "weights": f"what is in {config.weights}"}
            self._data[key] = {name: known for part, name in names.items() if (known := found[part]) is not None}
        return self._data[key]


def source_of(config: RunConfig) -> dict[str, str]:
    """Fingerprints of somebody's own source, by module."""
    return {f"the source of {name}": known for name, known in own_source(config).fingerprints.items()}


def with_every_choice(settings: Mapping[str, Any], space: Space) -> Iterator[RunConfig]:
    """Configurations that have every choice of a space among them, as far as they can be."""
    middle = space.at([0.5] * len(space))
    varied = [{one.name: value} for one in space if one.kind == "choice" for value in one.choices]
    for chosen in ({}, *varied):
        with suppress(BadInputError):
            yield resolve(merge(settings, middle | chosen))


def changed_since(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What is no longer as it was; a module that is new, or gone, is named by the one that imports it."""
    return [name for name, known in now.items() if before.get(name, known) != known]
