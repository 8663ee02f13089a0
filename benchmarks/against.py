"""Is this checkout as fast as another one? FedArena alone on the workloads of the speed benchmark, taking turns.

    git worktree add ../before COMMIT
    python benchmarks/against.py ../before --repetitions 3

Ratios are of the medians of clients per second, this checkout's to the other's; above 1, this one is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from protocol import MARK
from workloads import NAMES

HERE = Path(__file__).parent.parent


def clients_per_second(tree: Path, workload: str, seconds: float) -> float:
    """What a checkout reaches in a process of its own."""
    script = str(tree / "benchmarks" / "ours_speed.py")
    command = [sys.executable, script, f"--workload={workload}", f"--seconds={seconds}"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    answer = next(line for line in printed.splitlines() if line.startswith(MARK))
    return float(json.loads(answer.removeprefix(MARK))["clients_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of every measurement")
    given = parser.parse_args()
    for workload in given.workloads:
        before, now = [], []
        for _ in range(given.repetitions):
            before.append(clients_per_second(given.other.absolute(), workload, given.seconds))
            now.append(clients_per_second(HERE.absolute(), workload, given.seconds))
        other, this = statistics.median(before), statistics.median(now)
        print(f"{workload}: {this:,.0f} clients/s, before {other:,.0f}, ratio {this / other:.3f}", flush=True)


if __name__ == "__main__":
    main()
