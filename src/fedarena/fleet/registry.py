"""The catalogue of fleets.

A source is a function ``source(phones, *, options...) -> Fleet``. `phones` is how many clients want one: a source that
makes phones up makes that many, a source that reads a file gives what it holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.core.registry import Registry
from fedarena.fleet.fleet import Fleet

Source = Callable[..., Fleet]

FLEETS: Registry[Source] = Registry("fleet", takes=("phones",), folders="file")


def load_fleet(settings: Mapping[str, Any] | str, phones: int) -> Fleet:
    """The fleet that ``settings["name"]`` makes for that many clients; the other entries are its options."""
    resolved = resolve_part(FLEETS, settings, "fleet")
    name = resolved.pop("name")
    source = FLEETS.get(name)
    fleet = source(phones, **as_declared(source, resolved))
    if not isinstance(fleet, Fleet):
        raise BadInputError(f"The fleet {name!r} must return a Fleet, not {fleet!r:.60}")
    return fleet


def load_fleet_with_notes(settings: Mapping[str, Any] | str, phones: int) -> tuple[Fleet, list[str]]:
    """Like `load_fleet`, and what its source has to say, which would otherwise be Python's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fleet = load_fleet(settings, phones)
    return fleet, [str(warning.message) for warning in caught if warning.category is UserWarning]
