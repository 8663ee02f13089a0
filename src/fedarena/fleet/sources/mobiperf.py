"""Speeds of networks that phones measured with MobiPerf (Huang et al., 2011), as FLHetBench published them.

A record has the kilobits per second of about fifteen TCP downloads in ``tcp_speed_results`` and describes the phone in
``device_properties.device_info``. The ``id`` is not that of a phone: phones of different makers have the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.fleet.arrays import FloatArray, Ragged, first_true
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.latencies import Network, TrainingFactor, Unmatched, has_model, seconds_of_models
from fedarena.fleet.reading.traces import (
    Places,
    as_shown,
    entries,
    flat_numbers,
    lists,
    naming,
    read_json,
    records_in_list,
    report,
)
from fedarena.fleet.registry import FLEETS


@dataclass(frozen=True)
class MeasuredDevices:
    """Phones and the bits per second that they measured."""

    descriptions: list[tuple[str, ...]]  # manufacturer, model, and what else tells phones apart
    speeds: Ragged

    def grouped(self) -> MeasuredDevices:
        """The same with one row for all records that describe their phone alike, in the order of the first."""
        first_of: dict[tuple[str, ...], int] = {}
        group = np.array([first_of.setdefault(phone, len(first_of)) for phone in self.descriptions])
        order = np.argsort(group, kind="stable")
        speeds = self.speeds.take(order)
        ends = np.searchsorted(group[order], np.arange(len(first_of)), side="right")
        return MeasuredDevices(list(first_of), Ragged(np.append(0, speeds.offsets[ends]), speeds.values))

    def devices(self, seconds_per_sample: FloatArray) -> Devices:
        """Devices that draw from these speeds for downloads and, because nothing else is known, for uploads."""
        return Devices.from_columns(
            seconds_per_sample=seconds_per_sample, measured_download=self.speeds, measured_upload=self.speeds
        )

    def seconds_per_sample(self, path: str | None, names_path: str | None, **options: Any) -> FloatArray:
        """Seconds to infer a sample, by the models of the phones; 0 if there is no list of latencies."""
        if path is None:
            return np.zeros(len(self.descriptions))
        models = [(manufacturer, model) for manufacturer, model, *_ in self.descriptions]
        return seconds_of_models(models, path, names_path, **options)


def read_mobiperf(path: str) -> MeasuredDevices:
    """Phones and speeds of a list of records, one row for each."""
    records = records_in_list(read_json(path), path)
    places = Places("record", range(1, len(records) + 1))
    with naming(path):
        kilobits = lists(entries(records, "tcp_speed_results", places), "tcp_speed_results", places)
        empty = first_true(np.fromiter((len(speeds) == 0 for speeds in kilobits), np.bool_, len(kilobits)))
        if empty is not None:
            raise BadInputError(f"'tcp_speed_results' of {places[empty]} is empty; every phone needs a speed")
        owners, flat = flat_numbers(kilobits, "tcp_speed_results", places)
        wrong = first_true(flat <= 0)
        if wrong is not None:
            raise BadInputError(
                f"'tcp_speed_results' of {places[owners[wrong]]} has a speed of {flat[wrong]:g} kilobits per second; "
                "speeds must be above 0"
            )
        offsets = np.append(0, np.cumsum([len(speeds) for speeds in kilobits]))
        descriptions = [_description(record, places[position]) for position, record in enumerate(records)]
    nameless = sum(not has_model(model) for _, model, *_ in descriptions)
    report(path, nameless, f"of {len(records):,} records have no phone model and count as unmatched")
    return MeasuredDevices(descriptions, Ragged(offsets, 1000 * flat))


def _description(record: dict[str, Any], place: str) -> tuple[str, ...]:
    found: Any = record
    for key in ("device_properties", "device_info"):
        found = found.get(key)
        found = {} if found is None else found
        if not isinstance(found, dict):
            raise BadInputError(f"{key!r} of {place} must be a dictionary, not {as_shown(found)}")
    info, model = found, found.get("model")
    if not isinstance(model, str | None):
        raise BadInputError(f"'model' of {place} must be a text, not {as_shown(model)}")
    if not has_model(model):
        # Nothing says that two of them are one device, so the place tells them apart.
        return "", "", "", "", place
    return tuple(str(info.get(key, "")) for key in ("manufacturer", "model", "tac", "os"))


@FLEETS.register("mobiperf")
def mobiperf(
    phones: int,
    *,
    file: PathOption,
    latencies_file: PathOption | None = None,
    model_names_file: PathOption | None = None,
    network: Network = "ResNet",
    unmatched: Unmatched = "draw",
    training_factor: TrainingFactor = 3.0,
    seed: Annotated[int, Field(ge=0)] = 0,
) -> Fleet:
    """Phones with measured speeds, one of which is drawn for every transfer; they are always available.

    Records of phones with the same manufacturer, model, type code and system count as one phone. Computing takes no
    time unless `latencies_file` tells how fast models are.
    """
    measured = read_mobiperf(file).grouped()
    seconds = measured.seconds_per_sample(
        latencies_file, model_names_file, network=network, unmatched=unmatched, seed=seed
    )
    with naming(file):
        devices = measured.devices(training_factor * seconds)
    return Fleet("mobiperf", devices, Availability.always(len(devices)), paired=True)
