"""What a deployed run measured of its devices, as records that the fleet `profiles` reads.

How long devices trained, downloaded and uploaded is in the table of jobs. From that a simulation can tell what further
rounds would take: of the same devices, another number of them, another protocol, or more local work.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.device_record import FORMAT, VERSION
from fedarena.core.errors import BadInputError
from fedarena.core.files import write_json
from fedarena.core.folders import new_folder
from fedarena.core.outside_text import as_file_name
from fedarena.core.sealed_json import read_sealed
from fedarena.metrics import USED
from fedarena.runs.config import read_settings, resolve
from fedarena.runs.deployed import DEPLOYED
from fedarena.simulate.scoring import SCORED_SAMPLES
from fedarena.storage.run_data import load_run
from fedarena.storage.run_files import CONFIG_FILE
from fedarena.train.systems_hooks import FORWARD_SHARE

_LEAST_SECONDS = 1e-6  # clocks tell no less
_TIMES = ("begin_seconds", "downloaded_seconds", "trained_seconds", "uploaded_seconds")


@dataclass(frozen=True)
class Written:
    """What was written."""

    devices: int
    without: int  # devices that had no job of their own to measure
    jobs: int
    model: str
    overhead_seconds: float  # that a round takes beside its jobs


def write_records(run: Path, output: Path, rounds: Sequence[int] | None = None) -> Written:
    """Writes a record for every device that may take part in a run, in the order of their numbers.

    Only jobs of some `rounds` count; None: those of all.
    """
    names = _names(run)
    data = load_run(run)
    jobs = data.jobs.filter(pc.equal(data.jobs["outcome"], USED))
    if rounds is not None:
        jobs = jobs.filter(pc.is_in(jobs["round"], pa.array(rounds, jobs["round"].type)))
    if not len(jobs):
        raise BadInputError(f"The run {run} has no job that was used, so nothing was measured of its devices")
    config = resolve(read_settings(run / CONFIG_FILE))
    model = str(config.model["name"])
    factor = float(data.environment.get("compute_factor", 1.0))  # runs of before do not say
    index = jobs["index"].to_numpy()
    without = 0
    with new_folder(output, "records") as folder:
        for place, (number, name) in enumerate(sorted(names.items())):
            own = jobs.filter(pa.array(index == number))
            without += not len(own)
            record = _record(own if len(own) else jobs, name, model, config.local.batch_size, factor)
            write_json(folder / f"{place:06d}-{as_file_name(name)}.json", record)
    return Written(len(names), without, len(jobs), model, overhead_seconds(data.rounds, jobs))


def overhead_seconds(rounds: pa.Table, jobs: pa.Table) -> float:
    """What rounds take beside their jobs, in the middle: from the end of the one before until the first job begins,
    and from the end of the last job on.
    """
    ends = dict(zip(rounds["round"].to_pylist(), rounds["end_seconds"].to_pylist(), strict=True))
    columns = {name: jobs[name].to_numpy() for name in ("round", "begin_seconds", "uploaded_seconds")}
    beside = []
    for round in np.unique(columns["round"]).tolist():
        if round - 1 not in ends or round == 1:  # before the first one, the server waits for devices
            continue
        of_round = columns["round"] == round
        worked = columns["uploaded_seconds"][of_round].max() - columns["begin_seconds"][of_round].min()
        beside.append(max(ends[round] - ends[round - 1] - float(worked), 0.0))
    return statistics.median(beside) if beside else 0.0


def _record(jobs: pa.Table, name: str, model: str, batch_size: int, factor: float) -> dict[str, Any]:
    """What these jobs tell of a device, on which the method computes so many times as long as plain training would.

    Losses that it computed beside its training took their part of the time.
    """
    begin, downloaded, trained, uploaded = (jobs[column].to_numpy() for column in _TIMES)
    work = factor * jobs["samples"].to_numpy()
    if SCORED_SAMPLES in jobs.column_names:
        work = work + FORWARD_SHARE * jobs[SCORED_SAMPLES].to_numpy()
    seconds = np.maximum(trained - downloaded, _LEAST_SECONDS)
    joules = jobs["joules"].to_numpy(zero_copy_only=False).astype(np.float64)
    known = np.isfinite(joules)
    watts = float(joules[known].sum() / seconds[known].sum()) if known.any() else None
    each = seconds / np.maximum(work, factor)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "models": [
            {
                "model": model,
                "batch_size": batch_size,
                "seconds_per_sample": {
                    "mean": float(seconds.sum() / work.sum()),
                    "median": float(np.median(each)),
                },
                "flops_per_sample": None,
                "watts": watts,
            }
        ],
        "network": {
            "download": _transfers(jobs["bytes_down"].to_numpy(), downloaded - begin),
            "upload": _transfers(jobs["bytes_up"].to_numpy(), uploaded - trained),
            "watts": None,
        },
    }


def _transfers(sizes: Any, seconds: Any) -> list[dict[str, float]]:
    """Transfers of all jobs, as if they were of one size: what counts is how long they take."""
    usual = int(np.median(sizes))
    return [
        {"bytes": usual, "seconds": took, "bits_per_second": 8 * usual / took}
        for took in np.maximum(seconds, _LEAST_SECONDS).tolist()
    ]


def _names(run: Path) -> dict[int, str]:
    path = run / DEPLOYED / "run.json"
    record = read_sealed(path, "clients")
    if record is None:
        raise BadInputError(f"{run} is not the folder of a deployed run: it has no {DEPLOYED}/run.json")
    return {int(number): str(name) for number, name in record["clients"]}
