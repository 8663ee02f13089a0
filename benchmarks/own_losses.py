"""What a loss of one's own costs, by how it is written: clients per second, on federated averaging of an MLP.

    python benchmarks/own_losses.py --output docs/benchmarks/own_losses.json

The same loss as ours, written so that it hands the batch on (padded batches), so that it looks at samples (batches of
equal size train together), and the latter on the reference engine. All take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.runs.config import resolve
from fedarena.runs.run import Run


class HandsOn(FedAvg):
    """Looks at no sample."""

    def local_loss(self, task, params, batch, client):
        return task.loss(params, batch)


class LooksAtSamples(FedAvg):
    """The obvious code."""

    def local_loss(self, task, params, batch, client):
        return F.cross_entropy(task.predict(params, batch), batch["y"])


WAYS = {
    "fedavg": ("fedavg", "cohort"),
    "own loss that calls task.loss": (HandsOn, "cohort"),
    "own loss that looks at samples": (LooksAtSamples, "cohort"),
    "the same on the reference engine": (LooksAtSamples, "reference"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of every measurement, after as many to warm up")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    total = given.rounds * (given.repetitions + 1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for way, (algorithm, engine) in WAYS.items():
            settings = {
                "federation": {"name": "synthetic", "clients": 200},
                "model": "mlp",
                "algorithm": {"name": algorithm},
                "engine": {"name": engine},
                "cohort": 100,
                "rounds": total,
                "evaluation": {"every": total},
                "name": way.replace(" ", "-"),
            }
            runs[way] = Run.create(resolve(settings), Path(folder)).advance(given.rounds)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(given.repetitions):
            for way, run in runs.items():
                began = time.perf_counter()
                run.advance(given.rounds)
                seconds[way].append(time.perf_counter() - began)
    speeds = {way: 100 * given.rounds / statistics.median(each) for way, each in seconds.items()}
    print("| loss | clients/s | ratio to fedavg |\n| --- | --- | --- |")
    for way, speed in speeds.items():
        print(f"| {way} | {speed:,.0f} | {speed / speeds['fedavg']:.2f} |")
    if given.output:
        given.output.write_text(json.dumps(speeds, indent=1) + "\n")


if __name__ == "__main__":
    main()
