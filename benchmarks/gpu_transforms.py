"""What clipping and noise cost a round on a GPU, beside the same round without.

    python benchmarks/gpu_transforms.py --output gpu_transforms.json

Needs torch and NumPy alone, like gpu_speed.py, whose work it is. Accounting is not in it: it happens on the CPU, and
`benchmarks/transforms.py` measures it. Both simulations take turns, and the median of the ratios of a turn counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedarena.transforms import ClipAndNoise
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.clip_and_noise import Quantile
from gpu_speed import CASES, Case, make_ours, measure

TARGET = 1.1
NORM, NOISE = 1.0, 0.01
USUAL = ("logistic regression, 5 x 10", "MLP, 5 x 10", "CIFAR CNN, 5 x 10", "LEAF CNN, 5 x 10", "ResNet-18, 5 x 16")


def private(cohort: int, adaptive: bool) -> dict[str, Any]:
    """What makes a simulation private."""
    quantile = Quantile(0.5, 0.2, cohort / 20) if adaptive else None
    transform = ClipAndNoise(norm=NORM, noise_multiplier=NOISE, clients=cohort, adaptive=quantile)
    return {"transforms": (transform,), "aggregator": FixedMean(cohort)}


def compare(case: Case, seconds: float, repetitions: int, options: dict[str, Any]) -> dict[str, list[float]]:
    """How many times as long a private round takes, for every turn."""
    runs = {
        "without": make_ours(case, options),
        "clipped": make_ours(case, options, **private(case.cohort, adaptive=False)),
        "adaptive": make_ours(case, options, **private(case.cohort, adaptive=True)),
    }
    ratios: dict[str, list[float]] = {name: [] for name in runs if name != "without"}
    for _ in range(repetitions):
        speeds = {name: measure(run, case.cohort, seconds) for name, run in runs.items()}
        for name, found in ratios.items():
            found.append(speeds["without"] / speeds[name])
    return ratios


def main() -> None:
    """Measures the cases that were asked for and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="*", default=list(USUAL), help="parts of the names of cases")
    parser.add_argument("--precision", choices=["full", "tf32", "bf16"], default="tf32")
    parser.add_argument("--seconds", type=float, default=1.5, help="of every measurement")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA GPU here")
    options = {"precision": arguments.precision, "compile": not arguments.no_compile}
    rows = []
    for name, case in CASES.items():
        if not any(part in name for part in arguments.cases):
            continue
        found = compare(case, arguments.seconds, arguments.repetitions, options)
        medians = {kind: float(np.median(ratios)) for kind, ratios in found.items()}
        rows.append({"case": name, "cohort": case.cohort, **medians, "all": found})
        shown = "  ".join(f"{kind} x{ratio:.3f}" for kind, ratio in medians.items())
        verdict = "ok" if max(medians.values()) <= TARGET else "MISSED"
        print(f"{name:30}{case.cohort:>6} clients  {shown}  {verdict}", flush=True)
        torch.cuda.empty_cache()
    if arguments.output:
        about = {
            "command": f"python benchmarks/gpu_transforms.py --repetitions {arguments.repetitions}",
            "date": datetime.date.today().isoformat(),
            "gpu": torch.cuda.get_device_name(),
            "versions": {"torch": torch.__version__, "python": platform.python_version()},
            "unit": "time of a round relative to one without privacy, median of the repetitions",
        }
        arguments.output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
