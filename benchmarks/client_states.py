"""Clients' memories: does a commit cost as much as its cohort, and does RAM stay within its limit?

    python benchmarks/client_states.py [--output result.json] [--few 100 --many 5000]

Records rounds of an imaginary stateful method, in which every client remembers 100 kB, in runs where 100 and where
5,000 clients have taken part before. Every run is a fresh process. Compared are the bytes and seconds that recording
and committing one more round takes (medians of several rounds, with the disk's own pace in the seconds), and how much
the process grew with room for 32 MB of memories. The exit code is 1 if a target is missed. Needs Linux, which counts
the bytes that a process writes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from targets import Measurement, conclude, show_targets

FLOATS = 25_000  # of one client's memory
COHORT = 10
MEASURED_ROUNDS = 5
RAM_BYTES = 32_000_000


def probe(folder: Path, participants: int) -> dict[str, float]:
    """One run: everybody takes part once, in cohorts; then some rounds are measured."""
    import numpy as np
    import torch

    from fedarena.simulate import ClientStateChanges, RoundOutcome, Snapshot
    from fedarena.storage import recorder as recording

    recording._COMMIT_SHARE = math.inf  # every round is committed
    recorder = recording.Recorder.create(folder, "", {}, ("loss",), RAM_BYTES)
    random = np.random.default_rng(0)
    snapshot = Snapshot(0, {"params": {"w": torch.zeros(FLOATS)}})

    def record(clients: Sequence[int]) -> tuple[float, int]:
        nonlocal snapshot
        changes = ClientStateChanges(snapshot.client_states)
        rows = random.normal(size=(len(clients), FLOATS)).astype(np.float32)
        changes.add(clients, {"control": {"w": torch.from_numpy(rows)}})
        snapshot = Snapshot(snapshot.round + 1, snapshot.state, changes.client_states())
        outcome = RoundOutcome(snapshot, {"round": snapshot.round}, None, 1.0, 0.0)
        written_before, began = written_bytes(), time.perf_counter()
        recorder.record(outcome, [])
        return time.perf_counter() - began, written_bytes() - written_before

    record(range(COHORT))
    resident_before = resident_bytes("VmRSS")  # with everything that the first round imports
    for first in range(COHORT, participants, COHORT):
        record(range(first, min(first + COHORT, participants)))
    measured = [
        record(random.choice(participants, size=COHORT, replace=False).tolist()) for _ in range(MEASURED_ROUNDS)
    ]
    assert len(snapshot.client_states) == participants
    recorder.release()
    return {
        "commit_seconds": statistics.median(seconds for seconds, _ in measured),
        "commit_megabytes": statistics.median(written for _, written in measured) / 1e6,
        "grown_megabytes": (resident_bytes("VmHWM") - resident_before) / 1e6,
        "stored_megabytes": sum(path.stat().st_size for path in (folder / "checkpoint").glob("client_states-*.log"))
        / 1e6,
    }


def written_bytes() -> int:
    return proc_number("io", "wchar")


def resident_bytes(which: str) -> int:
    return proc_number("status", which) * 1024


def proc_number(file: str, key: str) -> int:
    lines = (Path("/proc/self") / file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


def probe_in_fresh_process(folder: Path, participants: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--probe", str(folder / str(participants)), "--many", str(participants)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(finished.stdout)
    return result


def measure(folder: Path, few: int, many: int) -> tuple[list[Measurement], dict[str, float]]:
    at_few, at_many = probe_in_fresh_process(folder, few), probe_in_fresh_process(folder, many)
    compared = f"a commit, {many:,} participants against {few:,}"
    targets = [
        Measurement(f"bytes of {compared}", at_many["commit_megabytes"] / at_few["commit_megabytes"], 1.1, "times"),
        Measurement(f"seconds of {compared}", at_many["commit_seconds"] / at_few["commit_seconds"], 2, "times"),
        Measurement(
            f"growth with room for {RAM_BYTES / 1e6:g} MB of memories",
            at_many["grown_megabytes"],
            2 * RAM_BYTES / 1e6,
            "MB",
        ),
    ]
    facts = {"few": float(few), "many": float(many)}
    for name, numbers in (("few", at_few), ("many", at_many)):
        facts |= {f"{key}_at_{name}": value for key, value in numbers.items()}
    return targets, facts


def environment() -> dict[str, Any]:
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def show(targets: list[Measurement], facts: dict[str, float]) -> None:
    show_targets(
        f"ClientStates of {facts['many']:,.0f} clients, {FLOATS * 4 / 1e6:g} MB each",
        targets,
        f"A commit of {COHORT} clients: {facts['commit_megabytes_at_many']:.3g} MB in "
        f"{facts['commit_seconds_at_many']:.3g} s; on disk: {facts['stored_megabytes_at_many']:,.0f} MB.",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=5000)
    parser.add_argument("--output", type=Path, help="write the numbers, hardware and versions to this JSON file")
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not Path("/proc/self/io").exists():
        parser.error("this benchmark needs Linux")
    if arguments.few < COHORT or arguments.many < COHORT:
        parser.error(f"--few and --many must be at least {COHORT}, the size of a cohort")
    if arguments.probe:
        print(json.dumps(probe(arguments.probe, arguments.many)))
        return 0
    with tempfile.TemporaryDirectory(prefix="fedarena-memories-") as folder:
        targets, facts = measure(Path(folder), arguments.few, arguments.many)
    show(targets, facts)
    return conclude(targets, facts, environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
