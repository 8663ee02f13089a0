"""The file in which a measured device is kept: what `fedarena.profiling` writes and the fleet `profiles` reads.

It stands below both, and needs nothing but Python, because phones write it and simulations read it. All fields are
described in docs/profiling.md; here are those that a fleet depends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedarena.core.errors import BadInputError

FORMAT = "fedarena device record"
VERSION = 1
_TOO_LARGE = 1e100
_ROUNDED = 0.01  # by how much numbers that say the same may differ, in files that somebody has rounded


@dataclass(frozen=True)
class MeasuredModel:
    """How fast a device trains one model."""

    batch_size: int
    seconds_per_sample: float  # the mean
    flops_per_sample: float  # 0 if they could not be counted
    watts: float | None  # while it trains


@dataclass(frozen=True)
class DeviceRecord:
    """What a fleet needs to know of a device."""

    models: dict[str, MeasuredModel]
    download_bits_per_second: list[float]  # of the largest transfers; empty if the network was not measured
    upload_bits_per_second: list[float]
    radio_watts: float | None  # while it transfers


def parse_record(value: Any) -> DeviceRecord:
    """The record in a value read from JSON; raises `BadInputError` about what is wrong with it."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BadInputError("it is not a device record, which `fedarena profile-device` writes")
    version = value.get("version")
    if version != VERSION:
        raise BadInputError(f"the device record is of version {version!r}, but this FedArena reads version {VERSION}")
    models = {}
    for number, entry in enumerate(_items(value, "models", "it"), start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
            raise BadInputError(f"model {number} of the device record has no name")
        if entry["model"] in models:
            raise BadInputError(f"the device record has the model {entry['model']!r} twice; leave one of them")
        models[entry["model"]] = _parse_model(entry, f"the model {entry['model']!r}")
    if not models:
        raise BadInputError("the device record has no measured model")
    network = value.get("network")
    if network is None:
        return DeviceRecord(models, [], [], None)
    if not isinstance(network, dict):
        raise BadInputError("'network' of the device record must be a dictionary or null")
    return DeviceRecord(
        models, _largest(network, "download"), _largest(network, "upload"), _known(network, "watts", "the network")
    )


def _parse_model(entry: Mapping[str, Any], what: str) -> MeasuredModel:
    seconds = entry.get("seconds_per_sample")
    if not isinstance(seconds, dict):
        raise BadInputError(f"'seconds_per_sample' of {what} must be a dictionary with a mean")
    batch_size = _number(entry, "batch_size", what)
    if batch_size != int(batch_size):
        raise BadInputError(f"'batch_size' of {what} must be a whole number, not {batch_size!r}")
    mean = _number(seconds, "mean", f"'seconds_per_sample' of {what}")
    flops = _known(entry, "flops_per_sample", what) or 0.0
    step = entry.get("seconds_per_step")
    if isinstance(step, dict) and step.get("mean") is not None:
        told = _number(step, "mean", f"'seconds_per_step' of {what}")
        _check_same(f"'seconds_per_step' of {what}", told, "'seconds_per_sample' times 'batch_size'", mean * batch_size)
    if flops and (speed := _known(entry, "flops_per_second", what)) is not None:
        _check_same(f"'flops_per_second' of {what}", speed, "'flops_per_sample' by 'seconds_per_sample'", flops / mean)
    return MeasuredModel(int(batch_size), mean, flops, _known(entry, "watts", what))


def _check_same(what: str, found: float, other: str, expected: float) -> None:
    """A record says some things twice: what was changed in one place, or is in another unit there, is not believed."""
    if abs(found - expected) > _ROUNDED * max(found, expected):
        raise BadInputError(f"{what} is {found:.6g}, and {other} {expected:.6g}; they must be the same")


def _largest(network: Mapping[str, Any], direction: str) -> list[float]:
    """Speeds of the transfers of the most bytes, in which beginning a transfer counts the least."""
    what = f"a transfer in '{direction}' of the network"
    transfers = []
    for entry in _items(network, direction, "the network"):
        if not isinstance(entry, dict):
            raise BadInputError(f"{what} must be a dictionary, not {entry!r:.60}")
        size, speed = _number(entry, "bytes", what), _number(entry, "bits_per_second", what)
        if entry.get("seconds") is not None:
            seconds = _number(entry, "seconds", what)
            _check_same(f"'bits_per_second' of {what}", speed, "8 times 'bytes' by 'seconds'", 8 * size / seconds)
        transfers.append((size, speed))
    most = max((size for size, _ in transfers), default=0)
    return [speed for size, speed in transfers if size == most]


def _items(entry: Mapping[str, Any], key: str, what: str) -> list[Any]:
    items = entry.get(key)
    if not isinstance(items, list):
        raise BadInputError(f"{key!r} of {what} must be a list, not {items!r:.60}")
    return items


def _known(entry: Mapping[str, Any], key: str, what: str) -> float | None:
    return None if entry.get(key) is None else _number(entry, key, what, least=0)


def _number(entry: Mapping[str, Any], key: str, what: str, *, least: float | None = None) -> float:
    """A finite number: above 0, or at least `least`."""
    value = entry.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _TOO_LARGE:
        number = float(value)
        if number > 0 if least is None else number >= least:
            return number
    condition = "above 0" if least is None else f"of at least {least:g}"
    raise BadInputError(f"{key!r} of {what} must be a number {condition}, not {value!r:.60}")
