"""Devices that somebody measured with `fedarena profile-device`, one row for each record."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.device_record import DeviceRecord, parse_record
from fedarena.core.errors import BadInputError
from fedarena.core.options import PathOption
from fedarena.core.registry import nearest
from fedarena.fleet.arrays import Ragged
from fedarena.fleet.availability import Availability
from fedarena.fleet.devices import Devices
from fedarena.fleet.fleet import Fleet
from fedarena.fleet.reading.traces import naming, read_json, report
from fedarena.fleet.registry import FLEETS

Positive = Annotated[float, Field(gt=0)]
Copies = Annotated[int, Field(ge=1)]
_ENDING = ".json"


@FLEETS.register("profiles")
def profiles(
    phones: int,
    *,
    files: PathOption | list[PathOption],
    model: str | None = None,
    copies: Copies | list[Copies] = 1,
    download_bits_per_second: Positive | None = None,
    upload_bits_per_second: Positive | None = None,
    radio_watts: Annotated[float, Field(ge=0)] | None = None,
    in_order: bool = False,
) -> Fleet:
    """Devices of records that `fedarena profile-device` wrote; they are always available.

    `files` are records, folders of them, or patterns such as ``phones/*.json``. With a `model` devices take the seconds
    per sample that they took for it, whatever is trained. Without, they compute as many operations per second as they
    did for the largest model that was measured on all of them. `copies` says how often each is in the fleet, one number
    for all or one for each. The speeds are those of devices whose network was not measured, `radio_watts` that of
    devices that know what they draw while they train, but not while they transfer. With `in_order`, records are those
    of the clients themselves, one after the other, as `fedarena deploy records` writes them; else they are drawn.
    """
    paths = _paths([files] if isinstance(files, str) else files)
    records = [_read(path) for path in paths]
    times = [copies] * len(records) if isinstance(copies, int) else copies
    if len(times) != len(records):
        raise BadInputError(f"fleet.copies has {len(times)} numbers, but there are {len(records)} device records")
    chosen = _common_model(records, paths) if model is None else _known_model(model, records, paths)
    measured = [record.models[chosen] for record in records]
    _report_differences(records, chosen, paths)
    seconds = np.array([entry.seconds_per_sample for entry in measured])
    flops = np.array([entry.flops_per_sample for entry in measured])
    watts = np.array([_or_nan(entry.watts) for entry in measured])
    radio = np.array([_or_nan(radio_watts if record.radio_watts is None else record.radio_watts) for record in records])
    unknown = np.isnan(watts) | np.isnan(radio)
    devices = Devices.from_columns(
        names=[Path(path).name for path in paths],
        seconds_per_sample=seconds,
        flops_per_second=flops / seconds if model is None else None,
        measured_download=_speeds(records, "download_bits_per_second", download_bits_per_second, paths),
        measured_upload=_speeds(records, "upload_bits_per_second", upload_bits_per_second, paths),
        compute_watts=np.where(unknown, np.nan, watts),
        radio_watts=np.where(unknown, np.nan, radio),
    ).take(np.repeat(np.arange(len(records)), times))
    return Fleet("profiles", devices, Availability.always(len(devices)), paired=True, in_order=in_order)


def _paths(files: Sequence[str]) -> list[str]:
    """All files meant, in the order of `files`; those of a folder or pattern sorted by name."""
    paths: list[str] = []
    for name in files:
        if Path(name).is_dir():
            found = sorted(str(path) for path in Path(name).iterdir() if path.name.endswith(_ENDING))
        elif glob.has_magic(name) and not Path(name).exists():
            found = sorted(glob.glob(name, recursive=True))
        else:
            found = [name]
        if not found:
            raise BadInputError(f"There is no device record ({_ENDING}) in {name}")
        paths += found
    if not paths:
        raise BadInputError("fleet.files is empty; it needs at least one device record")
    return paths


def _read(path: str) -> DeviceRecord:
    value = read_json(path)
    with naming(path):
        return parse_record(value)


def _common_model(records: Sequence[DeviceRecord], paths: Sequence[str]) -> str:
    """The model with the most operations per sample of those measured on all devices."""
    common = set.intersection(
        *({name for name, m in record.models.items() if m.flops_per_sample} for record in records)
    )
    if not common:
        raise BadInputError(
            f"No model with operations that are counted was measured on all of the {len(paths)} devices; measure one, "
            "or set fleet.model"
        )
    return max(sorted(common), key=lambda model: records[0].models[model].flops_per_sample)


def _known_model(model: str, records: Sequence[DeviceRecord], paths: Sequence[str]) -> str:
    for path, record in zip(paths, records, strict=True):
        if model not in record.models:
            raise BadInputError(f"{path}: the model {model!r} was not measured; {nearest(model, record.models)}")
    return model


def _report_differences(records: Sequence[DeviceRecord], model: str, paths: Sequence[str]) -> None:
    first = records[0].models[model]
    for what in ("batch_size", "flops_per_sample"):
        others = sum(getattr(record.models[model], what) != getattr(first, what) for record in records)
        where = f"of {len(records)} devices measured {model!r} with another {what}, so they are not quite comparable"
        report(paths[0], others, where)


def _speeds(records: Sequence[DeviceRecord], column: str, default: float | None, paths: Sequence[str]) -> Ragged:
    lists = []
    for path, record in zip(paths, records, strict=True):
        speeds = getattr(record, column) or ([] if default is None else [default])
        if not speeds:
            raise BadInputError(
                f"{path}: the network was not measured; set fleet.{column}, or measure it with "
                "`fedarena profile-device --server`"
            )
        lists.append(speeds)
    return Ragged.from_lists(lists)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
