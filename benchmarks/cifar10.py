"""pfl-research's benchmark on CIFAR-10, whole runs of both tools in turn: the same accuracy, and how long it takes.

    python benchmarks/cifar10.py --folder FOLDER [--rounds 1500] [--seeds 0 1 2 3 4] [--cases alike ...] [--here]

A run is a fresh process, from its start to its end, with evaluation of all test photos every ten rounds and recording.
Both tools get the same clients with the same photos (the suite `pfl-cifar10`); whom they invite, and in which order
photos come, differs. Accuracies are those of the last model. With `--here`, pfl is taken from this Python's environment
instead of one that is made for it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from protocol import read_answer
from speed import BENCH, say
from targets import Measurement, conclude, show_targets
from tools import HERE, prepare_environment

# How runs of the suite are called, without their seed.
CASES = {
    "alike": "alike-no_privacy",
    "dirichlet": "Dirichlet_0.1-no_privacy",
    "alike-private": "alike-ε_2",
    "dirichlet-private": "Dirichlet_0.1-ε_2",
}
LEAST_TIMES = 30.0  # as fast as pfl, on a GPU


def run_of(case: str, seed: int, folder: str, rounds: int) -> Any:
    """The suite's run, shorter if asked for."""
    from fedarena.runs.suite import read_suite

    suite = read_suite("pfl-cifar10", {"federation.folder": folder, "rounds": rounds, "seeds": [seed]})
    return suite.runs[f"{CASES[case]}-seed{seed}"]


def write_clients(federation: Any, path: Path) -> None:
    """The photos of every client, for pfl."""
    everybody = federation.clients()
    train, test = (federation.samples(everybody, part) for part in ("train", "test"))
    np.savez(
        path,
        train_x=train.columns["x"],
        train_y=train.columns["y"],
        offsets=train.offsets,
        test_x=test.columns["x"],
        test_y=test.columns["y"],
    )


def ours(task: dict[str, Any]) -> dict[str, Any]:
    """One run of FedArena, in this process."""
    from fedarena.runs.run import start_run

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = start_run(run_of(**task), Path(folder))
        accuracies = result.rounds["accuracy"].to_pylist()
    return {"accuracy": accuracies[-1], "seconds": time.perf_counter() - began}


def timed(command: list[str]) -> tuple[float, str]:
    """How long a process takes, and what it printed."""
    began = time.perf_counter()
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    )
    seconds = time.perf_counter() - began
    if "SPEED " not in done.stdout:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return seconds, done.stdout


def interval(values: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's t); a single value tells nothing of it."""
    from scipy import stats

    if len(values) < 2:
        return values[0], math.inf
    wide = float(stats.t.ppf(0.975, len(values) - 1))
    return statistics.fmean(values), wide * statistics.stdev(values) / math.sqrt(len(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print("SPEED " + json.dumps(ours(json.loads(arguments.task))))
        return 0
    from fedarena.data import load_federation
    from fedarena.runs.environment import describe_environment

    peer = sys.executable if arguments.here else prepare_environment("pfl", BENCH, say)
    facts: dict[str, Any] = {"rounds": arguments.rounds, "seeds": arguments.seeds, "cases": {}}
    targets: list[Measurement] = []
    folder = str(Path(arguments.folder).resolve())
    for case in arguments.cases:
        options = dict(run_of(case, 0, folder, arguments.rounds).federation)
        with tempfile.TemporaryDirectory() as place:
            clients = Path(place) / "clients.npz"
            write_clients(load_federation(options.pop("name"), options), clients)
            found: dict[str, list[dict[str, Any]]] = {"fedarena": [], "pfl": []}
            for seed in arguments.seeds:
                task = {"case": case, "seed": seed, "folder": folder, "rounds": arguments.rounds}
                commands = {
                    "fedarena": [sys.executable, __file__, "--folder", folder, "--task", json.dumps(task)],
                    "pfl": [peer, str(HERE / "peers" / "pfl_cifar10.py"), "--clients", str(clients)]
                    + ["--rounds", str(arguments.rounds), "--seed", str(seed)]
                    + (["--private"] if case.endswith("private") else []),
                }
                for tool, command in commands.items():
                    seconds, output = timed(command)
                    answer = read_answer(output)
                    found[tool].append({"whole_seconds": seconds, **answer})
                    say(f"{case}, seed {seed}, {tool}: accuracy {answer['accuracy']:.4f}, {seconds:.1f} s")
        facts["cases"][case] = found
        means = {tool: interval([run["accuracy"] for run in runs]) for tool, runs in found.items()}
        seconds = {tool: statistics.median(run["whole_seconds"] for run in runs) for tool, runs in found.items()}
        apart = abs(means["fedarena"][0] - means["pfl"][0])
        together = means["fedarena"][1] + means["pfl"][1]
        if len(arguments.seeds) > 1:
            what = f"{case}: accuracies apart, over the widths of both intervals"
            targets.append(Measurement(what, apart / together, 1.0, ""))
        ratio = seconds["fedarena"] / seconds["pfl"]
        targets.append(Measurement(f"{case}: time over pfl's", ratio, 1 / LEAST_TIMES, ""))
        say(f"{case}: " + ", ".join(f"{t} {m:.4f} ± {w:.4f}, {seconds[t]:.1f} s" for t, (m, w) in means.items()))
    show_targets("pfl's benchmark on CIFAR-10", targets, "Whole processes, in turn.")
    return conclude(targets, facts, describe_environment(), arguments.output)


if __name__ == "__main__":
    sys.exit(main())
