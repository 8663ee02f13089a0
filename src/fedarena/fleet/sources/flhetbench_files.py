"""Files of FLHetBench (Zhang et al., FLHetBench: Benchmarking Device and State Heterogeneity in Federated Learning,
CVPR 2024).

- ``cached_timers.json``: when a thousand phones of FLASH's users were idle, charging and in a WiFi; not all are usable.
- ``state_case*.json``: a list of their names, the phones of a case; names may repeat.
- ``device_case*.json``: as many MobiPerf records. Phone i of a case has device i and state i.
- ``training_latency.json``: how fast models of phones compute.

Availability is as in their code: by whole seconds, both ends of an interval included, at the position
``(t - trace_start)`` modulo ``(trace_end - trace_start)``. Where t is not whole, their code rounds that difference
towards 0, so that it takes the second that follows t as long as t is before the start of the trace. Here it is the
second that t is in; heterogeneity metrics that compare with their code do as it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.fleet.arrays import IntArray, first_true
from fedarena.fleet.availability import DAY_SECONDS, Availability
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.latencies import Network, TrainingFactor, Unmatched, read_latencies
from fedarena.fleet.reading.traces import (
    Places,
    as_shown,
    entries,
    flat_numbers,
    lists,
    naming,
    numbers,
    read_json,
    records_by_name,
    whole_seconds,
)
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.mobiperf import read_mobiperf
from fedarena.fleet.sources.plain_parts import devices_without_network, ideal_devices

# What time 0 is: theirs (midnight of 2 January 2020), or midnight of every phone's first day.
Clock = Literal["theirs", "first_day"]


@FLEETS.register("flhetbench")
def flhetbench(
    phones: int,
    *,
    timers_file: PathOption,
    states_file: PathOption | None = None,
    devices_file: PathOption | None = None,
    latencies_file: PathOption | None = None,
    model_names_file: PathOption | None = None,
    network: Network = "ResNet",
    unmatched: Unmatched = "draw",
    training_factor: TrainingFactor = 3.0,
    clock: Clock = "theirs",
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Fleet:
    """Phones of FLHetBench: all usable ones, or with `states_file` those of a case.

    Without `devices_file` transfers take no time; without `latencies_file` computing takes none. If there are both
    states and devices they belong together one by one; otherwise a client gets one of each.
    """
    names, availability = read_timers(timers_file, clock)
    if states_file is not None:
        availability = availability.take(_read_case(states_file, names, timers_file))
    if devices_file is not None:
        measured = read_mobiperf(devices_file)
        seconds = measured.seconds_per_sample(
            latencies_file, model_names_file, network=network, unmatched=unmatched, seed=seed
        )
        with naming(devices_file):
            devices = measured.devices(training_factor * seconds)
    elif latencies_file is not None:
        devices = devices_without_network(training_factor * read_latencies(latencies_file, network).seconds)
    else:
        devices = ideal_devices(len(availability))
    paired = states_file is not None and devices_file is not None
    if paired and len(devices) != len(availability):
        raise BadInputError(
            f"{devices_file} has {len(devices)} phones and {states_file} has {len(availability)}; "
            "those of one case must be equally many"
        )
    return Fleet("flhetbench", devices, availability, paired)


def read_timers(path: str, clock: Clock) -> tuple[list[str], Availability]:
    """The usable phones of a file like ``cached_timers.json``: their names, and when they are available."""
    records = records_by_name(read_json(path), path)
    with naming(path):
        everybody = Places("phone", list(records))
        usable = entries(records.values(), "isSuccess", everybody)
        wrong = next((position for position, value in enumerate(usable) if not isinstance(value, bool)), None)
        if wrong is not None:
            raise BadInputError(
                f"'isSuccess' of {everybody[wrong]} must be true or false, not {as_shown(usable[wrong])}"
            )
        kept = {name: record for (name, record), is_usable in zip(records.items(), usable, strict=True) if is_usable}
        if not kept:
            raise BadInputError("No phone is usable: 'isSuccess' is false for all of them")
        names = list(kept)
        places = Places("phone", names)
        begins, ends = (
            whole_seconds(numbers(entries(kept.values(), key, places), key, places))
            for key in ("trace_start", "trace_end")
        )
        wrong = first_true(ends <= begins)
        if wrong is not None:
            raise BadInputError(
                f"The trace of {places[wrong]} begins at {begins[wrong]} and ends at {ends[wrong]} seconds; "
                "it must end after it begins"
            )
        rows, starts, stops = _intervals(list(kept.values()), places)
        outside = first_true((starts > stops) | (starts < begins[rows]) | (stops > ends[rows]))
        if outside is not None:
            row = rows[outside]
            raise BadInputError(
                f"{places[row]} is ready from {starts[outside]} to {stops[outside]} seconds; it must not end before it "
                f"begins, and be within the trace from {begins[row]} to {ends[row]}"
            )
        # The position of trace_end is that of trace_start, so what would be the last second is none.
        starts, stops = starts - begins[rows], np.minimum(stops + 1, ends[rows]) - begins[rows]
        lasts = starts < stops
        # Made twice, so that what is wrong is told in seconds since the start of the trace, before they are shifted.
        trace = Availability.from_intervals(rows[lasts], starts[lasts], stops[lasts], ends - begins, names)
    return names, _shifted(trace, begins if clock == "theirs" else begins % DAY_SECONDS)


def _intervals(records: list[Any], places: Places) -> tuple[IntArray, IntArray, IntArray]:
    pairs_of_devices = lists(entries(records, "ready_time", places), "ready_time", places)
    for position, pairs in enumerate(pairs_of_devices):
        wrong = next((pair for pair in pairs if not isinstance(pair, list) or len(pair) != 2), None)
        if wrong is not None:
            raise BadInputError(f"'ready_time' of {places[position]} must have pairs of seconds, not {as_shown(wrong)}")
    rows, starts = flat_numbers([[start for start, _ in pairs] for pairs in pairs_of_devices], "ready_time", places)
    _, stops = flat_numbers([[stop for _, stop in pairs] for pairs in pairs_of_devices], "ready_time", places)
    return rows, whole_seconds(starts), whole_seconds(stops)


def _shifted(availability: Availability, seconds: IntArray) -> Availability:
    """The same with every phone's trace, which began at 0, that many seconds later."""
    rows = np.repeat(np.arange(len(availability)), np.diff(availability.offsets))
    starts, ends = (side + seconds[rows] for side in (availability.starts, availability.ends))
    return replace(
        Availability.from_intervals(rows, starts, ends, availability.periods, wrap=True), trace_starts=seconds
    )


def _read_case(path: str, names: list[str], timers_path: str) -> IntArray:
    value = read_json(path)
    if not isinstance(value, list) or not value:
        raise BadInputError(f"{path} must hold a list of names of phones, not {as_shown(value)}")
    row_of = {name: row for row, name in enumerate(names)}
    for number, name in enumerate(value, start=1):
        if str(name) not in row_of:
            raise BadInputError(
                f"{path}: entry {number} is {as_shown(name)}, which is not a usable phone of {timers_path}"
            )
    return np.array([row_of[str(name)] for name in value], dtype=np.int64)
