"""Worlds of a few phones, to see what protocols do in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena.fleet import Availability, Devices, Fleet
from fedarena.simulate.phones import Load, Phones
from fedarena.simulate.selectors import SELECTORS
from fedarena.simulate.world import World

MODEL_BYTES = 1000


def make_world(
    seconds: list[float],
    intervals: list[list[tuple[int, int]]] | None = None,
    *,
    period: int = 1000,
    selector: str = "uniform",
    always_on: bool = False,
    leaving: str = "abort",
    crash_rate: float = 0.0,
    overhead_seconds: float = 0.0,
    seed: int = 0,
) -> World:
    """A phone for every entry of `seconds`: what it takes to download, to upload, and (ten samples) to train, each."""
    count = len(seconds)
    each = np.asarray(seconds, dtype=np.float64)
    devices = Devices.from_columns(
        seconds_per_sample=each / 10,
        download_bits_per_second=8 * MODEL_BYTES / each,
        upload_bits_per_second=8 * MODEL_BYTES / each,
        compute_watts=np.full(count, 2.0),
        radio_watts=np.full(count, 1.0),
    )
    if intervals is None:
        availability = Availability.always(count)
    else:
        flat = [(row, start, end) for row, slots in enumerate(intervals) for start, end in slots]
        rows, starts, ends = (np.array([entry[i] for entry in flat], dtype=np.int64) for i in range(3))
        availability = Availability.from_intervals(rows, starts, ends, np.full(count, period))
    clients = np.arange(count)
    fleet = Fleet("small", devices, availability, paired=True).match(clients, None, seed=0)
    # Client i has phone i, whatever the seed says.
    fleet.device_of[:] = fleet.availability_of[:] = clients
    load = Load(MODEL_BYTES, MODEL_BYTES, 1.0, lambda clients, shares: np.full(len(clients), 10))
    chosen = SELECTORS.get(selector)()
    world = World(
        seed=seed,
        clients=clients,
        samples=lambda clients: 1 + clients % 7,
        selector=chosen,
        phones=Phones(fleet, load, seed, always_on, leaving, crash_rate),  # type: ignore[arg-type]
        overhead_seconds=overhead_seconds,
    )
    chosen.prepare(clients, world.samples, 3, seed)
    return world


def play(protocol: Any, world: World, rounds: int, cohort: int) -> list[Any]:
    """The plans of the first rounds."""
    from fedarena.simulate import Clock

    protocol.prepare(cohort, len(world.clients))
    clock, plans = Clock(), []
    for round in range(1, rounds + 1):
        plan = protocol.play(round, clock, world)
        plans.append(plan)
        clock = plan.clock
    return plans
