"""Batteries, counters and temperatures: readers on files written here, and meters against a clock of our own."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from measured_devices import FakeClock

import fedarena.profiling.power as power_module
from fedarena.profiling.machine import processor_name
from fedarena.profiling.power import (
    Battery,
    CountedPower,
    SampledPower,
    describe_conditions,
    find_power_meter,
    hottest_celsius,
    parse_termux,
    read_battery,
)


def write_files(folder: Path, **contents: Any) -> Path:
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(f"{content}\n")
    return folder


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the files of a system that has no other programs."""
    monkeypatch.setattr(power_module, "output_of", lambda command: None)
    return tmp_path / "sys"


LAPTOP = {"type": "Battery", "capacity": 81, "status": "Discharging", "temp": 312}


@pytest.mark.parametrize(
    ("told", "watts"),
    [
        ({"power_now": 7_500_000}, 7.5),
        ({"current_now": -500_000, "voltage_now": 12_000_000}, 6.0),
        ({"current_now": 500, "voltage_now": 4_000_000}, 2.0),  # milliamperes
        ({"current_now": 500_000}, None),
        ({"power_now": 7_500_000, "status": "Charging"}, None),
        ({"power_now": "nonsense"}, None),
        ({}, None),
    ],
)
def test_batteries_that_the_kernel_knows(system: Path, told: dict[str, Any], watts: float | None) -> None:
    write_files(system / "class/power_supply/AC", type="Mains", online=0)
    write_files(system / "class/power_supply/BAT", **LAPTOP | told)
    write_files(system / "class/power_supply/A_MOUSE", type="Battery", scope="Device", capacity=7, power_now=1)
    battery = read_battery(system)
    assert battery == Battery(81.0, told.get("status", "Discharging"), 31.2, watts)
    meter = find_power_meter("cpu", system)
    assert (meter and meter.source) == (None if watts is None else "battery")


def test_of_two_batteries_the_one_in_use_counts(system: Path) -> None:
    write_files(system / "class/power_supply/BAT0", **LAPTOP | {"status": "Not charging", "power_now": 0})
    write_files(system / "class/power_supply/BAT1", **LAPTOP | {"capacity": 40, "power_now": 3_000_000})
    assert read_battery(system) == Battery(40.0, "Discharging", 31.2, 3.0)


TERMUX = '{"percentage": 85, "status": "DISCHARGING", "temperature": "22.3", "voltage": 4000, "current": -820000}'


def test_batteries_that_termux_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_termux(TERMUX) == Battery(85.0, "Discharging", 22.3, pytest.approx(3.28))
    older = '{"health": "GOOD", "percentage": 85, "status": "DISCHARGING", "temperature": 22.3, "current": 820000}'
    assert parse_termux(older) == Battery(85.0, "Discharging", 22.3, None)
    for nothing in (None, "", "{", "[]", "{}", '"text"'):
        assert parse_termux(nothing) is None
    monkeypatch.setattr(power_module, "output_of", lambda command: TERMUX)
    meter = find_power_meter("cpu", tmp_path)
    assert isinstance(meter, SampledPower)
    meter.start()
    assert meter.stop() == pytest.approx(3.28)


def test_nothing_is_known_of_a_bare_system(system: Path) -> None:
    assert read_battery(system) is None
    assert find_power_meter("cpu", system) is None
    assert set(describe_conditions(system).values()) == {None}


def test_the_hottest_part_that_is_possible(system: Path) -> None:
    for number, temperature in enumerate((41_000, 55_500, -273_000, 0, 4_000_000, "")):
        write_files(system / f"class/thermal/thermal_zone{number}", temp=temperature)
    assert hottest_celsius(system) == 55.5


def write_rapl(system: Path, energies: dict[str, tuple[str, int]]) -> None:
    for zone, (name, microjoules) in energies.items():
        folder = system / "class" / "powercap" / zone
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(name)
        (folder / "energy_uj").write_text(str(microjoules))
        (folder / "max_energy_range_uj").write_text("100000000")


def test_counters_of_processors(system: Path) -> None:
    write_rapl(
        system,
        {
            "intel-rapl:0": ("package-0", 99_000_000),
            "intel-rapl:0:0": ("core", 5),
            "intel-rapl:1": ("package-1", 10_000_000),
            "intel-rapl:2": ("psys", 0),
        },
    )
    found = find_power_meter("cpu", system)
    assert isinstance(found, CountedPower)
    assert [path.name for path in found._counters] == ["intel-rapl:0", "intel-rapl:1"]
    meter = CountedPower(found._counters, FakeClock(2.0))
    meter.start()
    # The first counter began again, which makes 4 joules; the second counted 16.
    write_rapl(system, {"intel-rapl:0": ("package-0", 3_000_000), "intel-rapl:1": ("package-1", 26_000_000)})
    assert meter.stop() == pytest.approx((4 + 16) / 2)
    meter.start()
    (system / "class/powercap/intel-rapl:1/energy_uj").unlink()
    assert meter.stop() is None
    assert find_power_meter("cpu", system) is None


def test_sampled_power_is_the_mean_of_what_is_known() -> None:
    readings = iter([4.0, None, 8.0])
    enough = threading.Event()

    def read() -> float | None:
        value = next(readings, "end")
        if value == "end":
            enough.set()
            return 6.0
        return value

    meter = SampledPower("gpu", read, every_seconds=0.001)
    meter.start()
    assert enough.wait(10)
    assert meter.stop() == pytest.approx(6.0)
    silent = SampledPower("gpu", lambda: None, every_seconds=0.001)
    silent.start()
    assert silent.stop() is None


def test_a_gpu_without_a_driver_draws_nothing_known() -> None:
    if not torch.cuda.is_available():
        assert find_power_meter("cuda") is None


@pytest.mark.parametrize(("told", "watts"), [("61.25", 61.25), ("[N/A]", None), (None, None)])
def test_a_gpu_is_asked_by_torch_or_by_its_program(
    monkeypatch: pytest.MonkeyPatch, told: str | None, watts: float | None
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="1-2-3"))
    monkeypatch.setattr(power_module, "output_of", lambda command: (asked.append(command), told)[1])
    monkeypatch.setattr(torch.cuda, "power_draw", lambda: 250_000)
    assert power_module.gpu_watts() == 250.0
    assert not asked

    def fail() -> int:
        raise ModuleNotFoundError("pynvml is not installed")

    monkeypatch.setattr(torch.cuda, "power_draw", fail)
    assert power_module.gpu_watts() == watts
    assert "--id=GPU-1-2-3" in asked[0]


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    assert processor_name(file) is None
    file.write_text("processor\t: 0\nHardware\t: Qualcomm SM8550\n")
    assert processor_name(file) == "Qualcomm SM8550"
    file.write_text("processor\t: 0\nmodel name\t: Fast CPU: the second\n")
    assert processor_name(file) == "Fast CPU: the second"
