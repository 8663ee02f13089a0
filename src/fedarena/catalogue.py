"""Federations and fleets by name, for tab completion: ``fedarena.federations.digits()``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.core.words import counted
from fedarena.data import FEDERATIONS, Federation
from fedarena.data import load_federation as _load_federation
from fedarena.data.registry import Progress
from fedarena.fleet import FLEETS, Fleet
from fedarena.fleet import load_fleet as _load_fleet
from fedarena.runs.config import read_settings
from fedarena.runs.merging import merge

T = TypeVar("T")
Settings = Mapping[str, Any] | Path | str
DEFAULT_PHONES = 1_000


def load_federation(
    settings: Settings, options: Mapping[str, Any] | None = None, /, *, progress: Progress | None = None, **more: Any
) -> Federation:
    """A federation by its name, as a mapping with a name, or by the folder of a store; options as in a run's settings.

    It may also be a YAML file with such a mapping, or with the settings of a run. A federation that was never used with
    these options is built first; `progress` is called with the fraction that is done and a few words.

    >>> load_federation("digits", partition={"name": "iid", "clients": 10}).num_clients
    10
    """
    part = _part("federation", FEDERATIONS, settings, options, more)
    return _load_federation(part.pop("name"), part, progress)


def load_fleet(
    settings: Settings, options: Mapping[str, Any] | None = None, /, *, phones: int = DEFAULT_PHONES, **more: Any
) -> Fleet:
    """A fleet by its name, as a mapping with a name, or by the folder of a saved one; options as in a run's settings.

    It may also be a YAML file with such a mapping, or with the settings of a run. `phones` is for how many clients; a
    fleet that is read from a file has as many as are there.

    >>> len(load_fleet("uniform", phones=3, seconds_per_sample=0.1).devices)
    3
    """
    return _load_fleet(_part("fleet", FLEETS, settings, options, more), phones)


def _part(
    key: str,
    registry: Registry[Any],
    settings: Settings,
    options: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Settings of a part with its name, from whatever it was given as."""
    if isinstance(settings, Mapping):
        part: Any = dict(settings)
    elif Path(settings).suffix in (".yaml", ".yml"):
        part = read_settings(Path(settings))
    else:
        part = registry.stands_for(str(settings))
    if isinstance(part.get(key), str | Mapping):  # the settings of a run
        part = part[key]
    given = {f"{key}.{option}": value for option, value in {**(options or {}), **more}.items()}
    chosen = merge(merge({}, {key: part}), given)[key]
    if "name" not in chosen:
        raise BadInputError(f"Which {key}? Give its name, as in {key}={{'name': {registry.names()[0]!r}, …}}")
    return dict(chosen)


class Catalogue(Mapping[str, Callable[..., T]], Generic[T]):
    """What there is of one kind: ``list`` gives the names, an attribute or ``[name]`` a function that loads it."""

    def __init__(self, registry: Registry[Any], load: Callable[..., T]):
        self._registry, self._load = registry, load

    def __getitem__(self, name: str) -> Callable[..., T]:
        part = self._registry.get(name)

        def loaded(**options: Any) -> T:
            return self._load(name, **options)

        loaded.__name__ = loaded.__qualname__ = name
        loaded.__doc__ = inspect.getdoc(part)
        _, *declared = inspect.signature(part).parameters.values()
        own = [one for one in inspect.signature(self._load).parameters.values() if one.kind is one.KEYWORD_ONLY]
        names = {one.name for one in declared}
        loaded.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*(one for one in own if one.name not in names), *declared]
        )
        return loaded

    def __getattr__(self, name: str) -> Callable[..., T]:
        if name.startswith("_") or name not in self._registry.names():
            raise AttributeError(f"There is no {self._registry.kind} called {name!r}")
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._registry.names()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.names())

    def __len__(self) -> int:
        return len(self._registry.names())

    def __repr__(self) -> str:
        return f"<{counted(len(self), self._registry.kind)}: {', '.join(self)}>"


federations: Catalogue[Federation] = Catalogue(FEDERATIONS, load_federation)
fleets: Catalogue[Fleet] = Catalogue(FLEETS, load_fleet)
