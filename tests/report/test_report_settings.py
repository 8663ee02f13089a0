from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from fedarena.display.report.compare_settings import as_text, as_yaml, differing_keys, in_common

LEAVES = st.one_of(
    st.integers(0, 2), st.booleans(), st.sampled_from([1.0, 2.0, None, "a"]), st.lists(st.integers(0, 1))
)
SETTINGS = st.recursive(
    st.dictionaries(st.sampled_from("abc"), LEAVES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), LEAVES | inner, max_size=3),
    max_leaves=8,
)


def leaves(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: repr(value)}
    return found


@given(st.lists(SETTINGS, min_size=1, max_size=3))
def test_every_setting_is_shared_or_differs(all_settings):
    shared, differing = leaves(in_common(all_settings)), differing_keys(all_settings)
    flat = [leaves(settings) for settings in all_settings]
    for key in {key for settings in flat for key in settings}:
        values = {settings.get(key, "absent") for settings in flat}
        assert (key in shared) == (len(values) == 1)
        assert (key in differing) == (len(values) > 1)
    assert all(flat[0][key] == value for key, value in shared.items())


def test_yaml_keeps_order_and_values():
    settings = {"rounds": 3, "federation": {"name": "chitchat", "path": None}, "local": {"lr": 0.5}}
    assert list(yaml.safe_load(as_yaml(settings))) == ["rounds", "federation", "local"]
    assert yaml.safe_load(as_yaml(settings)) == settings


def test_values_as_text():
    assert [as_text(v) for v in ("a b", 0.5, None, True, [1, 2])] == ["a b", "0.5", "null", "true", "[1, 2]"]
