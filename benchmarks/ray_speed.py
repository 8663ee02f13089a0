"""engine=ray beside engine=cohort, and beside Flower's simulation on Ray: rounds, memory, starting, losing a worker.

    python benchmarks/ray_speed.py [--clients 1000] [--workers 1 2] [--seconds 5] [--soak 1000] [--no-flower]

Every measurement is a fresh process. The work is an epoch of SGD of an MLP 784-200-62 by all clients in every round.
With k workers, engine=cohort has k threads. What `fedarena estimate` says is beside what is measured. Ratios are of
measurements in this one command; on a machine that others use, they say little.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from protocol import available_cores, read_answer
from tools import FLOWER, HERE, TOOLS, prepare_environment
from workloads import make_workload

WORKLOAD = "mlp"
SAMPLES = 50
WARM_UP_ROUNDS = 2
MOST_ROUNDS = 100_000
QUIET_LOAD = 0.5
BENCH = HERE.parent / ".bench"


def settings(store: Path, engine: dict[str, Any], clients: int) -> dict[str, Any]:
    return {
        "federation": {"name": "store", "path": str(store)},
        "model": {"name": "mlp", "hidden": [200]},
        "rounds": MOST_ROUNDS,
        "cohort": clients,
        "local": {"batch_size": 10, "lr": 0.1},
        "evaluation": {"every": MOST_ROUNDS, "part": "train", "max_clients": 5},
        "engine": engine,
    }


def measure_here(task: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in this process."""
    from fedarena.runs.config import merge, resolve
    from fedarena.runs.observer import Observer
    from fedarena.runs.run import Run

    class Silent(Observer):
        def warned(self, message: str) -> None:
            pass

    config = resolve(merge({}, settings(Path(task["store"]), task["engine"], task["clients"]) | {"name": "run"}))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = Run.create(config, Path(folder), Silent())
        started = time.perf_counter() - began
        run.advance(WARM_UP_ROUNDS)
        assert run.snapshot is not None
        state = run.snapshot.state["params"]
        hashed = hashlib.blake2b(b"".join(t.numpy().tobytes() for t in state.values()), digest_size=8).hexdigest()
        early_bytes = _resident_bytes()
        began, rounds = time.perf_counter(), 0
        while rounds < task["rounds"] or (not task["rounds"] and time.perf_counter() - began < task["seconds"]):
            run.advance(1)
            rounds += 1
        seconds = (time.perf_counter() - began) / rounds
        found = {
            "seconds_per_round": seconds,
            "rounds": rounds,
            "start_seconds": started,
            "model_after_warm_up": hashed,
            "resident_bytes_early": early_bytes,
            "resident_bytes": _resident_bytes(),
            "peak_bytes": _peak_bytes(),
        }
        if run._crew is not None:
            found["workers"] = run._crew.describe()
            if task["lose"]:
                began = time.perf_counter()
                os.kill(next(iter(run._crew.pool.members.values())).pid, signal.SIGKILL)
                run.advance(1)
                found["round_with_a_lost_worker_seconds"] = time.perf_counter() - began
                while len(run._crew.pool.members) < task["engine"]["workers"]:
                    run.advance(1)
                found["replaced_after_seconds"] = time.perf_counter() - began
        run.close()
    return found


def _resident_bytes() -> int:
    """Of this process, without what it shares with others."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _peak_bytes() -> int:
    """The most that this process had in memory, with what it shares; not of the one that it was made from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def in_fresh_process(task: dict[str, Any]) -> dict[str, Any]:
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
    command = [sys.executable, __file__, "--task", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _watch(process: subprocess.Popen[str], seen: list[int]) -> None:
    """Notes how much memory Flower and its workers take, without what they share."""
    while process.poll() is None:
        total = 0
        for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
            with contextlib.suppress(OSError, ValueError):  # it has ended
                line = (path.parent / "cmdline").read_bytes()
                if b"ray::" in line or b"raylet" in line or b"gcs_server" in line or b"flower_speed" in line:
                    rows = path.read_text().splitlines()
                    total += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
        seen.append(total)
        time.sleep(1.0)


def flower(clients: int, seconds: float) -> dict[str, Any]:
    """Flower's Ray simulation on all cores, in an environment of its own."""
    python = prepare_environment(FLOWER, BENCH, lambda message: print(message, flush=True))
    arguments = [
        "--workload",
        WORKLOAD,
        "--seconds",
        str(seconds),
        "--clients",
        str(clients),
        "--samples",
        str(SAMPLES),
    ]
    variables = {
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "peers")]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    process = subprocess.Popen(
        [python, str(HERE / TOOLS[FLOWER].script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | variables,
        cwd=BENCH,
    )
    seen = [0]
    watching = threading.Thread(target=_watch, args=(process, seen), daemon=True)
    watching.start()
    output, _ = process.communicate()
    answer = read_answer(output)
    per_second = float(answer["clients_per_second"])  # type: ignore[arg-type]
    return {"seconds_per_round": clients / per_second, "peak_bytes_of_all_processes": max(seen), **answer}


def estimated(store: Path, clients: int, workers: list[int]) -> dict[int, float]:
    from fedarena.runs.cluster.estimate import estimate_round, measure_round
    from fedarena.runs.config import merge, resolve
    from fedarena.runs.observer import Observer

    cost = measure_round(resolve(merge({}, settings(store, {"name": "ray", "workers": 0}, clients))), Observer())
    return {number: estimate_round(cost, number).seconds for number in workers}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0, help="of every measurement")
    parser.add_argument("--soak", type=int, default=0, help="rounds of a long run whose memory is looked at")
    parser.add_argument("--no-flower", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(measure_here(json.loads(arguments.task))))
        return 0
    from fedarena.core.files import write_json
    from fedarena.runs.environment import describe_environment
    from ours_speed import write_federation

    cores = available_cores()
    counts = arguments.workers or sorted(
        {2**power for power in range(cores.bit_length()) if 2**power <= cores} | {cores}
    )
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"Warning: the load average is {load:.2f}; other processes disturb what is measured here.", flush=True)
    results: dict[str, Any] = {"clients": arguments.clients, "load": load, "rounds": []}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write_federation(make_workload(WORKLOAD, arguments.clients, SAMPLES), store)
        common = {"store": str(store), "clients": arguments.clients, "seconds": arguments.seconds, "rounds": 0}
        expected = estimated(store, arguments.clients, counts)
        for workers in counts:
            alone = in_fresh_process({**common, "engine": {"name": "cohort", "workers": workers}, "lose": False})
            ray = in_fresh_process({**common, "engine": {"name": "ray", "workers": workers}, "lose": workers > 1})
            row = {"workers": workers, "cohort": alone, "ray": ray, "estimated_seconds": expected[workers]}
            results["rounds"].append(row)
            same = "same bits" if ray["model_after_warm_up"] == alone["model_after_warm_up"] else "OTHER BITS"
            print(
                f"{workers} workers: a round takes {alone['seconds_per_round']:.3f} s with engine=cohort, "
                f"{ray['seconds_per_round']:.3f} s with engine=ray "
                f"({ray['seconds_per_round'] / alone['seconds_per_round']:.2f}x), {expected[workers]:.3f} s estimated; "
                f"start {ray['start_seconds']:.1f} s; driver {ray['peak_bytes'] / 2**20:.0f} MiB; {same}",
                flush=True,
            )
        first = results["rounds"][0]["ray"]["seconds_per_round"] * counts[0]
        for row in results["rounds"]:
            row["efficiency"] = first / (row["workers"] * row["ray"]["seconds_per_round"])
        if arguments.soak:
            engine = {"name": "ray", "workers": counts[-1]}
            results["soak"] = in_fresh_process({**common, "engine": engine, "rounds": arguments.soak, "lose": False})
            print(f"{arguments.soak} rounds: {results['soak']}", flush=True)
    if not arguments.no_flower:
        try:
            results["flower"] = flower(arguments.clients, arguments.seconds)
        except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            results["flower"] = {"failed": str(error)}
        else:
            slower = results["flower"]["seconds_per_round"] / results["rounds"][-1]["ray"]["seconds_per_round"]
            print(f"Flower: {results['flower']['seconds_per_round']:.2f} s a round, {slower:.1f}x ours", flush=True)
    if arguments.output:
        write_json(arguments.output, {"environment": describe_environment(), **results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
