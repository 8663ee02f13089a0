"""The two trace files of FedScale (Lai et al., FedScale: Benchmarking Model and System Performance of Federated
Learning at Scale, ICML 2022).

`client_device_capacity` has for every device the milliseconds to infer one sample and the kilobits per second of its
network; `client_behave_trace` has for every phone when it was charging. Both are pickles; JSON of the same shape is
read as well. They come from different studies, so a client gets a device of the one and an availability of the other.

FedScale's own code takes a phone as available from the second `active` to the second `inactive`, both included. Here an
interval ends when `inactive` begins, which makes it one second shorter, as its length in the field `duration` is; one
that would be empty is one second long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.fleet.arrays import first_true
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.latencies import TrainingFactor
from fedarena.fleet.reading.traces import (
    Places,
    entries,
    flat_numbers,
    lists,
    merge_intervals,
    naming,
    numbers,
    read_json_or_pickle,
    records_by_name,
    report,
    whole_seconds,
)
from fedarena.fleet.registry import FLEETS
from fedarena.fleet.sources.plain_parts import ideal_devices


@FLEETS.register("fedscale_files")
def fedscale_files(
    phones: int,
    *,
    device_file: PathOption | None = None,
    availability_file: PathOption | None = None,
    training_factor: TrainingFactor = 3.0,
) -> Fleet:
    """Devices and availabilities as FedScale published them.

    Either file may be left out: devices then take no time, or phones are always available. Training on a sample takes
    `training_factor` times as long as inferring it.
    """
    if device_file is None and availability_file is None:
        raise BadInputError("The fleet 'fedscale_files' needs a device_file, an availability_file, or both")
    devices = ideal_devices(1) if device_file is None else read_devices(device_file, training_factor)
    availability = Availability.always(1) if availability_file is None else read_availability(availability_file)
    return Fleet("fedscale_files", devices, availability, paired=False)


def read_devices(path: str, training_factor: float) -> Devices:
    """Devices of a file like `client_device_capacity`."""
    records = records_by_name(read_json_or_pickle(path), path)
    names = list(records)
    places = Places("phone", names)
    with naming(path):
        milliseconds = numbers(entries(records.values(), "computation", places), "computation", places, above=0)
        kilobits = numbers(entries(records.values(), "communication", places), "communication", places, above=0)
        return Devices.from_columns(
            names=names,
            seconds_per_sample=training_factor * milliseconds / 1000,
            download_bits_per_second=1000 * kilobits,
            upload_bits_per_second=1000 * kilobits,
        )


def read_availability(path: str) -> Availability:
    """Availabilities of a file like `client_behave_trace`."""
    records = records_by_name(read_json_or_pickle(path), path)
    names = list(records)
    places = Places("phone", names)
    with naming(path):
        periods = numbers(entries(records.values(), "finish_time", places), "finish_time", places, above=0)
        active, inactive = (
            lists(entries(records.values(), key, places), key, places) for key in ("active", "inactive")
        )
        _check_equally_many(active, inactive, places)
        rows, begins = flat_numbers(active, "active", places)
        _, ends = flat_numbers(inactive, "inactive", places)
        wrong = first_true((begins < 0) | (begins > ends))
        if wrong is not None:
            raise BadInputError(
                f"{places[rows[wrong]]} is active from {begins[wrong]:g} until {ends[wrong]:g} seconds; "
                "it must begin at 0 or later and not end before it begins"
            )
        starts, stops, whole_periods = whole_seconds(begins), whole_seconds(ends), whole_seconds(periods)
        # A time modulo finish_time never gets to what lies behind it.
        behind = stops > whole_periods[rows]
        stops = np.minimum(np.maximum(stops, starts + 1), whole_periods[rows])
        kept = starts < stops
        merged_rows, starts, stops = merge_intervals(rows[kept], starts[kept], stops[kept])
        availability = Availability.from_intervals(merged_rows, starts, stops, whole_periods, names)
    report(path, int(behind.sum()), "intervals end after the trace does and were cut there")
    merged = int(kept.sum()) - len(starts)
    report(path, merged, "intervals touch or overlap the one before and were merged with it")
    return availability


def _check_equally_many(active: Any, inactive: Any, places: Places) -> None:
    for position, (begins, ends) in enumerate(zip(active, inactive, strict=True)):
        if len(begins) != len(ends):
            raise BadInputError(
                f"{places[position]} has {len(begins)} times in 'active' but {len(ends)} in 'inactive'; "
                "every interval needs both"
            )
