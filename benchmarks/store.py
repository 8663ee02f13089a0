"""The federation store at the size of LEAF's Reddit: does it open at once, gather fast, and stay small?

    python benchmarks/store.py [--output result.json] [--clients 1660820 --samples 20000000]

Builds a federation of 1,660,820 clients (the number in LEAF's Table 1) with 20 million next-token samples in
a temporary folder, and one of a hundredth of the size beside it. Everything is measured in fresh processes,
medians of several, with the files in the page cache. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.core import streams
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from targets import Measurement, conclude, show_targets

LEAF_REDDIT_CLIENTS = 1_660_820
SAMPLES = 20_000_000
GATHERED_CLIENTS = 1_000
SCALE = 100
REPETITIONS = 7
CLIENTS_PER_CHUNK = 20_000

SEQUENCE_LENGTH = 10
VOCABULARY = 10_000


def sizes_of_clients(clients: int, samples: int) -> np.ndarray:
    """Skewed sizes, as in real federations, that add up to `samples`; some clients have none."""
    weights = streams.generator(0, "benchmark/sizes").lognormal(mean=0, sigma=1.2, size=clients)
    bounds = np.round(np.cumsum(weights) / weights.sum() * samples).astype(np.int64)
    return np.diff(bounds, prepend=0)


def build(path: Path, clients: int, samples: int) -> float:
    """Writes the federation and returns the seconds it took, without those for drawing the tokens."""
    sizes = sizes_of_clients(clients, samples)
    random = streams.generator(0, "benchmark/tokens")
    task = TaskSpec(kind="next_token", classes=VOCABULARY, padding=0, unknown=1)
    columns = {"tokens": ColumnSpec(dtype="uint16", shape=(SEQUENCE_LENGTH + 1,))}
    drawing_seconds = 0.0
    start = time.perf_counter()
    with FederationWriter(path, name="benchmark", task=task, columns=columns) as writer:
        for first in range(0, clients, CLIENTS_PER_CHUNK):
            drawing_start = time.perf_counter()
            chunk = sizes[first : first + CLIENTS_PER_CHUNK]
            tokens = random.integers(1, VOCABULARY, size=(int(chunk.sum()), SEQUENCE_LENGTH + 1), dtype=np.uint16)
            drawing_seconds += time.perf_counter() - drawing_start
            counts = np.stack([chunk, np.zeros_like(chunk), np.zeros_like(chunk)], axis=1)
            ids = [f"author-{index:07d}" for index in range(first, first + len(chunk))]
            writer.add_clients(ids, counts=counts, columns={"tokens": tokens})
    return time.perf_counter() - start - drawing_seconds


def probe(path: Path, repetition: int) -> dict[str, float]:
    """Opens the store and gathers random clients, in a process that did nothing else."""
    start = time.perf_counter()
    federation = Federation.open(path)
    open_seconds = time.perf_counter() - start
    random = streams.generator(repetition, "benchmark/cohort")
    clients = random.choice(federation.num_clients, size=min(GATHERED_CLIENTS, federation.num_clients), replace=False)
    start = time.perf_counter()
    gathered = federation.samples(clients)
    gather_seconds = time.perf_counter() - start
    return {
        "open_seconds": open_seconds,
        "gather_seconds": gather_seconds,
        "gathered_samples": float(gathered.offsets[-1]),
        "resident_megabytes": peak_resident_bytes() / 1e6,
    }


def peak_resident_bytes() -> int:
    """The most memory this process had, with the parts of mapped files that are in memory."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent process had when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def probes_in_fresh_processes(path: Path, repetitions: int) -> Iterator[dict[str, float]]:
    for repetition in range(repetitions):
        command = [sys.executable, __file__, "--probe", str(path), "--repetition", str(repetition)]
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
        yield json.loads(finished.stdout)


def medians(path: Path, repetitions: int) -> dict[str, float]:
    probes = list(probes_in_fresh_processes(path, repetitions))
    return {key: statistics.median(probe[key] for probe in probes) for key in probes[0]}


def measure(folder: Path, clients: int, samples: int, repetitions: int) -> tuple[list[Measurement], dict[str, float]]:
    large, small = folder / "large", folder / "small"
    build_seconds = build(large, clients, samples)
    build(small, max(clients // SCALE, 1), max(samples // SCALE, 1))
    medians(small, repetitions)  # the first processes warm the page cache and the compiled modules
    at_large, at_small = medians(large, repetitions), medians(small, repetitions)
    ratio = at_large["open_seconds"] / at_small["open_seconds"]
    targets = [
        Measurement("open", at_large["open_seconds"], 0.1, "s"),
        Measurement("peak resident memory after open and gather", at_large["resident_megabytes"], 300, "MB"),
        Measurement(f"gather {GATHERED_CLIENTS:,} random clients", at_large["gather_seconds"], 0.2, "s"),
        Measurement(f"open, compared with 1/{SCALE} of the size", ratio, 2, "times"),
    ]
    stored_bytes = sum(file.stat().st_size for file in large.iterdir())
    facts = {
        "clients": clients,
        "samples": samples,
        "stored_megabytes": stored_bytes / 1e6,
        "build_seconds": build_seconds,
        "build_samples_per_second": samples / build_seconds,
        "gathered_samples": at_large["gathered_samples"],
        "open_seconds_at_small_size": at_small["open_seconds"],
    }
    return targets, facts


def environment() -> dict[str, Any]:
    import pyarrow

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gigabytes": round(memory_bytes / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "pyarrow": pyarrow.__version__,
    }


def show(targets: list[Measurement], facts: dict[str, float]) -> None:
    show_targets(
        f"Federation store: {facts['clients']:,} clients, {facts['samples']:,} samples",
        targets,
        f"Written in {facts['build_seconds']:.1f} s ({facts['build_samples_per_second']:,.0f} samples a "
        f"second, {facts['stored_megabytes']:,.0f} MB); {facts['gathered_samples']:,.0f} samples gathered.",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=LEAF_REDDIT_CLIENTS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="fresh processes for every median")
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--repetition", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        print(json.dumps(probe(arguments.probe, arguments.repetition)))
        return 0
    with tempfile.TemporaryDirectory(prefix="fedarena-store-") as folder:
        targets, facts = measure(Path(folder), arguments.clients, arguments.samples, arguments.repetitions)
    show(targets, facts)
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
