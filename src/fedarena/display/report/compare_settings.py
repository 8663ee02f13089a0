"""What runs have in common and where they differ: configurations and environments as nested mappings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fedarena.storage.run_data import flatten_settings


def in_common(all_settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The nested settings that are the same in all of them."""
    first, *others = all_settings
    common: dict[str, Any] = {}
    for key, value in first.items():
        if not all(key in other for other in others):
            continue
        values = [value, *(other[key] for other in others)]
        if all(isinstance(found, Mapping) for found in values):
            if (inner := in_common(values)) or not any(values):
                common[key] = inner
        elif all(same(value, found) for found in values):
            common[key] = value
    return common


def differing_keys(all_settings: Sequence[dict[str, Any]]) -> list[str]:
    """Dotted keys that do not have one value everywhere, in order of first appearance."""
    flat = [flatten_settings(settings) for settings in all_settings]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    return [
        key for key in keys if not all(key in settings and same(settings[key], flat[0].get(key)) for settings in flat)
    ]


def same(one: Any, other: Any) -> bool:
    """Equality that keeps apart what Python does not: 1, 1.0 and True are three different settings."""
    return type(one) is type(other) and bool(one == other)


def as_yaml(settings: Mapping[str, Any]) -> str:
    """Settings as YAML, in the order given."""
    return yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True, width=100)


def as_text(value: Any) -> str:
    """One value as YAML would show it, on one line."""
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.strip().removesuffix("...").strip()
