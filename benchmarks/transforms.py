"""What privacy costs a round: clipping, noise and accounting, beside the same round without.

    python benchmarks/transforms.py [--output result.json] [--cohort 100] [--rounds 20] [--models MLP CNN]

The MLP and the CNN of the speed benchmark on made-up samples, cohorts of a fixed size, the same clients in all ways.
The ways take turns, round by round, and the medians of their times are compared; the first rounds of each, in which
engines get ready, do not count. Evaluation is left out. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.runs.building import GivenParts, prepare
from fedarena.runs.config import resolve
from fedarena.runs.observer import Observer
from fedarena.simulate import RoundOutcome, simulate
from store import environment
from targets import Measurement, conclude, show_targets
from workloads import CNN, MLP, SAMPLES, Model

CLIENTS = 200
WARM_UP_ROUNDS = 3
LIMIT = 1.10
MODELS: dict[str, Model] = {"MLP": MLP, "CNN": CNN}  # those of the speed benchmark
OPTIONS: dict[str, dict[str, Any]] = {
    "MLP": {"name": "mlp", "hidden": [MLP.hidden]},
    "CNN": {"name": "cnn", "channels": list(CNN.channels), "hidden": CNN.hidden},
}
WAYS: dict[str, dict[str, Any]] = {
    "without": {"name": "none"},
    "flat": {"name": "gaussian", "noise_multiplier": 1.0, "clip_norm": 0.1},
    "per layer": {"name": "gaussian", "noise_multiplier": 1.0, "clipping": "per_layer", "clip_norm": 0.1},
    "adaptive": {"name": "gaussian", "noise_multiplier": 1.0, "clipping": "adaptive", "clip_norm": 0.1},
}


def made_up_clients(model: Model, folder: Path) -> Federation:
    """Clients with samples of noise: how long a round takes does not depend on what is in them."""
    random = np.random.default_rng(0)
    task = TaskSpec(kind="classification", classes=model.classes)
    columns = {"x": ColumnSpec(dtype="float32", shape=model.input_shape), "y": ColumnSpec(dtype="int64")}
    with FederationWriter(folder, name=model.kind, task=task, columns=columns) as writer:
        for number in range(CLIENTS):
            x = random.normal(size=(SAMPLES, *model.input_shape)).astype(np.float32)
            writer.add_client(f"client {number}", train={"x": x, "y": random.integers(model.classes, size=SAMPLES)})
    return Federation.open(folder)


def rounds_of(federation: Any, model: dict[str, Any], privacy: dict[str, Any], options: Any) -> Iterator[RoundOutcome]:
    """The rounds of a run that is not written down."""
    config = resolve(
        {
            "model": model,
            "privacy": privacy,
            "cohort": options.cohort,
            "rounds": options.rounds + WARM_UP_ROUNDS,
            "local": {"epochs": 1, "batch_size": 10, "lr": 0.05},
            "evaluation": {"every": 10**6, "max_clients": 1, "part": "train"},
            "engine": {"name": "cohort", "device": "cpu"},
        }
    )
    experiment = prepare(config, Observer(), GivenParts(federation=federation))
    return simulate(experiment.simulation)


def measure(federation: Any, model: dict[str, Any], options: Any) -> dict[str, list[float]]:
    """Seconds of every round of every way; the ways take turns."""
    running = {way: rounds_of(federation, model, privacy, options) for way, privacy in WAYS.items()}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for outcomes in running.values():
        next(outcomes)  # the untrained model
    for round in range(options.rounds + WARM_UP_ROUNDS):
        for way, outcomes in running.items():
            outcome = next(outcomes)
            if round >= WARM_UP_ROUNDS:
                seconds[way].append(outcome.train_seconds)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    targets, facts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            federation = made_up_clients(MODELS[name], Path(folder) / name)
            seconds = measure(federation, OPTIONS[name], options)
            medians = {way: statistics.median(values) for way, values in seconds.items()}
            facts[name] = {"median_seconds": medians, "seconds": seconds}
            targets += [
                Measurement(f"{name}: a round with {way} clipping", medians[way] / medians["without"], LIMIT, "x")
                for way in WAYS
                if way != "without"
            ]
    remark = f"Beside the same rounds without, cohorts of {options.cohort}; medians of {options.rounds} rounds each."
    show_targets("What privacy costs", targets, remark)
    return conclude(targets, facts, environment(), options.output)


if __name__ == "__main__":
    sys.exit(main())
