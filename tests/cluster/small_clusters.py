"""Runs whose shards are many, and what tests do with them on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import Run, start_run

# Two lanes, so that the cohort is of several shards.
MANY_SHARDS: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 30}},
    "model": {"name": "mlp", "hidden": [12]},
    "rounds": 3,
    "cohort": 12,
    "seed": 3,
    "local": {"batch_size": 8, "lr": 0.05, "epochs": 2},
    "evaluation": {"every": 2},
    "engine": {"lanes": 2},
}
PHONES: dict[str, Any] = {"fleet": "fedscale", "clock": {"start_hour": 9, "crash_rate": 0.1}}


class Silent(Observer):
    """Hears warnings, and shows nothing."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def on_cluster(settings: dict[str, Any], workers: int, **options: Any) -> dict[str, Any]:
    """The same settings for a crew."""
    engine = merge({}, settings).get("engine", {})
    return {**settings, "engine": {**engine, "name": "ray", "workers": workers, **options}}


def play(settings: dict[str, Any], folder: Path, name: str) -> Path:
    """Runs it to its end; where it lies."""
    return start_run(resolve(merge({}, {**settings, "name": name})), folder, Silent()).path


def opened(settings: dict[str, Any], folder: Path, name: str, **more: Any) -> Run:
    return Run.create(resolve(merge({}, {**settings, "name": name})), folder, Silent(), **more)


def bits(folder: Path) -> dict[str, Any]:
    """Everything that must not depend on who computed it."""
    import json

    import pyarrow.parquet as pq

    from fedarena.storage import checkpoint

    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    log = checkpoint.open_client_states(folder, checkpoint.read_state(folder))
    tables = {name: pq.read_table(folder / f"{name}.parquet").to_pydict() for name in ("rounds", "clients", "jobs")}
    return {
        "tensors": (folder / "checkpoint" / state["tensors"]["file"]).read_bytes(),
        "client states": {client: log.read(client) for client in sorted(log)},
        **{name: repr(columns) for name, columns in tables.items()},
    }
