"""Dense layers of clients as factors, against the same rounds with all of them written down, side by side.

    python benchmarks/factored_speed.py [mlp ragged words leaf] [--seconds 2] [--repetitions 3]

`mlp` and `ragged` are those of `speed.py`. The others have a larger first layer, 5 steps of 10 samples, and fewer
clients: `words` of 10,000 x 500, as for counts of words, and `leaf` of 3,136 x 2,048, as in LEAF's CNN. Every
measurement is a process of its own, and both ways take turns. Prints clients a second, the loss after three rounds,
which must be the same up to rounding, and the most memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ours_speed import Run, write_federation
from protocol import answer, measure, read_answer
from workloads import Model, Workload, draw_labelled, make_workload

WAYS = ("written", "factored")
CLIENTS, SAMPLES = 16, 50
LARGE = {"words": Model("mlp", (10_000,), 5, hidden=500), "leaf": Model("mlp", (3_136,), 62, hidden=2_048)}
NAMES = ("mlp", "ragged", *LARGE)


def workload_of(name: str) -> Workload:
    """The work of that name."""
    if name not in LARGE:
        return make_workload(name)
    x, y = draw_labelled(LARGE[name], CLIENTS * SAMPLES, np.random.default_rng(0))
    clients = zip(np.split(x, CLIENTS), np.split(y, CLIENTS), strict=True)
    return Workload(name, "a larger first layer", LARGE[name], 0.1, tuple(clients))


def measure_here(name: str, way: str, seconds: float) -> dict[str, object]:
    """Speed and memory of one way in this process."""
    workload = workload_of(name)
    with tempfile.TemporaryDirectory(prefix="fedarena-factored-") as folder:
        federation = write_federation(workload, Path(folder) / "federation")
        run = Run(workload, federation, "cohort", dense=way)
        found = measure("fedarena", "fedarena", workload, seconds, run.run_rounds, run.loss)
    return {**found, "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(NAMES), help="which work")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", choices=WAYS, help="measure one way, in this process")
    arguments = parser.parse_args()
    if arguments.only:
        answer(measure_here(arguments.workloads[0], arguments.only, arguments.seconds))
        return 0
    for name in arguments.workloads:
        found: dict[str, list[Any]] = {way: [] for way in WAYS}
        for _ in range(arguments.repetitions):
            for way in WAYS:
                command = [sys.executable, __file__, name, "--only", way, "--seconds", str(arguments.seconds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[way].append(read_answer(done.stdout))
        speeds = {way: median(one["clients_per_second"] for one in found[way]) for way in WAYS}
        for way in WAYS:
            peak = max(one["peak_bytes"] for one in found[way]) / 2**30
            loss = found[way][0]["final_loss"]
            print(f"{name}, {way}: {speeds[way]:,.1f} clients a second, loss {loss:.5f}, peak {peak:.2f} GiB")
        print(f"{name}: factored / written = {speeds['factored'] / speeds['written']:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
