"""A run that takes a second, and what tests do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import start_run
from fedarena.storage import checkpoint
from fedarena.storage.run_files import RunFiles

SMALL = {
    "name": "small",
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "algorithm": "fedyogi",
    "rounds": 40,
    "cohort": 4,
    "evaluation.every": 7,
}


def config(**settings: Any):
    return resolve(merge({}, SMALL | settings))


def losses(folder: Path, engine: str, name: str = "", **settings: Any) -> list[float]:
    """After every round, in float64."""
    chosen = {
        "algorithm": "fedavg",
        "rounds": 2,
        "evaluation.every": 1,
        **settings,
        "engine": {"name": engine, "dtype": "float64"},
    }
    run = start_run(config(**chosen, name=f"{engine}{name}"), folder)
    return run.rounds["loss"].to_pylist()


def client_states(folder: Path) -> dict[int, Any]:
    """What clients keep according to the last commit: layouts and bytes."""
    log = checkpoint.open_client_states(folder, checkpoint.read_state(folder))
    return {client: log.read(client) for client in sorted(log)}


def content(folder: Path) -> dict[str, Any]:
    """Everything about a run that must not depend on when or how often it was interrupted."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    tensors = (folder / "checkpoint" / state["tensors"]["file"]).read_bytes()
    names = ("rounds.parquet", "clients.parquet", "jobs.parquet", "config.yaml")
    tables = {name: (folder / name).read_bytes() for name in names}
    summary = json.loads((folder / "summary.json").read_text())
    del summary["timing"]
    return {
        "tensors": tensors,
        "client states": client_states(folder),
        "summary": json.dumps(summary).encode(),
        **tables,
    }


class StopAfter(Observer):
    """Does something in the middle of a run."""

    def __init__(self, round: int, action):
        self.round, self.action = round, action

    def finished_round(self, outcome) -> None:
        if outcome.snapshot.round == self.round:
            self.action()


def interrupt() -> None:
    raise KeyboardInterrupt


def forge(folder: Path, name: str, data: bytes) -> None:
    """Changes a file of a run as somebody would who also changes what protects it."""
    files = RunFiles.open(folder)
    files.write(name, data)
    files.write_manifest()
