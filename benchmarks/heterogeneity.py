"""Heterogeneity metrics: how much faster than a plain loop are they, and what do 100,000 clients cost?

    python benchmarks/heterogeneity.py [--output result.json] [--clients 100000] [--case FOLDER NUMBER]

All six metrics of a hundred clients, one repetition with the options of FLHetBench's published code: a plain loop and
the fast path take turns. Before, with the same random numbers, both must have found the same values. The fleet is
`flash`; with --case also a published one, from a folder with FLHetBench's files. Then all six of many clients of
`flash` with the paper's options, one repetition, in a fresh process. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.heterogeneity import CODE_OPTIONS, PAPER_OPTIONS, in_order, measure_heterogeneity
from heterogeneity_plain import PlainFleet
from store import environment, peak_resident_bytes
from targets import Measurement, conclude, show_targets

FEW_CLIENTS = 100
MANY_CLIENTS = 100_000
REPETITIONS = 3


def published_case(folder: Path, number: int) -> Fleet:
    files = {"timers": "cached_timers", "states": f"state_case{number}", "devices": f"device_case{number}"}
    options = {f"{kind}_file": str(folder / f"{name}.json") for kind, name in files.items()}
    return load_fleet({"name": "flhetbench", **options}, FEW_CLIENTS)


def side_by_side(fleet: Fleet, rounds: int, trips: int, repetitions: int) -> dict[str, Any]:
    """Seconds of both ways in turn, and the values that both found."""
    published = replace(CODE_OPTIONS, rounds=rounds, trips=trips)
    options = replace(published, random_numbers="keyed")
    phones, clients = in_order(fleet), np.arange(len(fleet.devices))
    found = {name: value.mean for name, value in measure_heterogeneity(phones, clients, published).metrics.items()}
    seconds: dict[str, list[float]] = {"plain": [], "searching": [], "fast": []}
    for _ in range(repetitions):
        for way in ("plain", "searching"):
            begin = time.perf_counter()
            values = PlainFleet(fleet, published, searches=way == "searching").metrics()
            seconds[way].append(time.perf_counter() - begin)
            for name, value in values.items():
                if not np.isclose(value, found[name], rtol=1e-9):
                    raise SystemExit(f"{name} is {found[name]}, but the {way} loop finds {value}")
        begin = time.perf_counter()
        measure_heterogeneity(phones, clients, options)
        seconds["fast"].append(time.perf_counter() - begin)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {**{f"{way}_seconds": value for way, value in medians.items()}, "values": found}


def many(clients: int, rounds: int, trips: int) -> dict[str, Any]:
    fleet = load_fleet("flash", clients)
    before = peak_resident_bytes()
    options = replace(PAPER_OPTIONS, repetitions=1, rounds=rounds, trips=trips)
    begin = time.perf_counter()
    found = measure_heterogeneity(in_order(fleet), np.arange(clients), options)
    return {
        "clients": clients,
        "seconds": time.perf_counter() - begin,
        "peak_gigabytes": peak_resident_bytes() / 1e9,
        "peak_gigabytes_before": before / 1e9,
        "values": {name: value.mean for name, value in found.metrics.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=MANY_CLIENTS, help="of the large fleet")
    parser.add_argument("--rounds", type=int, default=PAPER_OPTIONS.rounds)
    parser.add_argument("--trips", type=int, default=PAPER_OPTIONS.trips)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="of the comparison; medians count")
    parser.add_argument("--case", nargs=2, metavar=("FOLDER", "NUMBER"), help="a published case, from these files")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--only-many", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only_many:
        print(json.dumps(many(arguments.clients, arguments.rounds, arguments.trips)))
        return 0
    fleets = {"flash": load_fleet("flash", FEW_CLIENTS)}
    if arguments.case:
        fleets[f"case {arguments.case[1]}"] = published_case(Path(arguments.case[0]), int(arguments.case[1]))
    targets, facts = [], {}
    for name, fleet in fleets.items():
        facts[name] = side_by_side(fleet, arguments.rounds, arguments.trips, arguments.repetitions)
        share = facts[name]["fast_seconds"] / facts[name]["plain_seconds"]
        what = f"all six of {FEW_CLIENTS} clients of {name}, as a share of the plain loop"
        targets.append(Measurement(what, share, 0.1, "x"))
    command = [sys.executable, __file__, "--only-many", *sys.argv[1:]]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    large = json.loads(finished.stdout.splitlines()[-1])
    facts["many"] = large
    targets += [
        Measurement(f"all six of {large['clients']:,} clients of flash", large["seconds"], 30, "s"),
        Measurement("peak resident memory of that, with the fleet", large["peak_gigabytes"], 2, "GB"),
    ]
    compared = "; ".join(
        f"{name} {' / '.join(format(facts[name][f'{way}_seconds'], '.2f') for way in ('plain', 'searching', 'fast'))} s"
        for name in fleets
    )
    show_targets(
        "Heterogeneity metrics",
        targets,
        "The target is about a loop that looks things up as the published code does. Medians of "
        f"{arguments.repetitions} for that loop / for one that searches by halves / for the fast path: {compared}.",
    )
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
