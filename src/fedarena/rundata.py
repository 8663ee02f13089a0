"""Reading run folders, finished or not, and naming what distinguishes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from fedarena.checkpoint import TABLES, read_state, read_table_log, table_log_path
from fedarena.errors import BadInputError, DamagedFileError
from fedarena.recorder import CONFIG_FILE


@dataclass(frozen=True)
class RunData:
    """One run as it lies on disk. Runs of the same setting with different seeds share a label."""

    path: Path
    name: str
    label: str
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    status: str  # finished, diverged, interrupted, failed or running
    rounds: pa.Table
    clients: pa.Table
    timings: pa.Table


def load_run(folder: Path) -> RunData:
    """Reads a run folder; a run that was killed is read up to its last committed round."""
    if not (folder / CONFIG_FILE).exists():
        raise BadInputError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
    config = _parse(folder / CONFIG_FILE, yaml.safe_load)
    environment = _parse(folder / "environment.json", json.loads)
    summary_path = folder / "summary.json"
    summary = _parse(summary_path, json.loads) if summary_path.exists() else {"status": "running"}
    state = read_state(folder)
    if state is None:
        raise BadInputError(f"The run {folder} has no finished round yet")
    if summary["status"] == "finished":
        tables = {table: _read_parquet(folder / f"{table}.parquet") for table in TABLES}
    else:
        lengths = state["tables"]
        tables = {table: read_table_log(table_log_path(folder, table), lengths[table]) for table in TABLES}
    label = config["algorithm"]["name"]
    return RunData(folder, config["name"], label, config, environment, summary, summary["status"], **tables)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths`; a folder of runs, such as a suite's, stands for all of them."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise BadInputError(f"There is no run folder {path}")
        inside = sorted(p.parent for p in path.glob(f"[!.]*/{CONFIG_FILE}"))
        if not (path / CONFIG_FILE).exists() and not inside:
            raise BadInputError(f"{path} is not a run folder and holds none: there is no {CONFIG_FILE}")
        found += inside if not (path / CONFIG_FILE).exists() else [path]
    return found


def load_runs(paths: Iterable[Path]) -> list[RunData]:
    """Reads several runs and labels them by the settings in which they differ."""
    return label_runs([load_run(path) for path in find_runs(paths)])


def label_runs(runs: Sequence[RunData]) -> list[RunData]:
    """Gives every run a label made of its algorithm and of whatever else sets it apart."""
    flat = [flatten_settings(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings if key not in ("name", "seed"))
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    by_algorithm: dict[str, set[str]] = {}
    for settings in flat:
        rest = repr([settings.get(key) for key in differing if key != "algorithm.name"])
        by_algorithm.setdefault(settings["algorithm.name"], set()).add(rest)
    labelled = []
    for run, settings in zip(runs, flat, strict=True):
        algorithm = settings["algorithm.name"]
        label = algorithm
        if len(by_algorithm[algorithm]) > 1:
            mine = [s for s in flat if s["algorithm.name"] == algorithm]
            for key in differing:
                if key in settings and len({repr(s.get(key)) for s in mine}) > 1:
                    value = settings[key]
                    label += f" {value}" if key.endswith(".name") else f" {key.split('.')[-1]}={value}"
        labelled.append(replace(run, label=label))
    return labelled


def flatten_settings(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _parse(path: Path, parse: Any) -> dict[str, Any]:
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DamagedFileError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} is damaged: it does not hold named values")
    return value


def _read_parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from None
