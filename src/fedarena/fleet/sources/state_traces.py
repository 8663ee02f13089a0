"""Raw messages of phones about their state, as FLASH (Yang et al., Characterizing Impacts of Heterogeneity in Federated
Learning upon Large-Scale Smartphone Data, WWW 2021) collected them.

The file is JSON, ``{user: {"messages": "2020-01-28 23:14:07\\tscreen_off\\n…"}}``. A message says that the battery is
charged from now on (``battery_charged_on``, ``battery_charged_off``) or how full it is (``87%``), what network there is
(``wifi``, ``2g`` to ``5g``, ``unknown``), or what happened to the screen (``screen_on``, ``_off``, ``_lock``,
``_unlock``). A rule decides in which states a phone is available.

What no message has said yet counts as it suits training least: not charging, no network, an empty battery, a screen
that is on and unlocked. A state lasts from the second of its message to that of the next, so that states of no length
do not count, and the last one ends with the last message.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.fleet.arrays import AnyArray, BoolArray, FloatArray, IntArray
from fedarena.fleet.availability import DAY_SECONDS, Availability
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.rules import BATTERY, NETWORKS, parse_rule
from fedarena.fleet.reading.traces import as_shown, merge_intervals, naming, read_json, records_by_name, report
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.plain_parts import ideal_devices

# A state variable and the value that an event gives it; 0 is what counts until there is an event.
_EVENTS: dict[str, tuple[str, float]] = {
    "battery_charged_off": ("charging", 0),
    "battery_charged_on": ("charging", 1),
    "screen_on": ("screen", 0),
    "screen_off": ("screen", 1),
    "screen_unlock": ("lock", 0),
    "screen_lock": ("lock", 1),
    "unknown": ("network", 0),
    **{name: ("network", 1 + code) for code, name in enumerate(NETWORKS)},
}
_EVENT_OF_STATE = {
    "charging": "battery_charged_on",
    "screen_locked": "screen_lock",
    "screen_unlocked": "screen_unlock",
}
_VARIABLES = ("charging", "screen", "lock", "network", BATTERY)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}")
_BATTERY = re.compile(r"(\d{1,3}(?:\.\d+)?)%")
_EPOCH = datetime(1970, 1, 1)


@FLEETS.register("state_traces")
def state_traces(
    phones: int,
    *,
    file: PathOption,
    rule: str = "screen locked and wifi and charging",
    invalid: Literal["refuse", "leave_out"] = "refuse",
) -> Fleet:
    """Phones that are available while their messages fulfil a rule; their devices take no time.

    The period of a phone is the days that its messages are from, and time 0 is midnight of the first. A phone with a
    message that cannot be understood, or with none, is refused or left out.
    """
    fulfilled = parse_rule(rule)
    records = records_by_name(read_json(file), file)
    with naming(file):
        names, messages = read_messages(records, invalid)
    report(file, len(records) - len(names), f"of {len(records):,} phones are left out because of their messages")
    with naming(file):
        availability = messages.availability(fulfilled(messages.state), names)
    return Fleet("state_traces", ideal_devices(len(availability)), availability, paired=True)


class Messages:
    """The messages of all phones one after the other, in the order of time for each."""

    def __init__(self, rows: IntArray, columns: FloatArray, phones: int):
        columns = columns[np.lexsort((columns[:, 0], rows))]  # is stable: messages of the same second stay in order
        self.rows = rows
        self.seconds: IntArray = columns[:, 0].astype(np.int64)
        self.variables: IntArray = columns[:, 1].astype(np.int64)
        self.values: FloatArray = columns[:, 2]
        self._firsts = np.searchsorted(rows, np.arange(phones))

    def variable(self, name: str) -> FloatArray:
        """The value of a variable after every message."""
        sets = self.variables == _VARIABLES.index(name)
        latest = np.maximum.accumulate(np.where(sets, np.arange(len(sets)), -1))
        return np.where(latest >= self._firsts[self.rows], self.values[latest], 0.0)

    def state(self, name: str) -> AnyArray:
        """A state that a rule can ask for, after every message."""
        if name == BATTERY:
            return self.variable(BATTERY)
        if name == "cellular":
            return np.isin(self.variable("network"), [_EVENTS[network][1] for network in NETWORKS if network != "wifi"])
        variable, value = _EVENTS[_EVENT_OF_STATE.get(name, name)]
        return np.equal(self.variable(variable), value)

    def availability(self, fulfilled: BoolArray, names: list[str]) -> Availability:
        """Phones that are available from every message after which the rule is fulfilled to the next message."""
        midnights = self.seconds[self._firsts] // DAY_SECONDS * DAY_SECONDS
        lasts = self.seconds[np.append(self._firsts[1:], len(self.rows)) - 1]
        periods = np.maximum(-(-(lasts - midnights) // DAY_SECONDS), 1) * DAY_SECONDS
        counts = fulfilled[:-1] & (self.rows[1:] == self.rows[:-1]) & (self.seconds[1:] > self.seconds[:-1])
        begins = np.flatnonzero(counts)
        rows = self.rows[begins]
        starts, ends = (self.seconds[begins + side] - midnights[rows] for side in (0, 1))
        return Availability.from_intervals(*merge_intervals(rows, starts, ends), periods, names)


def read_messages(records: dict[str, Any], invalid: str) -> tuple[list[str], Messages]:
    """The names of phones and all their messages; a phone with wrong ones is refused or left out."""
    names: list[str] = []
    counts: list[int] = []
    columns: list[tuple[int, int, float]] = []
    for name, record in records.items():
        try:
            found = _messages_of(record, name)
        except BadInputError:
            if invalid == "refuse":
                raise
            continue
        names.append(name)
        counts.append(len(found))
        columns.extend(found)
    if not names:
        raise BadInputError("No phone has messages that can be understood")
    return names, Messages(np.repeat(np.arange(len(names)), counts), np.array(columns), len(names))


def _messages_of(record: Any, name: str) -> list[tuple[int, int, float]]:
    """Seconds since 1970, the variable and its value of every message of one phone."""
    text = record.get("messages")
    if not isinstance(text, str):
        raise BadInputError(f"user {name!r} must have a text 'messages', not {as_shown(text)}")
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                found.append(_message(line))
            except ValueError as error:
                raise BadInputError(f"line {number} of user {name!r} is {as_shown(line)}: {error}") from None
    if not found:
        raise BadInputError(f"user {name!r} has no messages")
    return found


def _message(line: str) -> tuple[int, int, float]:
    time, _, event = (part.strip() for part in line.strip().partition("\t"))
    if not _TIME.fullmatch(time):
        raise ValueError("it must begin with a time such as '2020-01-28 23:14:07' and a tab")
    seconds = int((datetime.fromisoformat(time) - _EPOCH).total_seconds())
    event = event.lower()
    if event in _EVENTS:
        variable, value = _EVENTS[event]
        return seconds, _VARIABLES.index(variable), value
    battery = _BATTERY.fullmatch(event)
    if battery is None or float(battery[1]) > 100:
        raise ValueError(f"there is no event {event!r}; events are {', '.join(_EVENTS)}, and percentages up to 100%")
    return seconds, _VARIABLES.index(BATTERY), float(battery[1])
