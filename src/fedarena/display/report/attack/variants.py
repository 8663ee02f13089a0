"""Names for settings that differ: those of a part, and of whatever else sets them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedarena.display.report.compare_settings import differing_keys
from fedarena.storage.run_data import flatten_settings


def described(all_settings: Sequence[Mapping[str, Any]], part: str) -> list[str]:
    """What to call settings beside each other: the name of their `part`, and what differs in the rest.

    Options of the part count among settings that have the same, since others have other options.
    """
    plain = [_with_named_transforms(settings) for settings in all_settings]
    outside = differing_keys([{key: value for key, value in one.items() if key != part} for one in plain])
    found = []
    for settings in plain:
        name = str((settings.get(part) or {}).get("name") or "").rpartition(":")[2]
        same = [other for other in plain if (other.get(part) or {}).get("name") == settings.get(part, {}).get("name")]
        inside = differing_keys([{part: other.get(part)} for other in same])
        flat = flatten_settings(settings)
        words = [_difference(key, flat[key]) for key in (*inside, *outside) if flat.get(key) not in (None, "")]
        found.append(" ".join([name, *words]).strip())
    return found


def _with_named_transforms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a mapping in place of the list of transforms, so that single options of theirs can differ."""
    transforms = settings.get("transforms") or []
    named = {str(one["name"]).rpartition(":")[2]: {k: v for k, v in one.items() if k != "name"} for one in transforms}
    return {**settings, "transforms": {"name": " ".join(named), **named}}


def _difference(key: str, value: Any) -> str:
    last = key.rpartition(".")[2]
    return str(value).rpartition(":")[2] if last == "name" else f"{last}={value}"
