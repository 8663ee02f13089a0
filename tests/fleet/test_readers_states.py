"""Raw messages of phones become availability by a rule, and rules are understood without giving them to Python."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.reading.rules import SWITCHES, parse_rule
from fedarena.fleet.sources.state_traces import read_messages

EVENTS = [
    *("battery_charged_on", "battery_charged_off", "wifi", "2g", "3g", "4g", "5g", "unknown"),
    *("screen_on", "screen_off", "screen_lock", "screen_unlock", "0%", "50%", "79.5%", "80%", "100%"),
]
MONDAY = datetime(2020, 1, 27)
DAY = 86_400


def line(seconds: int, event: str) -> str:
    return f"{MONDAY + timedelta(seconds=seconds)}\t{event}"


@pytest.fixture
def load(tmp_path: Path):
    def load_messages(phones: dict[str, Any], **options: Any) -> Fleet:
        path = tmp_path / "state_traces.json"
        path.write_text(json.dumps(phones))
        return load_fleet({"name": "state_traces", "file": str(path), **options}, phones=3)

    return load_messages


def messages(*events: tuple[int, str]) -> dict[str, str]:
    return {"guid": "x", "model": "SM-A205F", "messages": "\n".join(line(*event) for event in events) + "\n"}


def intervals(fleet: Fleet, row: int = 0) -> list[tuple[int, int]]:
    chosen = slice(*fleet.availability.offsets[row : row + 2])
    pairs = zip(fleet.availability.starts[chosen], fleet.availability.ends[chosen], strict=True)
    return [(int(start), int(end)) for start, end in pairs]


NIGHT = messages(
    (80_000, "screen_lock"),
    (80_010, "Battery_Charged_On"),
    (80_020, "wifi"),
    (80_025, "60%"),
    (90_000, "100%"),
    (100_000, "screen_unlock"),
    (100_100, "screen_lock"),
    (100_100, "screen_unlock"),
    (100_200, "screen_lock"),
    (100_300, "4G"),
    (100_400, "wifi"),
    (2 * DAY + 5, "battery_charged_off"),
)


def test_the_rule_of_flash(load) -> None:
    fleet = load({"a": NIGHT, "b": messages((10, "wifi"), (20, "screen_lock"))})
    assert intervals(fleet) == [(80_020, 100_000), (100_200, 100_300), (100_400, 2 * DAY + 5)]
    assert intervals(fleet, 1) == []
    assert fleet.availability.periods.tolist() == [3 * DAY, DAY]
    assert fleet.paired
    assert fleet.devices.compute_seconds(1, 5, 1e9) == 0


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("charging", [(80_010, 2 * DAY + 5)]),
        ("Charging AND Battery >= 80", [(90_000, 2 * DAY + 5)]),
        ("charging and battery<80%", [(80_010, 90_000)]),
        ("cellular or screen unlocked", [(100_000, 100_200), (100_300, 100_400)]),
        ("4g", [(100_300, 100_400)]),
        ("not screen_locked", [(100_000, 100_200)]),
        ("not (wifi or 4g)", [(80_000, 80_020)]),
        ("wifi and not screen_off and battery == 60", [(80_025, 90_000)]),
        ("screen_off or 5g", []),
    ],
)
def test_other_rules(load, rule: str, expected: list[tuple[int, int]]) -> None:
    assert intervals(load({"a": NIGHT}, rule=rule)) == expected


def test_messages_out_of_order_and_ends_of_days(load) -> None:
    shuffled = messages((50, "battery_charged_off"), (10, "battery_charged_on"), (DAY, "wifi"))
    fleet = load({"a": shuffled}, rule="charging")
    assert intervals(fleet) == [(10, 50)]
    assert fleet.availability.periods.tolist() == [DAY]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 40), st.sampled_from(EVENTS)), min_size=1, max_size=15),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(
        ["screen locked and wifi and charging", "battery >= 79.5 or not screen on", "cellular and not (5g or charging)"]
    ),
)
def test_against_a_phone_that_is_followed_second_by_second(phones: list[list[tuple[int, str]]], rule: str) -> None:
    records = {str(number): messages(*events) for number, events in enumerate(phones)}
    names, read = read_messages(records, "refuse")
    availability = read.availability(parse_rule(rule)(read.state), names)
    for row, events in enumerate(phones):
        events = sorted(events, key=lambda event: event[0])
        for second in range(45):
            state = {"charging": False, "network": "unknown", "screen": "on", "lock": "unlock", "battery": 0.0}
            for time, event in events:
                if time <= second:
                    follow(state, event)
            expected = events[0][0] <= second < events[-1][0] and BY_HAND[rule](state)
            assert availability.is_available(row, second) == expected


def follow(state: dict[str, Any], event: str) -> None:
    if event.startswith("battery_charged"):
        state["charging"] = event.endswith("on")
    elif event.endswith("%"):
        state["battery"] = float(event[:-1])
    elif event in ("screen_on", "screen_off"):
        state["screen"] = event.removeprefix("screen_")
    elif event in ("screen_lock", "screen_unlock"):
        state["lock"] = event.removeprefix("screen_")
    else:
        state["network"] = event


BY_HAND = {
    "screen locked and wifi and charging": lambda state: (
        state["lock"] == "lock" and state["network"] == "wifi" and state["charging"]
    ),
    "battery >= 79.5 or not screen on": lambda state: state["battery"] >= 79.5 or state["screen"] == "off",
    "cellular and not (5g or charging)": lambda state: state["network"] in ("2g", "3g", "4g") and not state["charging"],
}


@pytest.mark.parametrize(
    ("phone", "sentence"),
    [
        ({}, "user 'b' must have a text 'messages', not None"),
        ({"messages": ""}, "user 'b' has no messages"),
        (
            {"messages": line(1, "wifi") + "\n" + line(2, "wlan")},
            r"line 2 of user 'b' is '2020.*there is no event 'wlan'",
        ),
        ({"messages": line(1, "101%")}, "line 1 of user 'b'.*no event '101%'"),
        ({"messages": "2020-01-28 wifi"}, "line 1 of user 'b' is '2020-01-28 wifi': it must begin with a time"),
        ({"messages": "2020-13-28 10:00:00\twifi"}, "line 1 of user 'b'.*month must be in 1..12"),
        ({"messages": "2020-01-28 10:00:00 wifi"}, "line 1 of user 'b'.*and a tab"),
    ],
)
def test_bad_messages(load, phone: dict[str, Any], sentence: str) -> None:
    phones = {"a": NIGHT, "b": phone}
    with pytest.raises(BadInputError, match=rf"state_traces\.json: {sentence}"):
        load(phones)
    with pytest.warns(UserWarning, match="1 of 2 phones are left out because of their messages"):
        assert len(load(phones, invalid="leave_out").availability) == 1
    with pytest.raises(BadInputError, match="No phone has messages that can be understood"):
        load({"b": phone}, invalid="leave_out")


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("", "The rule '' ends where a state should be"),
        ("charging and", "ends where a state should be"),
        ("charging wifi", "has 'wifi' where the end should be"),
        ("and charging", "has 'and' where a state should be"),
        ("(charging", r"ends where '\)' should be"),
        ("charging)", r"has '\)' where the end should be"),
        ("charged", "has no state 'charged'; did you mean 'charging'"),
        ("battery", "ends where a comparison such as '>= 80' should be"),
        ("battery >=", "ends where a number should be"),
        ("battery >= full", "has 'full' where a number should be"),
        ("wifi > 3", "has '>' where the end should be"),
        ("__import__('os')", 'must not contain "\'"'),
        ("wifi; charging", "must not contain ';'"),
        ("__import__", "has no state '__import__'"),
        ("(" * 60 + "wifi" + ")" * 60, "is nested more than 50 times"),
        ("not " * 3_000 + "wifi", "is nested more than 50 times"),
    ],
)
def test_bad_rules(load, rule: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        load({"a": NIGHT}, rule=rule)


@given(st.data())
def test_rules_mean_what_python_would_say(data: st.DataObject) -> None:
    names = st.sampled_from([name for name in SWITCHES if name.isidentifier()])
    rule = data.draw(
        st.recursive(
            names,
            lambda inner: (
                st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join)
                | inner.map("not {}".format)
                | inner.map("({})".format)
            ),
            max_leaves=8,
        )
    )
    values = {name: data.draw(st.booleans()) for name in SWITCHES}
    expected = eval(rule, {"__builtins__": {}}, values)
    assert parse_rule(rule)(lambda name: np.array([values[name]])).tolist() == [expected]
