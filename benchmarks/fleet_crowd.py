"""One round with very many participants: logistic regression on phones, with everything a run does.

python benchmarks/fleet_crowd.py [--participants 10000]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import fedarena
from store import peak_resident_bytes


def measure(participants: int, folder: Path) -> dict[str, float]:
    """The second of two rounds, so that what is done once is not counted."""
    clients = 2 * participants
    result = fedarena.run(
        name="crowd",
        federation={"name": "synthetic", "clients": clients},
        model="logistic_regression",
        fleet={"name": "uniform", "seconds_per_sample": [0.01, 0.5], "share": 0.9, "slot_seconds": 36_000},
        protocol="synchronous",
        cohort=participants,
        rounds=2,
        evaluation={"every": 2, "max_clients": 100},
        runs_folder=folder,
        progress=False,
    )
    last = result.rounds.to_pylist()[-1]
    seconds = result.timings.to_pylist()[-1]["train_seconds"]
    return {
        "clients": clients,
        "participants": last["clients"],
        "invited": last["invited"],
        "samples": last["samples"],
        "train_seconds": seconds,
        "clients_per_second": last["clients"] / seconds,
        "virtual_seconds": last["end_seconds"] - result.rounds.to_pylist()[-2]["end_seconds"],
        "peak_gigabytes": peak_resident_bytes() / 1e9,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--participants", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedarena-crowd-", dir=arguments.folder) as folder:
        print(json.dumps(measure(arguments.participants, Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
