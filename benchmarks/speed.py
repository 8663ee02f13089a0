"""Speed against pfl-research, FedJAX and Flower on this machine's CPU cores, measured side by side.

    python benchmarks/speed.py [--tools fedarena pfl] [--workloads mlp ragged] [--repetitions 3] [--quick] [--draw]

Makes an environment for each peer under .bench/, then runs every workload with every tool in turn, each in a fresh
process, and repeats that; then once more, not timed, to see how much memory everybody takes. Prints the tables and
writes docs/benchmarks/speed.json, docs/images/speed.svg and docs/speed.md; a quick or partial measurement goes to
.bench/ instead. `--draw` writes picture and page anew from the measured file.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.files import write_json, write_text
from fedarena.display import write_picture
from fedarena.runs.environment import describe_environment
from memory import run_watched
from protocol import MARK, MIN_ROUNDS, WARM_UP_ROUNDS, read_answer
from speed_report import Results, draw, losses_agree, picture_path, render_page, show, workloads_of
from tools import HERE, TOOLS, prepare_environment
from workloads import CLIENTS, NAMES, SAMPLES, log_normal_sizes, make_workload

ROOT = HERE.parent
BENCH = ROOT / ".bench"
SECONDS, QUICK_SECONDS = 3.0, 0.3
QUIET_LOAD = 0.5
LONGEST_SECONDS = 1800  # of one measurement
NEEDLESS_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS")  # would change who gets how many cores
VARIABLES = {
    "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "peers")]),
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def say(message: str) -> None:
    print(message, flush=True)


def run_tool(python: str, tool: str, workload: str, seconds: float) -> Results:
    """One measurement in a fresh process."""
    command, options = process_of(python, tool, workload, seconds)
    return _answer(subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS, **options))


def peak_memory(python: str, tool: str, workload: str) -> int | None:
    """What a tool takes at its peak, in bytes, with all its processes, while it does a few rounds that nobody times."""
    command, options = process_of(python, tool, workload, QUICK_SECONDS)
    done, peak_bytes = run_watched(command, **options)
    _answer(done)
    return peak_bytes


def process_of(python: str, tool: str, workload: str, seconds: float) -> tuple[list[str], dict[str, Any]]:
    """The command that measures a tool, and where and with which variables it runs."""
    entry = TOOLS[tool]
    arguments = ["--workload", workload, "--seconds", str(seconds), *entry.arguments]
    variables = {name: value for name, value in os.environ.items() if name not in NEEDLESS_VARIABLES}
    command = [python, str(HERE / entry.script), *arguments]
    return command, {"env": variables | VARIABLES | entry.variables, "cwd": BENCH}


def _answer(finished: subprocess.CompletedProcess[str]) -> Results:
    if finished.returncode != 0 and MARK not in finished.stdout:  # pfl's processes sometimes fail as they end
        lines = [line for line in finished.stderr.splitlines() if any(letter.isalpha() for letter in line)]
        errors = [line for line in lines if "Error" in line] or lines  # launchers print much more after them
        raise RuntimeError(errors[-1].strip() if errors else f"exit code {finished.returncode}")
    return read_answer(finished.stdout)


def measure_all(tools: list[str], workloads: list[str], repetitions: int, seconds: float) -> Results:
    """Every workload with every tool in turn, repeated."""
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"Warning: the load average is {load:.2f}; other processes disturb what is measured here.")
    BENCH.mkdir(exist_ok=True)
    pythons = {tool: prepare_environment(tool, BENCH, say) for tool in tools}
    environment = describe_environment()
    runs: list[Results] = []
    failures: list[dict[str, str]] = []
    for repetition, workload, tool in itertools.product(range(1, repetitions + 1), workloads, tools):
        where = f"[{repetition}/{repetitions}] {workload}, {TOOLS[tool].label}"
        try:
            run = run_tool(pythons[tool], tool, workload, seconds)
        except (RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
            say(f"{where}: failed ({error})")
            failures.append({"peer": tool, "workload": workload, "reason": str(error)})
            continue
        say(f"{where}: {run['clients_per_second']:,.1f} clients a second, loss {run['final_loss']:.4f}")
        runs.append({**run, "repetition": repetition})
    memory: dict[str, dict[str, int | None]] = {}
    for workload, tool in itertools.product(workloads, tools):
        with contextlib.suppress(RuntimeError, ValueError):  # which is known from before
            peak_bytes = memory.setdefault(workload, {})[tool] = peak_memory(pythons[tool], tool, workload)
            say(f"{workload}, {TOOLS[tool].label}: {(peak_bytes or 0) / 2**30:.2f} GiB at the peak")
    return {
        "command": shlex.join(["python", "benchmarks/speed.py", *sys.argv[1:]]),
        "environment": {key: value for key, value in environment.items() if key != "command"},
        "load_average_before": load,
        "repetitions": repetitions,
        "clients": CLIENTS,
        "samples_per_client": SAMPLES,
        "warm_up_rounds": WARM_UP_ROUNDS,
        "measured_at_least": {"rounds": MIN_ROUNDS, "seconds": seconds},
        "workloads": {name: make_workload(name, 1, 1).description for name in workloads},
        "runs": runs,
        "peak_bytes": memory,
        "failures": failures,
    }


def largest_share() -> float:
    """The part of all samples that the largest of the ragged clients has."""
    sizes = log_normal_sizes(CLIENTS, SAMPLES)
    return float(sizes.max() / sizes.sum())


def data_path(docs: Path) -> Path:
    return docs / "benchmarks" / "speed.json"


def write_page(docs: Path) -> None:
    """Picture and page from the measured file of a documentation folder."""
    results: dict[str, Any] = json.loads(data_path(docs).read_text(encoding="utf-8"))
    picture = True
    try:
        write_picture(draw(results), picture_path(docs))
    except BadInputError as error:
        say(f"No picture: {error}")
        picture = False
    write_text(docs / "speed.md", render_page(results, largest_share(), picture))
    say(f"Wrote {docs / 'speed.md'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short repetition, to see that everything works")
    parser.add_argument("--draw", action="store_true", help="measure nothing: write picture and page again")
    parser.add_argument("--docs", type=Path, help="folder to write to instead")
    arguments = parser.parse_args()
    complete = set(arguments.tools) == set(TOOLS) and set(arguments.workloads) == set(NAMES) and not arguments.quick
    docs = arguments.docs or (ROOT / "docs" if complete else BENCH / "partial")
    if arguments.draw:
        write_page(docs)
        return 0
    repetitions = 1 if arguments.quick else arguments.repetitions
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    results = measure_all(arguments.tools, arguments.workloads, repetitions, seconds)
    if not results["runs"]:
        return 1
    data_path(docs).parent.mkdir(parents=True, exist_ok=True)
    write_json(data_path(docs), results)
    show(results)
    write_page(docs)
    agree = all(losses_agree(results, workload) for workload in workloads_of(results))
    return 0 if agree and not results["failures"] else 1


if __name__ == "__main__":
    sys.exit(main())
