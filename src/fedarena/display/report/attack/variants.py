"""Names for settings that stand beside each other: that of a part, and what else sets them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedarena.storage.run_data import flatten_settings, settings_apart, with_named_transforms


def described(all_settings: Sequence[Mapping[str, Any]], part: str) -> list[str]:
    """What to call settings: by their `part`, and by whatever else differs."""
    names = [str((settings.get(part) or {}).get("name") or "").rpartition(":")[2] for settings in all_settings]
    flat = [
        flatten_settings(with_named_transforms({part: settings.get(part), **settings})) for settings in all_settings
    ]
    return [
        " ".join(words if words[:1] == (name,) else [name, *words])
        for name, words in zip(names, settings_apart(flat, [""] * len(flat)), strict=True)
    ]
