"""Phones at scale: is a fleet of a million made and opened quickly, and does a round cost what its cohort costs?

    python benchmarks/fleet.py [--output result.json] [--phones 1000000] [--rounds 1000] [--repetitions 3]

Three parts, everything in fresh processes: making, saving and opening a fleet (`fleet_build.py`); rounds without
training for many clients beside few (`fleet_rounds.py`); and a real round of logistic regression with ten thousand
participants (`fleet_crowd.py`). The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import fleet_build
import fleet_rounds
from store import environment
from targets import Measurement, conclude, show_targets

REPETITIONS = 3
PARTICIPANTS = 10_000


def in_fresh_process(script: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


def measure_rounds(few: int, many: int, rounds: int, repetitions: int) -> tuple[list[Measurement], dict[str, Any]]:
    """Medians of repetitions in which few and many clients take turns."""
    each: dict[int, list[dict[str, Any]]] = {few: [], many: []}
    for _ in range(repetitions):
        for clients, results in each.items():
            results.append(in_fresh_process("fleet_rounds.py", "--clients", clients, "--rounds", rounds))
    targets, facts = [], {}
    for protocol in fleet_rounds.OPTIONS:
        seconds = {
            clients: statistics.median(result[protocol]["seconds"] for result in results)
            for clients, results in each.items()
        }
        targets += [
            Measurement(f"{protocol}: {rounds:,} rounds of {many:,} clients", seconds[many], 10, "s"),
            Measurement(f"{protocol}: as a multiple of {few:,} clients", seconds[many] / seconds[few], 2, "x"),
        ]
        facts[protocol] = {**each[many][0][protocol], "seconds": seconds}
    return targets, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phones", type=int, default=fleet_build.PHONES)
    parser.add_argument("--few", type=int, default=fleet_rounds.FEW_CLIENTS)
    parser.add_argument("--rounds", type=int, default=fleet_rounds.ROUNDS)
    parser.add_argument("--participants", type=int, default=PARTICIPANTS)
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of what is short; medians count")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedarena-fleet-") as folder:
        targets, facts = fleet_build.measure(Path(folder), arguments.phones, arguments.repetitions)
        fleet_build.show(targets, facts)
        round_targets, round_facts = measure_rounds(
            arguments.few, arguments.phones, arguments.rounds, arguments.repetitions
        )
        show_targets(
            "Rounds without training, a cohort of 100",
            round_targets,
            f"Medians of {arguments.repetitions}; few and many clients in turn.",
        )
        crowd = in_fresh_process("fleet_crowd.py", "--participants", arguments.participants, "--folder", folder)
    print(
        f"One round of logistic regression with {crowd['participants']:,} participants: "
        f"{crowd['train_seconds']:.1f} s, peak resident memory {crowd['peak_gigabytes']:.2f} GB"
    )
    targets += round_targets
    everything = {**facts, "rounds": round_facts, "crowd": crowd}
    return conclude(targets, everything, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
