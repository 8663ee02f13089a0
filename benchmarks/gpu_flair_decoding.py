"""How long a GPU waits for pictures that are decoded: rounds of FLAIR's work on JPEGs of 256 pixels in a store.

    python benchmarks/gpu_flair_decoding.py [--cohorts 4] [--precision tf32] [--output gpu_flair_decoding.json]

Cohorts of 200 users train ResNet-18 at 224 pixels for 2 epochs, in rounds that are simulated as in a run: while one
trains, the pictures of the next are read. Once to make the programs; then with nobody's pictures on the GPU, so that
JPEGs are read from the store, decoded by all cores and copied there; then with all pictures there. What a round takes
longer without them is what the GPU waits. Nobody can read ahead of the first round, which is reported by itself. The
exit code is 1 if the GPU waits for more than a fifth of another round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ["FEDARENA_DECODED_MEGABYTES"] = "0"  # read when the first picture is

import numpy as np
import torch

from fedarena.algorithms import FedAvg
from fedarena.core import streams
from fedarena.data import Federation
from fedarena.data.store.side_by_side import decoding_threads
from fedarena.train import CohortEngine
from fedarena.train.resident import ResidentSamples
from flair_reading import build
from gpu_flair import SEED, STORED, flair, make_rounds, make_task, say, timed
from store import environment
from targets import Measurement, conclude, show_targets

COHORT = 200
MOST_WAITING = 0.2
MOST_RESIDENT_BYTES = 1 << 35


def measure(federation: Federation, cohorts: int, options: dict[str, Any]) -> tuple[list[Measurement], dict[str, Any]]:
    """The same rounds three times."""
    work, algorithm = flair(COHORT), FedAvg()
    algorithm.prepare(federation.num_clients, work.local)
    engine = CohortEngine(make_task(work), algorithm, work.local, federation, SEED, device="cuda", **options)
    say("the store is built")

    def seconds_of_rounds() -> list[float]:
        run = make_rounds(engine, federation.num_clients, COHORT)
        return [timed(run, 1) for _ in range(cohorts)]

    say(f"rounds that make programs: {seconds_of_rounds()} s")
    engine.training_samples = ResidentSamples(federation, engine.device, MOST_RESIDENT_BYTES)
    decoding, resident = seconds_of_rounds(), seconds_of_rounds()
    first, *waiting = (1 - there / first_seen for first_seen, there in zip(decoding, resident, strict=True))
    order = streams.generator(SEED, "shuffled", 0).permutation(federation.num_clients)
    pictures = [int(federation.counts(some, "train").sum()) for some in np.split(order, cohorts)]
    targets = [Measurement("share of a round that the GPU waits for pictures", max(waiting), MOST_WAITING, "")]
    facts = {
        "users_of_a_cohort": COHORT,
        "pictures_of_cohorts": pictures,
        "seconds_decoding": decoding,
        "seconds_resident": resident,
        "median_share_waiting": statistics.median(waiting),
        "share_waiting_first_round": first,
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
