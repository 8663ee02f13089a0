"""How much of their speed clients of very different sizes keep on one GPU, beside as many clients of equal sizes.

    python benchmarks/gpu_ragged.py
    python benchmarks/gpu_ragged.py --models "CIFAR CNN" --cohorts 512 2048 8192

The work is that of ``benchmarks/gpu_speed.py``: 50 samples a client, in batches of 10, or as many on average in clients
of log-normal sizes (sigma 2), for each of these cohorts. Every speed is the best of two measurements. All get ready at
the same time, each in a process of its own, and are then measured one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from gpu_speed import ALL_CASES, InTurn, make_ours, measure

COHORTS = {"MLP": (2048, 8192), "CIFAR CNN": (512, 2048), "LEAF CNN": (256, 1024)}
KINDS = {"equal": ", 5 x 10", "ragged": ", ragged"}
REPETITIONS = 2


def measure_in_turn(case: str, cohort: int, precision: str, seconds: float) -> None:
    """Gets ready, and measures a case with a cohort of another size when it is told to."""
    run = make_ours(replace(ALL_CASES[case], cohort=cohort), {"precision": precision})
    run(1)
    print("ready", flush=True)
    input()
    print(json.dumps({"clients_per_second": max(measure(run, cohort, seconds) for _ in range(REPETITIONS))}))


def described(found: dict[str, dict[str, Any] | None]) -> str:
    """What was found of equal and of log-normal sizes."""
    equal, ragged = (row["clients_per_second"] if row else float("nan") for row in found.values())
    return f"{equal:,.0f} a second of equal sizes, {ragged:,.0f} of log-normal sizes, which keep {ragged / equal:.0%}"


def main() -> int:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(COHORTS), default=list(COHORTS))
    parser.add_argument("--cohorts", type=int, nargs="+", help="how many clients train in a round")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--seconds", type=float, default=0.5, help="of every measurement")
    parser.add_argument("--in-turn", nargs=2, metavar=("CASE", "COHORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_turn:
        case, cohort = arguments.in_turn
        measure_in_turn(case, int(cohort), arguments.precision, arguments.seconds)
        return 0
    how = ("--precision", arguments.precision, "--seconds", str(arguments.seconds))
    waiting = {
        (model, cohort): {
            kind: InTurn(__file__, *how, "--in-turn", model + of_case, str(cohort)) for kind, of_case in KINDS.items()
        }
        for model in arguments.models
        for cohort in arguments.cohorts or COHORTS[model]
    }
    for both in waiting.values():
        for one in both.values():
            one.wait()
    for (model, cohort), both in waiting.items():
        found = {kind: one.measure() for kind, one in both.items()}
        print(f"{model}, {cohort:,} clients: {described(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
