"""Where the time of whole runs goes: start-up, building, training, evaluation, recording, the report.

    python benchmarks/whole_runs.py [help list quickstart digits long fleet] [--beside /path/to/old/checkout]
                                    [--times 3] [--output docs/benchmarks/whole_runs.json]

Every run is a process of its own, started as `fedarena` is from a shell, in which a stopwatch is put around the stages
of a run. Times are of the main thread: what it does itself or waits for, each second counted once; *exit* is from the
end of the command to the end of its process. CPU times are of all threads; they suffer less from a busy machine. Beside
another checkout, the two take turns, and ratios are of their fastest times.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES: dict[str, list[str]] = {
    "help": ["--help"],
    "list": ["list"],
    "quickstart": ["run"],
    "digits": ["run", "federation=digits"],
    # Like pfl's CIFAR-10 benchmark: very many short rounds of 50 clients with 50 pictures each, batches of 10.
    "long": [
        *("run", "federation=shapes", "federation.clients=500", "federation.samples_per_client=50", "model=mlp"),
        *("rounds=1500", "cohort=50", "local.batch_size=10", "evaluation.every=10"),
    ],
    # Many phones, of which few take part.
    "fleet": [
        *("run", "federation=synthetic", "federation.clients=50000", "federation.features=10", "fleet=fedscale"),
        *("protocol=synchronous", "rounds=200", "cohort=100", "evaluation.every=20", "evaluation.max_clients=500"),
    ],
}
# What is timed: stage, module, name of the class if any, and function. Inner stages do not count for outer ones.
STAGES = (
    ("building", "fedarena.runs.run", None, "prepare"),
    ("building", "fedarena.runs.run", None, "describe_run"),
    ("building", "fedarena.runs.run", None, "_describe_fleet"),
    ("training", "fedarena.simulate.loop", "_Round", "_play"),
    ("evaluation", "fedarena.simulate.loop", "_Evaluation", "finish"),
    ("recording", "fedarena.storage.recorder", "Recorder", "record"),
    ("recording", "fedarena.storage.recorder", "Recorder", "create"),
    ("commits", "fedarena.storage.recorder", "Recorder", "_commit"),
    ("ending", "fedarena.runs.run", "Run", "_finish"),
    ("display", "fedarena.display.progress", "ProgressBars", "finished_round"),
    ("report", "fedarena.display.running", None, "_with_report"),
)


class Stopwatch:
    """Time by stage, each second in the innermost stage that is going on in the main thread."""

    def __init__(self, began: float):
        self.began = began
        self.seconds: dict[str, float] = {"python": time.monotonic() - began}
        self.first_round_seconds: float | None = None
        self.first_round_cpu_seconds: float | None = None
        self._open: list[str] = ["rest"]
        self._since = time.monotonic()
        self._thread = threading.get_ident()

    def _switch(self) -> None:
        now = time.monotonic()
        stage = self._open[-1]
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def around(self, stage: str, function: Any) -> Any:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            self._switch()
            self._open.append(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()
                if stage == "recording" and self.first_round_seconds is None and args and _is_first_round(args):
                    self.first_round_seconds = time.monotonic() - self.began
                    self.first_round_cpu_seconds = time.process_time()

        return timed

    def result(self) -> dict[str, Any]:
        """Everything that was measured."""
        self._switch()
        return {
            "first_round_seconds": self.first_round_seconds,
            "first_round_cpu_seconds": self.first_round_cpu_seconds,
            "stages": self.seconds,
        }


def _is_first_round(args: tuple[Any, ...]) -> bool:
    snapshot = getattr(args[1], "snapshot", None) if len(args) > 1 else None
    return getattr(snapshot, "round", None) == 1


def run_here(arguments: list[str], output: Path, began: float) -> None:
    """Runs `fedarena` with these arguments in this process, with stopwatches."""
    watch = Stopwatch(began)
    bootstrap: Any = sys.modules["_frozen_importlib"]
    find_and_load = bootstrap._find_and_load
    waiting: dict[str, list[tuple[str, str | None, str]]] = {}
    for stage, module, owner, name in STAGES:
        waiting.setdefault(module, []).append((stage, owner, name))

    def load(name: str, import_: Any) -> Any:
        module = timed_load(name, import_)
        for stage, owner, function in waiting.pop(name, ()):
            place = getattr(module, owner) if owner else module
            found = vars(place)[function]
            if isinstance(found, classmethod):
                setattr(place, function, classmethod(watch.around(stage, found.__func__)))
            else:
                setattr(place, function, watch.around(stage, found))
        return module

    timed_load = watch.around("imports", find_and_load)
    bootstrap._find_and_load = load
    sys.argv = ["fedarena", *arguments]
    try:
        from fedarena.cli import main

        main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        bootstrap._find_and_load = find_and_load
        result = watch.result()
        output.write_text(json.dumps(result), encoding="utf-8")


def measure(case: str, source: Path, warm_up: bool = False) -> dict[str, Any]:
    """One run of a case with the code of one checkout; a `warm_up` has a single round, and builds the federation."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        environment = {**os.environ, "PYTHONPATH": str(source / "src")}
        script = str(Path(__file__).resolve())
        began, cpu_before = time.monotonic(), _cpu_seconds_of_children()
        short = ["rounds=1"] if warm_up and CASES[case][0] == "run" else []
        command = [sys.executable, script, "--within", str(output), str(began), *CASES[case], *short]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        wall = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{case} failed:\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        found["stages"]["exit"] = wall - sum(found["stages"].values())
        return {"wall_seconds": wall, "cpu_seconds": _cpu_seconds_of_children() - cpu_before, **found}


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(case: str, found: dict[str, Any], label: str) -> None:
    """Prints a row of shares."""
    wall = found["wall_seconds"]
    stages = sorted(found["stages"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{stage} {seconds / wall:.0%}" for stage, seconds in stages if seconds >= 0.005 * wall)
    first = found["first_round_seconds"]
    until = "" if first is None else f", first round after {first:.2f} s (CPU {found['first_round_cpu_seconds']:.2f} s)"
    print(f"{case:12}{label:8}{wall:7.2f} s (CPU {found['cpu_seconds']:.2f} s){until}: {shares}", flush=True)


def show_ratios(case: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Prints how many times as long it took there."""
    keys = [key for key, value in here.items() if isinstance(value, float)]
    print(f"{case:12}ratio   " + ", ".join(f"{key} {there[key] / here[key]:.2f}" for key in keys), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--within"]:
        run_here(sys.argv[4:], Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[*CASES])
    parser.add_argument("--beside", type=Path, help="another checkout to compare with")
    parser.add_argument("--times", type=int, default=1, help="how often each is measured; the fastest counts")
    parser.add_argument("--output", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    sources = {"here": HERE.parent, **({"beside": options.beside} if options.beside else {})}
    results: dict[str, dict[str, Any]] = {}
    for case in options.cases:
        for source in sources.values():
            measure(case, source, warm_up=True)
        runs = [{label: measure(case, source) for label, source in sources.items()} for _ in range(options.times)]
        best = {label: min((run[label] for run in runs), key=lambda run: run["wall_seconds"]) for label in sources}
        for label, found in best.items():
            show(case, found, label)
        if "beside" in best:
            show_ratios(case, best["beside"], best["here"])
        results[case] = best
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
