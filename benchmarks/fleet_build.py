"""A fleet of a million phones: is it made in a minute, in two gigabytes, and opened at once?

    python benchmarks/fleet_build.py [--output result.json] [--phones 1000000]

Makes a fleet by the source `fedscale`, whose periodic intervals come to about 37 a phone and week, saves it, and opens
it again. Beside it, as many intervals are given to `Availability.from_intervals` as a user might have them: a week
of all phones in the order of time, so that they have to be sorted by phone. Everything is measured in fresh processes,
with the files in the page cache; what is short is the median of several. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedarena.core import streams
from fedarena.fleet import Availability, Fleet, load_fleet
from store import environment, peak_resident_bytes
from targets import Measurement, conclude, show_targets

PHONES = 1_000_000
SLOTS_PER_WEEK = 37
WEEK_SECONDS = 7 * 86_400
ASKED_CLIENTS = 100
QUESTIONS = 1_000
REPETITIONS = 5


def seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def build(path: Path, phones: int) -> dict[str, float]:
    """Makes the fleet and saves it."""
    start = time.perf_counter()
    fleet = load_fleet({"name": "fedscale"}, phones)
    build_seconds = time.perf_counter() - start
    build_bytes = peak_resident_bytes()
    save_seconds = seconds_of(lambda: fleet.save(path))
    intervals = np.diff(fleet.availability.offsets)
    return {
        "build_seconds": build_seconds,
        "build_gigabytes": build_bytes / 1e9,
        "save_seconds": save_seconds,
        "save_gigabytes": peak_resident_bytes() / 1e9,
        "intervals": float(intervals.sum()),
        "intervals_per_week": float((intervals * (WEEK_SECONDS / fleet.availability.periods)).mean()),
        "mean_share": float(fleet.availability.share().mean()),
    }


def week_in_order_of_time(phones: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, starts and ends of a week: every phone comes once in each of equal parts of it, for a random while."""
    part_seconds = WEEK_SECONDS // SLOTS_PER_WEEK
    rows, starts, ends = (np.empty((SLOTS_PER_WEEK, phones), dtype=np.int32) for _ in range(3))
    for part in range(SLOTS_PER_WEEK):
        random = streams.generator(0, "benchmark/week", part)
        begins = random.integers(0, part_seconds - 2, size=phones, dtype=np.int32)
        order = np.argsort(begins)
        lengths = random.integers(1, part_seconds - 1 - begins[order], dtype=np.int32)
        rows[part], starts[part] = order, part * part_seconds + begins[order]
        ends[part] = starts[part] + lengths
    return rows.ravel(), starts.ravel(), ends.ravel()


def sort(phones: int) -> dict[str, float]:
    """Gives intervals in the order of time to `from_intervals`."""
    rows, starts, ends = week_in_order_of_time(phones)
    given_bytes = rows.nbytes + starts.nbytes + ends.nbytes
    start = time.perf_counter()
    availability = Availability.from_intervals(rows, starts, ends, np.full(phones, WEEK_SECONDS))
    sums = availability.before
    sort_seconds = time.perf_counter() - start
    kept = (availability.offsets, availability.starts, availability.ends, availability.periods, sums)
    return {
        "sort_seconds": sort_seconds,
        "sort_gigabytes": peak_resident_bytes() / 1e9,
        "sort_given_gigabytes": given_bytes / 1e9,
        "sort_kept_gigabytes": sum(array.nbytes for array in kept) / 1e9,
    }


def probe(path: Path) -> dict[str, float]:
    """Opens the fleet and uses it, in a process that did nothing else."""
    start = time.perf_counter()
    fleet = Fleet.open(path)
    open_seconds = time.perf_counter() - start
    open_bytes = peak_resident_bytes()
    clients = np.arange(len(fleet.devices))
    sizes = streams.generator(0, "benchmark/sizes").integers(1, 1_000, size=len(clients))
    start = time.perf_counter()
    matched = fleet.match(clients, sizes, seed=0, correlation=0.5)
    match_seconds = time.perf_counter() - start
    random = streams.generator(0, "benchmark/questions")
    asked = random.integers(0, len(clients), size=(QUESTIONS, ASKED_CLIENTS))
    times = random.uniform(0, 100 * WEEK_SECONDS, size=QUESTIONS)
    start = time.perf_counter()
    for some, now in zip(asked, times, strict=True):
        matched.finish_time(some, now, 600.0, "pause")
    return {
        "open_seconds": open_seconds,
        "open_megabytes": open_bytes / 1e6,
        "match_seconds": match_seconds,
        "question_microseconds": (time.perf_counter() - start) / QUESTIONS * 1e6,
    }


def in_fresh_process(part: str, path: Path, phones: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, "--folder", str(path), "--phones", str(phones)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


def measure(folder: Path, phones: int, repetitions: int = REPETITIONS) -> tuple[list[Measurement], dict[str, float]]:
    path = folder / "fleet"
    made = in_fresh_process("build", path, phones)
    in_order = in_fresh_process("sort", path, phones)
    probes = [in_fresh_process("probe", path, phones) for _ in range(repetitions)]
    opened = {key: statistics.median(probe[key] for probe in probes) for key in probes[0]}
    targets = [
        Measurement("build", made["build_seconds"], 60, "s"),
        Measurement("peak resident memory of building and saving", made["save_gigabytes"], 2, "GB"),
        Measurement("open", opened["open_seconds"], 1, "s"),
        Measurement("match every client by size and speed", opened["match_seconds"], 2, "s"),
        Measurement("sort a week of intervals in the order of time", in_order["sort_seconds"], 60, "s"),
        Measurement("peak resident memory of sorting", in_order["sort_gigabytes"], 2, "GB"),
    ]
    stored_bytes = sum(file.stat().st_size for file in path.iterdir())
    facts = {"phones": phones, "stored_megabytes": stored_bytes / 1e6, **made, **in_order, **opened}
    return targets, facts


def show(targets: list[Measurement], facts: dict[str, float]) -> None:
    show_targets(
        f"Fleet: {facts['phones']:,} phones, {facts['intervals']:,.0f} intervals",
        targets,
        f"{facts['intervals_per_week']:.1f} intervals a phone and week, available {facts['mean_share']:.1%} of the "
        f"time; saved in {facts['save_seconds']:.1f} s ({facts['stored_megabytes']:,.0f} MB). When {ASKED_CLIENTS} "
        f"clients finish their work is answered in {facts['question_microseconds']:.0f} µs.",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phones", type=int, default=PHONES)
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--part", choices=["build", "sort", "probe"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        parts: dict[str, Callable[[], dict[str, float]]] = {
            "build": lambda: build(arguments.folder, arguments.phones),
            "sort": lambda: sort(arguments.phones),
            "probe": lambda: probe(arguments.folder),
        }
        print(json.dumps(parts[arguments.part]()))
        return 0
    with tempfile.TemporaryDirectory(prefix="fedarena-fleet-") as folder:
        targets, facts = measure(Path(folder), arguments.phones)
    show(targets, facts)
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
