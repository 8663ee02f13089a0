"""A measured device on the screen."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from fedarena.core.console import as_markup, titled_table
from fedarena.display.drawing.units import BITS_PER_SECOND, BYTES, FLOPS, JOULES, SECONDS, count, quantity, significant

_FLOPS_PER_SECOND = tuple((size, f"{unit}/s") for size, unit in FLOPS)
_JOULES = ((1e-6, "µJ"), (1e-3, "mJ"), *JOULES)
_SECONDS = ((1e-6, "µs"), *SECONDS)


def models_table(record: dict[str, Any]) -> Table:
    """How fast models were trained."""
    compute = record["compute"]
    where = "GPU" if compute["device"] == "cuda" else f"CPU, {count(compute['threads'], 'thread')}"
    samples = count(record["models"][0]["batch_size"], "sample")
    table = titled_table(f"Training steps of {samples} ({where})")
    table.add_column("model", style="bold")
    for title in ("step", "±", "sample", "speed", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in record["models"]:
        step = entry["seconds_per_step"]
        table.add_row(
            as_markup(entry["model"]),
            quantity(step["mean"], _SECONDS),
            quantity(step["std"], _SECONDS),
            quantity(entry["seconds_per_sample"]["mean"], _SECONDS),
            quantity(entry["flops_per_second"], _FLOPS_PER_SECOND),
            quantity(entry["gpu_memory_bytes"] or entry["memory_growth_bytes"], BYTES),
        )
    return table


def other_lines(record: dict[str, Any]) -> list[str]:
    """Power and network."""
    power, network = record["power"], record["network"]
    if power is None:
        lines = ["Power: not known"]
    else:
        lines = [f"Power (from: {power['source']}): {significant(power['idle_watts'])} W when idle"]
        for entry in record["models"]:
            energy = quantity(entry["joules_per_sample"], _JOULES)
            lines.append(f"  {entry['model']}: {significant(entry['watts'])} W, {energy} a sample")
    if network is not None:
        down, up = (network[direction][-1]["bits_per_second"] for direction in ("download", "upload"))
        lines.append(
            f"Network: {quantity(down, BITS_PER_SECOND)} down, {quantity(up, BITS_PER_SECOND)} up, "
            f"latency {quantity(network['latency_seconds']['median'], _SECONDS)}"
        )
    return lines
