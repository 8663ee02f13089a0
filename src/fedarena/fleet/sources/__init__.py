"""Where fleets come from, one file per source; importing this package registers them."""

from fedarena.fleet.sources import (
    ai_benchmark,
    alike,
    combined,
    dpcsm,
    dpgmm,
    fedscale,
    fedscale_files,
    file,
    flash,
    flhetbench_files,
    ideal,
    mobiperf,
    profiles,
    state_traces,
    table,
    uniform,
)

__all__ = [
    "ai_benchmark",
    "alike",
    "combined",
    "dpcsm",
    "dpgmm",
    "fedscale",
    "fedscale_files",
    "file",
    "flash",
    "flhetbench_files",
    "ideal",
    "mobiperf",
    "profiles",
    "state_traces",
    "table",
    "uniform",
]
