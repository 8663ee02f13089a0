"""How long a GPU waits for pictures that are decoded: rounds of FLAIR's work on JPEGs of 256 pixels in a store.

    python benchmarks/gpu_flair_decoding.py [--cohorts 4] [--precision tf32] [--output gpu_flair_decoding.json]

Cohorts of 200 users train ResNet-18 at 224 pixels for 2 epochs. Once to make the programs; then with nobody's pictures
on the GPU, so that JPEGs are read from the store, decoded by all cores and copied there; then with all pictures there.
What a round takes longer without them is what the GPU waits. The exit code is 1 if that is more than a fifth.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["FEDARENA_DECODED_MEGABYTES"] = "0"  # read when the first picture is

import numpy as np
import torch

from fedarena.algorithms import FedAvg
from fedarena.core import streams
from fedarena.data import Federation
from fedarena.data.store.side_by_side import decoding_threads
from fedarena.train import CohortEngine, Job, train_jobs
from fedarena.train.resident import ResidentSamples
from flair_reading import build
from gpu_flair import SEED, STORED, flair, make_task, say
from store import environment
from targets import Measurement, conclude, show_targets

COHORT = 200
MOST_WAITING = 0.2
MOST_RESIDENT_BYTES = 1 << 35


def seconds_of_round(engine: CohortEngine, clients: np.ndarray, broadcast: Any) -> float:
    """The training of a cohort and the sum of its updates."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    sums: dict[str, torch.Tensor] = {}
    for results in train_jobs(engine, [Job(int(client), 1) for client in clients], {0: broadcast}, {}):
        for name, rows in results.update["params"].items():
            sums[name] = sums[name] + rows.sum(0) if name in sums else rows.sum(0)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(federation: Federation, cohorts: int, options: dict[str, Any]) -> tuple[list[Measurement], dict[str, Any]]:
    """The same rounds three times."""
    work, algorithm = flair(COHORT), FedAvg()
    algorithm.prepare(federation.num_clients, work.local)
    engine = CohortEngine(make_task(work), algorithm, work.local, federation, SEED, device="cuda", **options)
    broadcast = {"params": engine.initial_params()}
    users = streams.generator(SEED, "benchmark/users").permutation(federation.num_clients)
    chosen = np.split(users, cohorts)
    say("the store is built")
    for some in chosen:
        say(f"a round that makes programs: {seconds_of_round(engine, some, broadcast):.2f} s")
    engine.training_samples = ResidentSamples(federation, engine.device, MOST_RESIDENT_BYTES)
    decoding, resident = ([seconds_of_round(engine, some, broadcast) for some in chosen] for _ in range(2))
    waiting = [1 - without / with_decoding for with_decoding, without in zip(decoding, resident, strict=True)]
    pictures = [int(federation.counts(some, "train").sum()) for some in chosen]
    targets = [Measurement("share of a round that the GPU waits for pictures", max(waiting), MOST_WAITING, "")]
    facts = {
        "users_of_a_cohort": COHORT,
        "pictures_of_cohorts": pictures,
        "seconds_decoding": decoding,
        "seconds_resident": resident,
        "median_share_waiting": statistics.median(waiting),
        "decoding_threads": decoding_threads(),
        "gpu": torch.cuda.get_device_name(),
        "engine": engine.choices,
    }
    return targets, facts


def main() -> int:
    """Builds a store, measures, and judges."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cohorts", type=int, default=4)
    parser.add_argument("--precision", choices=("full", "tf32", "bf16"), default="tf32")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    with tempfile.TemporaryDirectory() as folder:
        federation = build(Path(folder) / "store", arguments.cohorts * COHORT, STORED)
        targets, facts = measure(federation, arguments.cohorts, {"precision": arguments.precision})
    show_targets(
        "Decoding beside a GPU",
        targets,
        f"{sum(facts['pictures_of_cohorts']):,} pictures on {facts['decoding_threads']} threads; median "
        f"{facts['median_share_waiting']:.1%}; seconds {facts['seconds_decoding']} and {facts['seconds_resident']}.",
    )
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    raise SystemExit(main())
