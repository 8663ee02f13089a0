"""What tells the settings of a run from others, also of runs that were begun before a setting was there."""

from __future__ import annotations

from typing import Any

import pytest

from fedarena.runs.config import resolve
from fedarena.runs.identity import settings_fingerprint
from fedarena.runs.merging import merge

PRIVATE = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0, "noise_cohort": 20}, "selector": "poisson"}


@pytest.mark.parametrize(
    ("section", "option", "base", "usual", "other"),
    [
        ("local", "clip_norm", {}, None, 10.0),
        ("engine", "plan", {}, "together", "apart"),
        ("engine", "dense", {}, "written", "factored"),
        ("engine", "convolutions", {}, "products", "kernels"),
        ("engine", "kernels", {}, "library", "compiled"),
        ("privacy", "noise_population", PRIVATE, None, 1000),
    ],
)
def test_runs_from_before_a_setting_was_there_can_be_resumed(
    section: str, option: str, base: dict[str, Any], usual: Any, other: Any
) -> None:
    base = {"federation": "digits", **base}
    without, as_usual, otherwise = (
        resolve(merge(base, {} if value is None else {f"{section}.{option}": value})) for value in (None, usual, other)
    )

    class FromBefore:
        def to_dict(self) -> dict[str, Any]:
            settings = without.to_dict()
            assert settings[section].pop(option) is None
            return settings

    known = settings_fingerprint(FromBefore())  # type: ignore[arg-type]
    assert known == settings_fingerprint(without) == settings_fingerprint(as_usual)
    assert known != settings_fingerprint(otherwise)


def test_what_samples_may_take_is_chosen_for_runs_from_before_there_was_a_choice() -> None:
    before, chosen = (resolve({"federation": "digits", "engine": engine}) for engine in ({}, {"sample_bytes": 1 << 30}))
    assert chosen.engine["sample_bytes"] == 1 << 30
    assert settings_fingerprint(before) == settings_fingerprint(chosen)
