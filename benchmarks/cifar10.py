"""pfl-research's benchmark on CIFAR-10, runs of both tools: the same accuracy, and how long it takes.

    python benchmarks/cifar10.py --folder FOLDER --output docs/benchmarks/cifar10.json [--cases alike,dirichlet]
        [--seeds 0,1,2,3,4] [--tools fedarena,pfl] [--only 100] [--at-once 5] [--here] [engine.precision=tf32 ...]

A run is a fresh process, from its start to its end, with evaluation of all test photos every ten rounds and recording.
Both tools get the same clients with the same photos (the suite `pfl-cifar10`); whom they invite, and in which order
photos come, differs. Accuracies are those of the last model.

With `--only` or `--seconds`, runs end after so many of their 1,500 rounds, or at the first evaluation after so long.
With `--at-once`, several run beside each other, for their accuracies: their times mean nothing. With `--here`, pfl is
taken from this Python's environment instead of one that is made for it. Settings such as `engine.precision=tf32` are
for our runs. What was measured is added to what is in the output already; `benchmarks/cifar10_report.py` makes a page
of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedarena.cli.start_up import end_quickly, import_for_runs
from protocol import read_answer
from tools import HERE, prepare_environment

# How runs of the suite are called, without their seed.
CASES = {
    "alike": "alike-no_privacy",
    "dirichlet": "Dirichlet_0.1-no_privacy",
    "alike-private": "alike-ε_2",
    "dirichlet-private": "Dirichlet_0.1-ε_2",
}
TOOLS = ("fedarena", "pfl")
BENCH = HERE.parent / ".bench"


def say(text: str) -> None:
    """Tells how far it is."""
    print(text, flush=True)


def run_of(case: str, seed: int, folder: str, rounds: int, settings: dict[str, Any] | None = None) -> Any:
    """The suite's run, with other settings if asked for."""
    from fedarena.runs.suite import read_suite

    given = {"federation.folder": folder, "rounds": rounds, "seeds": [seed], **(settings or {})}
    return read_suite("pfl-cifar10", given).runs[f"{CASES[case]}-seed{seed}"]


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
    import_for_runs()  # as the command `fedarena run` does
    from fedarena import Stop
    from fedarena.runs.run import start_run

    only, most_seconds, began = task.pop("only"), task.pop("seconds"), float(os.environ["BEGAN"])
    curve: list[tuple[int, float, float]] = []

    def note(run: Any, row: dict[str, Any]) -> Any:
        seconds = time.monotonic() - began
        if row["accuracy"] is not None:
            curve.append((row["round"], seconds, row["accuracy"]))
        is_enough = row["round"] == only or (row["accuracy"] is not None and seconds > (most_seconds or math.inf))
        return Stop("that is enough for now") if is_enough and row["round"] < task["rounds"] else None

    with tempfile.TemporaryDirectory() as folder:
        rounds = start_run(run_of(**task), Path(folder), callbacks=[note]).rounds
        return {"accuracy": rounds["accuracy"][-1].as_py(), "curve": curve, "rounds": rounds["round"][-1].as_py()}


def timed(command: list[str]) -> dict[str, Any]:
    """How long a process takes, and what it answered."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.monotonic()
    # What Python compiles is on disk from the second run on, as it is of packages that were installed.
    bytecode = {"PYTHONPYCACHEPREFIX": str(BENCH / "bytecode")}
    environment = os.environ | bytecode | {"PYTHONPATH": os.pathsep.join(paths), "BEGAN": str(began)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    seconds = time.monotonic() - began
    if "SPEED " not in done.stdout:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return {"whole_seconds": seconds, **read_answer(done.stdout)}


def command_of(tool: str, task: dict[str, Any], clients: Path, peer: str) -> list[str]:
    """What runs a task."""
    if tool == "fedarena":
        return [sys.executable, __file__, "--folder", task["folder"], "--task", json.dumps(task)]
    command = [peer, str(HERE / "peers" / "pfl_cifar10.py"), "--clients", str(clients)]
    command += ["--rounds", str(task["rounds"]), "--only", str(task["only"]), "--seed", str(task["seed"])]
    command += ["--seconds", str(task["seconds"])] if task["seconds"] else []
    return command + (["--private"] if task["case"].endswith("private") else [])


def measure_case(
    case: str,
    arguments: argparse.Namespace,
    settings: dict[str, Any],
    peer: str,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Runs of all seeds and tools; each is kept as soon as it is done."""
    from fedarena.data import load_federation

    folder = str(Path(arguments.folder).resolve())
    options = dict(run_of(case, 0, folder, arguments.rounds, settings).federation)
    with tempfile.TemporaryDirectory() as place:
        clients = Path(place) / "clients.npz"
        federation = load_federation(options.pop("name"), options)  # also so that its store is there for all runs
        if "pfl" in arguments.tools:
            write_clients(federation, clients)

        def measure(seed: int, tool: str) -> None:
            task = {"case": case, "seed": seed, "folder": folder, "rounds": arguments.rounds}
            task |= {"only": arguments.only, "seconds": arguments.seconds}
            own = {"settings": settings} if tool == "fedarena" else {}
            found = timed(command_of(tool, task | own, clients, peer))
            say(f"{case}, seed {seed}, {tool}: accuracy {found['accuracy']:.4f}, {found['whole_seconds']:.1f} s")
            about = {"tool": tool, "case": case, "seed": seed, "note": arguments.note}
            keep({**about, "alone": arguments.at_once == 1, **own, **found})

        tasks = [(seed, tool) for seed in arguments.seeds for tool in arguments.tools]
        with ThreadPoolExecutor(arguments.at_once) as pool:
            list(pool.map(lambda task: measure(*task), tasks))  # raises what they raise


def several(known: Iterable[Any], kind: Callable[[str], Any] = str) -> Callable[[str], list[Any]]:
    """How a list with commas is read, of which each must be `known`, so that settings may follow it."""
    allowed = list(known)

    def read(text: str) -> list[Any]:
        given = [kind(part) for part in text.split(",")]
        if unknown := [str(part) for part in given if part not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; choose among {', '.join(map(str, allowed))}")
        return given

    return read


def arguments_of(words: list[str] | None = None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="of our runs, such as engine.precision=tf32")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--only", type=int, help="end runs after so many of these rounds")
    parser.add_argument("--seconds", type=float, help="end runs at the first evaluation after so long")
    parser.add_argument("--seeds", type=several(range(1000), int), default=[0, 1, 2, 3, 4])
    parser.add_argument("--cases", type=several(CASES), default=list(CASES))
    parser.add_argument("--tools", type=several(TOOLS), default=list(TOOLS))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--note", help="what is special about these runs, such as that nothing is compiled yet")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    return parser.parse_intermixed_args(words)


def main() -> int:
    arguments = arguments_of()
    if arguments.task:
        end_quickly()
        print("SPEED " + json.dumps(ours(json.loads(arguments.task))))
        return 0
    from fedarena.runs.environment import describe_environment

    arguments.only = arguments.only or arguments.rounds
    pairs = (setting.split("=", 1) for setting in arguments.settings)
    settings = {name: yaml.safe_load(value) for name, value in pairs}
    peer = sys.executable if arguments.here or "pfl" not in arguments.tools else prepare_environment("pfl", BENCH, say)
    environment = describe_environment()
    own_places = {arguments.folder, str(arguments.output)}  # which mean nothing to whoever reads what was measured
    environment["command"] = ["..." if word in own_places else word for word in environment["command"]]
    measured: dict[str, Any] = {"rounds": arguments.rounds, "runs": [], "environment": environment}
    if arguments.output and arguments.output.exists():
        measured = json.loads(arguments.output.read_text(encoding="utf-8"))
    lock = threading.Lock()

    def keep(run: dict[str, Any]) -> None:
        with lock:
            measured["runs"].append(run)
            if arguments.output:
                arguments.output.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")

    for case in arguments.cases:
        measure_case(case, arguments, settings, peer, keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
