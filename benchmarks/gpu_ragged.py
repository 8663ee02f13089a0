"""How much of their speed clients of very different sizes keep on one GPU, beside as many clients of equal sizes.

    python benchmarks/gpu_ragged.py MLP 2048 8192
    python benchmarks/gpu_ragged.py "CIFAR CNN" 512 2048
    python benchmarks/gpu_ragged.py "LEAF CNN" 256 1024

The work is that of ``benchmarks/gpu_speed.py``: 50 samples a client, in batches of 10, or as many on average in clients
of log-normal sizes (sigma 2), for each of these cohorts. Every speed is the best of two measurements in this process.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from gpu_speed import ALL_CASES, RAGGED, make_ours, measure

KINDS = {"equal": ", 5 x 10", "ragged": ", ragged"}
REPETITIONS = 2


def clients_per_second(name: str, cohort: int, precision: str, seconds: float) -> float:
    """Of a case, with a cohort of another size."""
    run = make_ours(replace(ALL_CASES[name], cohort=cohort), {"precision": precision})
    found = max(measure(run, cohort, seconds) for _ in range(REPETITIONS))
    del run
    torch.cuda.empty_cache()
    return found


def main() -> int:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=[name.removesuffix(KINDS["ragged"]) for name in RAGGED])
    parser.add_argument("cohorts", type=int, nargs="+", help="how many clients train in a round")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--seconds", type=float, default=0.5, help="of every measurement")
    arguments = parser.parse_args()
    for cohort in arguments.cohorts:
        equal, ragged = (
            clients_per_second(arguments.model + kind, cohort, arguments.precision, arguments.seconds)
            for kind in KINDS.values()
        )
        print(
            f"{arguments.model}, {cohort:,} clients: {equal:,.0f} a second of equal sizes, {ragged:,.0f} of log-normal "
            f"sizes, which keep {ragged / equal:.0%}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
