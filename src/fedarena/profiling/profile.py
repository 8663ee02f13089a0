"""Measuring a device as a whole: its models one after the other, then its network; the record is kept as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch

from fedarena.core.device_record import FORMAT, VERSION
from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.files import write_json
from fedarena.core.registry import nearest
from fedarena.profiling.machine import describe_machine
from fedarena.profiling.network import QUICK_PLAN, NetworkPlan, NetworkProbe
from fedarena.profiling.power import BATTERY, PowerMeter, describe_conditions, find_power_meter
from fedarena.profiling.training import Progress, data_for, measure_model
from fedarena.train.hardware import DeviceName, Hardware

DEFAULT_MODELS = ("logistic_regression", "cnn", "resnet18", "lstm", "transformer")
QUICK_MODELS = ("logistic_regression", "cnn")
DEFAULT_OUTPUT = Path("device.json")
DEFAULT_BATCH_SIZE = 16
_MAX_THREADS = 1024


@dataclass(frozen=True)
class ProfilePlan:
    """What is measured, and how thoroughly."""

    models: tuple[str, ...]
    batch_size: int
    warmup: int
    iterations: int
    power_seconds: float  # for which a machine is idle, and then trains each model, to see what it draws
    device: str
    threads: int
    network: NetworkPlan
    server: str | None
    name: str | None
    output: Path

    @classmethod
    def make(
        cls,
        models: Sequence[str] = (),
        *,
        quick: bool = False,
        batch_size: int = DEFAULT_BATCH_SIZE,
        warmup: int | None = None,
        iterations: int | None = None,
        power_seconds: float | None = None,
        device: str = "auto",
        threads: int | None = None,
        server: str | None = None,
        name: str | None = None,
        output: Path | None = None,
    ) -> ProfilePlan:
        """A complete plan: 10 steps to warm up and 100 that count; `quick` is enough to see that all works.

        Raises `BadInputError` about what is wrong, so that nobody learns it after minutes.
        """
        plan = cls(
            tuple(dict.fromkeys(models)) or (QUICK_MODELS if quick else DEFAULT_MODELS),
            batch_size,
            (1 if quick else 10) if warmup is None else warmup,
            (5 if quick else 100) if iterations is None else iterations,
            (0.5 if quick else 10.0) if power_seconds is None else power_seconds,
            device,
            torch.get_num_threads() if threads is None else threads,
            QUICK_PLAN if quick else NetworkPlan(),
            server,
            name,
            output or DEFAULT_OUTPUT,
        )
        for option, value, least in (
            ("batch-size", plan.batch_size, 1),
            ("warmup", plan.warmup, 0),
            ("iterations", plan.iterations, 1),
            ("power-seconds", plan.power_seconds, 0),
            ("threads", plan.threads, 1),
        ):
            if not least <= value < float("inf"):
                raise BadInputError(f"--{option} must be at least {least}, not {value}")
        if plan.threads > _MAX_THREADS:
            raise BadInputError(f"--threads must be at most {_MAX_THREADS}, not {plan.threads}")
        if plan.device not in get_args(DeviceName):
            raise BadInputError(f"--device cannot be {plan.device!r}; {nearest(plan.device, get_args(DeviceName))}")
        if plan.device == "cuda" and not torch.cuda.is_available():
            raise BadInputError("--device is cuda, but torch finds no CUDA GPU here; choose cpu")
        if plan.output.is_dir() or not plan.output.parent.is_dir():
            problem = "is a folder" if plan.output.is_dir() else f"is in {plan.output.parent}, which does not exist"
            raise BadInputError(f"The record cannot be written to {plan.output}, which {problem}; name a file")
        return plan


def profile_device(plan: ProfilePlan, progress: Progress) -> dict[str, Any]:
    """Measures this machine and returns the record.

    The file is written after every model and after the network, so that what has been measured is not lost, whatever
    happens. A server that cannot be reached is found out before anything else.
    """
    specs = {model: data_for(model) for model in plan.models}
    probe = None if plan.server is None else NetworkProbe(plan.server, plan.network)
    if probe is not None:
        progress("network: looking for the server", 0, 1)
        probe.ping()
    with _computing_on(plan) as device:
        meter = find_power_meter(device.type) if plan.power_seconds else None
        before = describe_conditions()
        record: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "name": plan.name,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "compute": {"device": device.type, "threads": plan.threads},
            "conditions": {"before": before, "after": before},
            "power": None if meter is None else {"source": meter.source, "idle_watts": _idle(meter, plan, progress)},
            "models": [],
            "network": None,
        }
        for model, spec in specs.items():
            with _kept(record, plan):
                measured = measure_model(
                    model,
                    spec,
                    device=device,
                    batch_size=plan.batch_size,
                    warmup=plan.warmup,
                    iterations=plan.iterations,
                    meter=meter,
                    meter_seconds=plan.power_seconds,
                    progress=progress,
                )
            record["models"].append(measured)
            _write(record, plan)
    if probe is not None:
        with _kept(record, plan):
            record["network"] = _measure_network(probe, meter, progress)
        _write(record, plan)
    return record


@contextmanager
def _computing_on(plan: ProfilePlan) -> Iterator[torch.device]:
    """Computes as engines do, and leaves threads as they were."""
    threads = torch.get_num_threads()
    hardware = Hardware(plan.device, plan.threads, "float32", "full")  # type: ignore[arg-type]
    hardware.set_up()
    try:
        yield hardware.device
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _kept(record: dict[str, Any], plan: ProfilePlan) -> Iterator[None]:
    """Adds to an error where that is which was measured before."""
    try:
        yield
    except FedArenaError as error:
        if record["models"]:
            raise type(error)(f"{error}; what was measured before is in {plan.output}") from error
        raise


def _write(record: dict[str, Any], plan: ProfilePlan) -> None:
    record["conditions"]["after"] = describe_conditions()
    write_json(plan.output, record)


def _idle(meter: PowerMeter, plan: ProfilePlan, progress: Progress) -> float | None:
    progress("power: idle", 0, 1)
    meter.start()
    try:
        time.sleep(plan.power_seconds)
    finally:
        watts = meter.stop()
    return watts


def _measure_network(probe: NetworkProbe, meter: PowerMeter | None, progress: Progress) -> dict[str, Any]:
    """The network, and what it costs if the battery tells: other meters do not see the radio."""
    if meter is None or meter.source != BATTERY:
        return {**probe.measure(progress), "watts": None}
    meter.start()
    try:
        measured = probe.measure(progress)
    finally:
        watts = meter.stop()
    return {**measured, "watts": watts}
