"""What a machine draws, and how its battery is, where the system tells.

Watts come from the battery while it is discharged (that is all the machine draws), from the energy counters of the
processor (RAPL), or from the GPU if that is what computes. Nothing here fails: what is not known is None.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from fedarena.profiling.statistics import Clock
from fedarena.profiling.system_files import as_number, entries, output_of, read_number, read_text

SYSTEM = Path("/sys")
BATTERY = "battery"
_SECONDS_BETWEEN_READINGS = 0.2
# Asking Termux or nvidia-smi starts a process, which costs power itself.
_SECONDS_BETWEEN_QUESTIONS = 1.0
# The least a machine that is on can draw. Some phones tell milliamperes where microamperes are meant.
_LEAST_MICROAMPERES = 10_000
_POSSIBLE_CELSIUS = (1, 150)


@dataclass(frozen=True)
class Battery:
    """How a battery is; `watts` is what it gives, and not known while it is charged."""

    percent: float | None = None
    status: str | None = None
    celsius: float | None = None
    watts: float | None = None


def read_battery(system: Path = SYSTEM) -> Battery | None:
    """The machine's battery, if it has one: what the kernel tells, or Termux on a phone that keeps it from programs."""
    batteries = [
        _from_kernel(supply)
        for supply in entries(system / "class" / "power_supply")
        # A battery of scope "Device" is that of a mouse or a pen.
        if read_text(supply / "type") == "Battery" and read_text(supply / "scope") != "Device"
    ]
    if batteries:  # of several, one after the other is used up
        return next((battery for battery in batteries if battery.watts is not None), batteries[0])
    return parse_termux(output_of(["termux-battery-status"]))


def _from_kernel(supply: Path) -> Battery:
    tenths = read_number(supply / "temp")
    status = read_text(supply / "status")
    microwatts = read_number(supply / "power_now")
    watts = None if microwatts is None else abs(microwatts) / 1e6
    if watts is None:
        microvolts = read_number(supply / "voltage_now")
        watts = _watts(read_number(supply / "current_now"), None if microvolts is None else microvolts / 1e6)
    return Battery(
        read_number(supply / "capacity"),
        status,
        None if tenths is None else tenths / 10,
        watts if _is_discharging(status) else None,
    )


def parse_termux(text: str | None) -> Battery | None:
    """What ``termux-battery-status`` prints; newer versions tell millivolts, without which power is not known."""
    try:
        told = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(told, dict) or "percentage" not in told:
        return None
    status = str(told.get("status"))
    millivolts = as_number(told.get("voltage"))
    watts = _watts(as_number(told.get("current")), None if millivolts is None else millivolts / 1000)
    return Battery(
        as_number(told["percentage"]),
        status.capitalize(),
        as_number(told.get("temperature")),
        watts if _is_discharging(status) else None,
    )


def _is_discharging(status: str | None) -> bool:
    return (status or "").lower() == "discharging"


def _watts(microamperes: float | None, volts: float | None) -> float | None:
    if not microamperes or not volts:
        return None
    amperes = abs(microamperes) / 1e6
    return volts * (amperes if abs(microamperes) >= _LEAST_MICROAMPERES else 1000 * amperes)


def hottest_celsius(system: Path = SYSTEM) -> float | None:
    """The temperature of the hottest part that tells one; sensors that are not there tell impossible ones."""
    zones = [read_number(zone / "temp") for zone in entries(system / "class" / "thermal")]
    least, most = _POSSIBLE_CELSIUS
    return max((zone / 1000 for zone in zones if zone is not None and least <= zone / 1000 <= most), default=None)


def describe_conditions(system: Path = SYSTEM) -> dict[str, Any]:
    """Battery and temperatures at this moment."""
    battery = read_battery(system) or Battery()
    return {
        "battery_percent": battery.percent,
        "battery_status": battery.status,
        "battery_celsius": battery.celsius,
        "hottest_celsius": hottest_celsius(system),
    }


class PowerMeter(Protocol):
    """Something that tells how many watts were drawn on average since it was started."""

    source: str

    def start(self) -> None:
        """From now on."""

    def stop(self) -> float | None:
        """Until now."""


class SampledPower:
    """The mean of watts that are read again and again by a thread."""

    def __init__(self, source: str, read_watts: Callable[[], float | None], every_seconds: float):
        self.source = source
        self._read, self._every_seconds = read_watts, every_seconds
        self._stopped = threading.Event()
        self._readings: list[float | None] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to read."""
        self._stopped.clear()
        self._readings = []
        self._thread = threading.Thread(target=self._go_on_reading, daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Reads once more, so that there is a reading however short the time was."""
        self._readings.append(self._read())
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        known = [watts for watts in self._readings if watts is not None]
        return sum(known) / len(known) if known else None

    def _go_on_reading(self) -> None:
        while not self._stopped.wait(self._every_seconds):
            self._readings.append(self._read())


class CountedPower:
    """The difference of counters of energy over the time between."""

    source = "rapl"

    def __init__(self, counters: Iterable[Path], clock: Clock = time.perf_counter):
        self._counters, self._clock = list(counters), clock
        self._begin = 0.0
        self._microjoules: list[float | None] = []

    def start(self) -> None:
        """Remembers the counters."""
        self._begin, self._microjoules = self._clock(), self._read()

    def stop(self) -> float | None:
        """Counters begin at 0 again after the most that they can count."""
        seconds, total = self._clock() - self._begin, 0.0
        for counter, before, after in zip(self._counters, self._microjoules, self._read(), strict=True):
            if before is None or after is None:
                return None
            total += after - before
            if after < before:
                total += read_number(counter / "max_energy_range_uj") or 0.0
        return total / 1e6 / seconds if seconds > 0 and total >= 0 else None

    def _read(self) -> list[float | None]:
        return [read_number(counter / "energy_uj") for counter in self._counters]


def find_power_meter(device: str, system: Path = SYSTEM) -> PowerMeter | None:
    """The meter that tells the most about computing on this device (cpu or cuda); None if there is none."""
    if device == "cuda":
        return None if gpu_watts() is None else SampledPower("gpu", gpu_watts, _SECONDS_BETWEEN_QUESTIONS)
    battery = read_battery(system)
    if battery is not None and battery.watts is not None:
        from_kernel = bool(entries(system / "class" / "power_supply"))
        every_seconds = _SECONDS_BETWEEN_READINGS if from_kernel else _SECONDS_BETWEEN_QUESTIONS
        return SampledPower(BATTERY, lambda: (read_battery(system) or Battery()).watts, every_seconds)
    packages = [
        zone
        for zone in entries(system / "class" / "powercap")
        # Parts of packages have a second number, and "psys" counts what packages count, too.
        if re.fullmatch(r"intel-rapl:\d+", zone.name) and (read_text(zone / "name") or "").startswith("package")
    ]
    if packages and all(read_number(package / "energy_uj") is not None for package in packages):
        return CountedPower(packages)
    return None


def gpu_watts() -> float | None:
    """What the GPU that torch uses draws, as its driver tells."""
    try:
        return torch.cuda.power_draw() / 1000
    except Exception:  # the driver's library or Python's interface to it is missing, too old, or knows no power
        identity = _gpu_identity()
        if identity is None:
            return None
    told = output_of(["nvidia-smi", f"--id={identity}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"])
    return as_number(told)


def _gpu_identity() -> str | None:
    try:
        return f"GPU-{torch.cuda.get_device_properties().uuid}"
    except (RuntimeError, AssertionError, AttributeError):
        return None
