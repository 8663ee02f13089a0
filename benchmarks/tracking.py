"""What do trackers and an open `fedarena watch` cost a run?

    python benchmarks/tracking.py [--output result.json] [--only tensorboard watch] [--repetitions 5] [--set KEY=VALUE]

Every measurement is a fresh process that makes the quickstart's run twice: the first one also loads the tracker's
library, as the first of a suite does, and the second one tells what every further run costs. From both follows what the
quickstart, a suite of twelve runs, takes. A plain process and one of each kind take turns, and the median of the ratios
to the plain process of the same turn counts. W&B is offline and MLflow has a local database. The watched process has
a `fedarena watch` beside it, which a page's event stream follows; the browser itself, on whatever machine it is, is not
counted. What is not installed is left out. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from targets import Measurement, conclude, show_targets

TRACKERS = ("tensorboard", "wandb", "mlflow")
WATCH = "watch"
RUNS = 12  # of the quickstart
TARGET = 1.03
NAMES = ("first", "further")
PATIENCE_S = 10  # with the page, which follows the runs a moment later


def probe(folder: Path, tracker: str, settings: list[str]) -> dict[str, float]:
    """The seconds of two runs with a tracker, or none, and how long the whole process computed."""
    from fedarena.display.running import run_with_report
    from fedarena.runs.config import parse_overrides, resolve_settings

    track = [{"name": tracker, "mode": "offline"} if tracker == "wandb" else tracker] if tracker in TRACKERS else []
    seconds = {}
    for name in NAMES:
        config = resolve_settings(None, {**parse_overrides(settings), "name": name, "track": track})
        began = time.perf_counter()
        run_with_report(config, folder, progress=False)
        seconds[name] = time.perf_counter() - began
    seconds["cpu"] = time.process_time()
    return seconds


def probe_in_fresh_process(folder: Path, kind: str, settings: list[str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--probe", kind, "--folder", str(folder), "--set", *settings]
    folder.mkdir()
    with watching(folder) if kind == WATCH else nullcontext():
        finished = subprocess.run(command, check=True, capture_output=True, text=True)
    if log := [line for line in _log_lines(folder) if "The tracker" in line]:
        raise SystemExit(f"{kind} did not work: {log[0]}")
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def _log_lines(folder: Path) -> Iterator[str]:
    for name in NAMES:
        yield from (folder / name / "log.txt").read_text(encoding="utf-8").splitlines()


@contextmanager
def watching(folder: Path) -> Iterator[None]:
    """A `fedarena watch` in a process of its own, and a page that follows the runs of a folder."""
    from fedarena.display.watch.watched_run import key_of

    command = [sys.executable, "-u", "-m", "fedarena", "watch", str(folder), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+)", said)
    assert found, said
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))
    keys = ",".join(key_of(folder / name) for name in NAMES)
    connection.request("GET", f"{found[2]}events?runs={keys}")
    response = connection.getresponse()
    told = bytearray()

    def read() -> None:
        while piece := response.read1():
            told.extend(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def is_told() -> bool:
        return told.count(b"event: rounds") >= len(NAMES)

    try:
        yield
        ends = time.monotonic() + PATIENCE_S
        while not is_told() and time.monotonic() < ends:  # what was measured is over, and may be short
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
    if not is_told():
        raise SystemExit("The watched runs were not followed")


def quickstart_seconds(seconds: dict[str, float]) -> float:
    return seconds["first"] + (RUNS - 1) * seconds["further"]


def measure(kinds: list[str], repetitions: int, settings: list[str]) -> tuple[list[Measurement], dict[str, Any]]:
    measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in ("plain", *kinds)}
    for turn in range(repetitions):
        for kind in measured:
            with tempfile.TemporaryDirectory() as folder:
                measured[kind].append(probe_in_fresh_process(Path(folder) / "runs", kind, settings))
            print(f"turn {turn + 1}, {kind}: {measured[kind][-1]}", file=sys.stderr, flush=True)
    targets, facts = [], {"settings": settings, "repetitions": repetitions, "seconds": measured}
    for kind in kinds:
        pairs = list(zip(measured[kind], measured["plain"], strict=True))
        ratio = statistics.median(quickstart_seconds(one) / quickstart_seconds(plain) for one, plain in pairs)
        targets.append(Measurement(f"the quickstart with {kind}", ratio, TARGET, "times a plain one"))
        for name in (*NAMES, "cpu"):
            facts[f"{kind}_{name}_ratio"] = statistics.median(one[name] / plain[name] for one, plain in pairs)
    return targets, facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", choices=(*TRACKERS, WATCH), default=[*TRACKERS, WATCH])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings, for a shorter try")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        print(json.dumps(probe(given.folder, given.probe, given.set)))
        return 0
    from fedarena.runs.environment import describe_environment

    os.environ.setdefault("WANDB_SILENT", "true")
    kinds = [kind for kind in given.only if kind == WATCH or importlib.util.find_spec(kind) is not None]
    targets, facts = measure(kinds, given.repetitions, given.set)
    ratios = ", ".join(f"{kind} {facts[f'{kind}_first_ratio']:.3f}" for kind in kinds)
    show_targets("Trackers and watch", targets, f"Ratios of the first run, which loads the library: {ratios}")
    return conclude(targets, facts, describe_environment(), given.output)


if __name__ == "__main__":
    sys.exit(main())
