"""Settings with others put over them, such as a file's with those of a command line: what they come to together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.core.outside_text import quoted
from fedarena.core.yaml_files import MOST_LEVELS
from fedarena.runs.parts import LISTED_PARTS, NAMED_PARTS, usual_aggregator
from fedarena.simulate import PROTOCOLS
from fedarena.transforms import AGGREGATORS


def merge(settings: Mapping[str, Any], *overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with overrides, whose keys may be dotted; mappings are merged.

    Naming another part drops the options of the former one, and giving epochs replaces steps and the other way round.
    Overrides hold together, in whatever order they are given: none of them may set what another sets otherwise. Within
    one, ``{**settings, "local.lr": 0.1}``, a dotted key counts more than a mapping.
    """
    items = [item for given in overrides for item in given.items()]
    for key, _ in items:
        if not isinstance(key, str):
            raise BadInputError(f"The key of a setting must be a name, not {quoted(key)}")
        if key.count(".") > MOST_LEVELS:
            raise BadInputError(f"The key {quoted(key)} is nested too deeply: it has more than {MOST_LEVELS} dots")
    check_set_once(*overrides)
    together: dict[str, Any] = {}
    for dotted, value in sorted(items, key=lambda item: (item[0].count("."), item[0].endswith(".name"))):
        nested = value
        for key in reversed(dotted.split(".")[1:]):
            nested = {key: nested}
        together = _merge(together, {dotted.partition(".")[0]: nested}, replace_work=False)
    merged = _merge(settings, together, replace_work=True)
    if "aggregator" not in together and _came_with_former_protocol(settings, merged):
        del merged["aggregator"]
    return merged


def check_set_once(*settings: Mapping[str, Any]) -> None:
    """Refuses settings of which one sets to another value what another one sets, too."""
    found: dict[tuple[str, ...], Any] = {}
    for given in settings:
        own = {path: leaf for key, value in given.items() for path, leaf in leaves_of(tuple(key.split(".")), value)}
        for path, leaf in own.items():
            if path in found and found[path] != leaf:
                raise BadInputError(
                    f"{'.'.join(map(str, path))} is set twice, to {quoted(found[path])} and to {quoted(leaf)}; "
                    "leave one of them out"
                )
        found |= own


def leaves_of(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The single settings in one that may hold several; the name of a part is where a name alone would be."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves_of((*path, key), item)
    else:
        yield path[:-1] if len(path) > 1 and path[-1] == "name" else path, value


def _came_with_former_protocol(settings: Mapping[str, Any], merged: Mapping[str, Any]) -> bool:
    """Whether a complete configuration has the aggregator that its protocol needed, and now gets another protocol."""
    former, now = settings.get("protocol"), merged.get("protocol")
    if not isinstance(former, Mapping) or not isinstance(now, Mapping) or former.get("name") == now.get("name"):
        return False
    if "aggregator" not in settings or former.get("name") not in PROTOCOLS.names():
        return False
    # Somebody who chooses an aggregator does not write out all of its defaults, as a complete configuration does.
    usual = resolve_part(AGGREGATORS, usual_aggregator(former), "aggregator")
    return bool(settings["aggregator"] == usual)


def _merge(old: Mapping[str, Any], new: Mapping[str, Any], replace_work: bool, path: str = "") -> dict[str, Any]:
    merged = dict(old)
    if replace_work and path == "local.":
        for given, replaced in (("steps", "epochs"), ("epochs", "steps")):
            if new.get(given) is not None and replaced not in new:
                merged.pop(replaced, None)
    for key, value in new.items():
        before, after = merged.get(key), value
        if _is_name(after) and (isinstance(before, Mapping) or path + key in NAMED_PARTS):
            after = {"name": after}
        one_alone = isinstance(after, Mapping) and "name" in after and path + key in LISTED_PARTS
        if not isinstance(after, Mapping) or (one_alone and isinstance(before, list)):
            merged[key] = after
            continue
        if _is_name(before):
            before = {"name": before}
        if before is not None and not isinstance(before, Mapping):
            inside = next(iter(after), "")
            raise BadInputError(f"{path}{key}.{inside} cannot be set, because {path}{key} is {quoted(before)}")
        before = before or {}
        if "name" in after and "name" in before and after["name"] != before["name"]:
            before = {}
        merged[key] = _merge(before, after, replace_work, f"{path}{key}.")
    return merged


def _is_name(value: Any) -> bool:
    return isinstance(value, (str, Path)) or callable(value)
