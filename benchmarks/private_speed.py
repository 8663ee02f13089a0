"""Private rounds beside pfl-research's: is the advantage in speed kept with clipping and noise?

    python benchmarks/private_speed.py [--workloads mlp cnn] [--repetitions 3] [--output result.json]

The work of the speed benchmark, with its environments and in fresh processes. Both tools run without privacy, with a
fixed clipping norm, and with an adapted one, in turn. The exit code is 1 if an advantage is less than 0.9 times the one
without privacy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from speed import BENCH, run_tool, say
from store import environment
from targets import Measurement, conclude, show_targets
from tools import OURS, TOOLS, prepare_environment

KINDS = ("none", "gaussian", "adaptive")
PEER = "pfl"
LEAST = 0.9  # of the advantage without privacy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    pythons = {tool: prepare_environment(tool, BENCH, say) for tool in (OURS, PEER)}
    usual = {tool: TOOLS[tool] for tool in pythons}
    targets, facts = [], {}
    for workload in arguments.workloads:
        speeds: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.repetitions):
            for kind in KINDS:
                for tool, python in pythons.items():
                    TOOLS[tool] = replace(usual[tool], arguments=("--privacy", kind))
                    found = run_tool(python, tool, workload, arguments.seconds)
                    speeds.setdefault((tool, kind), []).append(float(found["clients_per_second"]))
        medians = {key: statistics.median(found) for key, found in speeds.items()}
        advantages = {kind: medians[OURS, kind] / medians[PEER, kind] for kind in KINDS}
        facts[workload] = {f"{tool} {kind}": speed for (tool, kind), speed in medians.items()} | advantages
        for kind in KINDS[1:]:
            lost = advantages["none"] / advantages[kind]
            targets.append(Measurement(f"{workload}: advantage without over with {kind}", lost, 1 / LEAST, "x"))
        shown = ", ".join(f"{kind} {advantage:.2f}x" for kind, advantage in advantages.items())
        say(f"{workload}: FedArena's speed in pfl's: {shown}")
    show_targets("Is the advantage kept?", targets, "Clients per second, medians of fresh processes that take turns.")
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
