"""How well does a simulation made of a deployed run's first rounds tell what its next rounds take?

    python benchmarks/deploy_prediction.py [--output result.json] [--report report.html] [--clients 6] [--rounds 40]

A server and clients run as processes on this machine, with TLS, on handwritten digits. Devices' records are made of the
first half of the rounds, and the same settings are simulated with a fleet of these records; clients who are invited are
then the same in every round. Compared is the second half: seconds of every round, of all of them, and of every device's
training. All clients share the cores of this machine, so how long one trains depends on who else does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fedarena
from fedarena.deploy.demo import LocalClients, set_up
from fedarena.deploy.measured import write_records
from fedarena.deploy.serving import open_server, serve
from fedarena.display import write_report
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.storage.run_data import load_runs
from store import environment


def settings(rounds: int, clients: int) -> dict[str, Any]:
    """A model that takes long enough to train to be measured."""
    return {
        "algorithm": "fedavg",
        "model": {"name": "mlp", "hidden": [512, 512]},
        "local": {"epochs": 4, "batch_size": 8},
        "rounds": rounds,
        "cohort": max(2, clients // 2),
        "evaluation": {"every": rounds},
    }


def round_seconds(run: Any, rounds: list[int]) -> np.ndarray:
    ends = dict(zip(run.rounds["round"].to_pylist(), run.rounds["end_seconds"].to_pylist(), strict=True))
    return np.array([ends[round] - ends[round - 1] for round in rounds])


def training_seconds(run: Any, rounds: list[int]) -> dict[str, float]:
    """The mean seconds of training of every client in these rounds."""
    found: dict[str, list[float]] = {}
    for job in run.jobs.to_pylist():
        if job["round"] in rounds and job["outcome"] == "used":
            found.setdefault(job["client"], []).append(job["trained_seconds"] - job["downloaded_seconds"])
    return {client: statistics.mean(each) for client, each in found.items()}


def compared(real: Any, predicted: Any, rounds: list[int]) -> dict[str, Any]:
    truth, guess = round_seconds(real, rounds), round_seconds(predicted, rounds)
    errors = np.abs(guess - truth) / truth
    of_devices = training_seconds(real, rounds), training_seconds(predicted, rounds)
    # In a simulation clients are called by their number.
    by_number = {int("".join(filter(str.isdigit, name))): seconds for name, seconds in of_devices[0].items()}
    guessed = {int("".join(filter(str.isdigit, name))): seconds for name, seconds in of_devices[1].items()}
    devices = [abs(guessed[n] - by_number[n]) / by_number[n] for n in by_number if n in guessed]
    return {
        "rounds": len(rounds),
        "real_seconds": float(truth.sum()),
        "predicted_seconds": float(guess.sum()),
        "error_of_the_sum": float(abs(guess.sum() - truth.sum()) / truth.sum()),
        "median_error_of_a_round": float(np.median(errors)),
        "correlation_over_rounds": float(np.corrcoef(truth, guess)[0, 1]),
        "median_error_of_a_device": statistics.median(devices),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=40)
    wanted = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo = set_up(folder / "deploy", wanted.clients, settings(wanted.rounds, wanted.clients))
        with LocalClients(demo) as clients:
            serve(open_server(demo.folder, demo.config, Observer()))
            clients.wait()
        (path,) = demo.folder.runs.iterdir()
        real = fedarena.load(path)
        half = wanted.rounds // 2
        records = write_records(path, folder / "records", range(2, half + 1))
        fleet = {"name": "profiles", "files": str(folder / "records"), "model": records.model, "in_order": True}
        simulated = merge(
            demo.config.to_dict(),
            {"fleet": fleet, "clock": {"overhead_seconds": records.overhead_seconds}, "name": "simulated"},
        )
        predicted = fedarena.run(simulated, runs_folder=folder / "simulated", progress=False)
        found = compared(real, predicted, list(range(half + 1, wanted.rounds + 1)))
        found["overhead_seconds"] = records.overhead_seconds
        if wanted.report is not None:
            write_report(load_runs([path, folder / "simulated" / "simulated"], print), wanted.report)
    print(json.dumps(found, indent=2))
    if wanted.output is not None:
        content = {"prediction": found, "environment": environment()}
        wanted.output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
