"""Runs that are there twice: the same method and seed again gives the same numbers, and counts once."""

from __future__ import annotations

from collections.abc import Sequence

from fedarena.storage.run_data import RunData


def distinct_runs(runs: Sequence[RunData]) -> list[RunData]:
    """One run for each label and seed: the first finished one, or the first where none is finished."""
    kept: dict[tuple[str, int], RunData] = {}
    for run in runs:
        key = (run.label, seed_of(run))
        replaces = run.status == "finished" and key in kept and kept[key].status != "finished"
        if key not in kept or replaces:
            kept[key] = run
    return list(kept.values())


def left_out_lines(runs: Sequence[RunData]) -> list[str]:
    """Which runs are not shown because there is another one of the same method and seed, a sentence for each."""
    kept = {run.path.resolve() for run in distinct_runs(runs)}
    again = {path: run for run in runs if (path := run.path.resolve()) not in kept}
    return [
        f"{run.name} ({run.path}) is left out: there is another run of {run.label} with seed {seed_of(run)}."
        for run in again.values()
    ]


def seed_of(run: RunData) -> int:
    """The seed that a run was started with."""
    return int(run.config["seed"])
