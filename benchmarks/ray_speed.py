"""engine=ray beside engine=cohort, and beside Flower's simulation on Ray: rounds, memory, starting, losing a worker.

    python benchmarks/ray_speed.py [--clients 1000] [--epochs 1] [--workers 1 2] [--repetitions 3] [--no-flower]
    python benchmarks/ray_speed.py --algorithm scaffold --states files --no-flower
    python benchmarks/ray_speed.py --soak 1000 [--soak-clients 50]    # only that: memory in a long run, what is spilled
    python benchmarks/ray_speed.py --lose-node                        # only that: a machine of three is killed

Every measurement is a fresh process; both engines take turns, and the median of their repetitions counts. The work is
an epoch of SGD of an MLP 784-200-62 by all clients in every round. With k workers, engine=cohort has k threads. What
`fedarena estimate` says is beside what is measured. Ratios are of measurements in this one command; on a machine that
others use, they say little. In a virtual machine two processors may be halves of one core without anybody being told:
with `--cores`, workers and threads stay on those that are named, and what as many processes keep of their speed that
share nothing (`benchmarks/machine_speed.py`) is told beside what workers keep.

The driver's memory is told twice. *Of its own* is what no other process could share (anonymous pages). Its *resident*
memory has the code of libraries as well, which all processes of a machine have in memory once, and what it has looked
at in Ray's store, which is shared, too.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine_speed import efficiencies
from memory import run_watched
from protocol import available_cores, read_answer
from tools import FLOWER, HERE, TOOLS, prepare_environment
from workloads import make_workload

WORKLOAD = "mlp"
SAMPLES = 50
WARM_UP_ROUNDS = 1
MOST_ROUNDS = 100_000
QUIET_LOAD = 0.5
BENCH = HERE.parent / ".bench"
STATES = {"files": 0, "driver": 2**62}  # bytes above which workers write what clients keep to files
SOAK_LOOKS = 20  # at memory in a long run
NODES = 2  # machines with a worker, of a cluster of which one is killed
NODE_STORE_BYTES = 80 * 2**20
MOST_RECOVERY_SECONDS = 120.0


def settings(
    store: Path, engine: dict[str, Any], clients: int, epochs: int = 1, algorithm: str = "fedavg"
) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "federation": {"name": "store", "path": str(store)},
        "model": {"name": "mlp", "hidden": [200]},
        "rounds": MOST_ROUNDS,
        "cohort": clients,
        "local": {"batch_size": 10, "lr": 0.1, "epochs": epochs},
        "evaluation": {"every": MOST_ROUNDS, "part": "train", "max_clients": 5},
        "engine": engine,
    }


def measure_here(task: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in this process."""
    if task["states"] is not None:
        from fedarena.runs.cluster import shared_states

        shared_states.ABOVE_BYTES = STATES[task["states"]]
    _stay_on(task["cores"], task["engine"])
    with _cluster(task["lose"] == "node") as machines, tempfile.TemporaryDirectory() as folder:
        engine = task["engine"] if machines is None else task["engine"] | {"address": machines.address}
        began = time.perf_counter()
        watch = _Watch()
        run = _create(task | {"engine": engine}, Path(folder), watch)
        started = time.perf_counter() - began
        if run._crew is not None and task["cores"]:
            for core, member in zip(task["cores"], run._crew.pool.members.values(), strict=False):
                os.sched_setaffinity(member.pid, {core})
        run.advance(WARM_UP_ROUNDS)
        assert run.snapshot is not None
        state = run.snapshot.state["params"]
        hashed = hashlib.blake2b(b"".join(t.numpy().tobytes() for t in state.values()), digest_size=8).hexdigest()
        watch.begin(task["rounds"], task["seconds"])
        run.advance()
        found = {
            "seconds_per_round": watch.seconds / watch.rounds,
            "rounds": watch.rounds,
            "start_seconds": started,
            "model_after_warm_up": hashed,
            **watch.memory(),
        }
        if run._crew is not None:
            found["workers"] = run._crew.describe()
            if task["rounds"]:
                found["spilled"] = _spilled()
            if task["lose"]:
                found |= _lose(run, machines, task["engine"]["workers"])
        run.close()
    return found


def _stay_on(cores: list[int] | None, engine: dict[str, Any]) -> None:
    """Has this process use some processors only: those of its threads, or as a driver the ones that workers leave."""
    if cores:
        others = os.sched_getaffinity(0).difference(cores) or set(cores)
        os.sched_setaffinity(0, others if engine["name"] == "ray" and engine["workers"] else cores[: engine["workers"]])


def _create(task: dict[str, Any], folder: Path, watch: _Watch) -> Any:
    from fedarena.runs.config import resolve
    from fedarena.runs.merging import merge
    from fedarena.runs.observer import Observer
    from fedarena.runs.run import Run

    class Silent(Observer):
        def warned(self, message: str) -> None:
            pass

    chosen = settings(Path(task["store"]), task["engine"], task["clients"], task["epochs"], task["algorithm"])
    return Run.create(resolve(merge({}, chosen | {"name": "run"})), folder, Silent(), callbacks=[watch])


class _Watch:
    """Counts rounds, looks at memory now and then, and has the run pause when it was long enough."""

    def __init__(self) -> None:
        self.rounds, self.seconds, self._began = 0, 0.0, 0.0
        self._most_rounds, self._most_seconds, self._is_on = 0, 0.0, False
        self._own: list[int] = []
        self._resident: list[int] = []

    def begin(self, rounds: int, seconds: float) -> None:
        self._most_rounds, self._most_seconds, self._is_on = rounds, seconds, True
        self._began = time.perf_counter()

    def __call__(self, run: Any, row: Any) -> Any:
        from fedarena.runs.callbacks import Stop

        if not self._is_on:
            return None
        self.rounds += 1
        self.seconds = time.perf_counter() - self._began
        if self.rounds % max(1, self._most_rounds // SOAK_LOOKS) == 0:
            known = _memory()
            self._own.append(known["RssAnon"])
            self._resident.append(known["VmRSS"])
        over = self.rounds >= self._most_rounds if self._most_rounds else self.seconds >= self._most_seconds
        self._is_on = not over
        return Stop("it was long enough", for_good=False) if over else None

    def memory(self) -> dict[str, Any]:
        found = {"own_bytes": max(self._own), "resident_peak_bytes": _memory()["VmHWM"]}
        if not self._most_rounds:
            return found
        return found | {"own_bytes_by_time": self._own, "resident_bytes_by_time": self._resident}


def _memory() -> dict[str, int]:
    """Of this process, in bytes, as the kernel calls it."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in lines if name in ("VmHWM", "VmRSS", "RssAnon")}


@contextlib.contextmanager
def _cluster(is_wanted: bool) -> Iterator[Any]:
    """A head without workers and as many machines as cores can tell apart, all of them on this one; or None."""
    if not is_wanted:
        yield None
        return
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": NODE_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1, object_store_memory=NODE_STORE_BYTES)
        yield cluster
    finally:
        cluster.shutdown()


def _lose(run: Any, machines: Any, workers: int) -> dict[str, float]:
    """Kills a worker or its whole machine in the middle of a round: how long that takes, and until all are back."""
    pool, began = run._crew.pool, time.perf_counter()
    run.advance(1)
    usual = time.perf_counter() - began
    before, began = pool.lost, time.perf_counter()
    if machines is None:
        os.kill(next(iter(pool.members.values())).pid, signal.SIGKILL)
    else:
        node = next(node for node in machines.list_all_nodes() if node is not machines.head_node)
        threading.Timer(usual / 2, machines.remove_node, [node], {"allow_graceful": False}).start()
    while pool.lost == before:
        began_round = time.perf_counter()
        run.advance(1)
    found = {"usual_round_seconds": usual, "round_with_a_loss_seconds": time.perf_counter() - began_round}
    if machines is not None:
        machines.add_node(num_cpus=1, object_store_memory=NODE_STORE_BYTES)
    while len(pool.members) < workers and time.perf_counter() - began < MOST_RECOVERY_SECONDS:
        run.advance(1)
    return found | {"all_back_after_seconds": time.perf_counter() - began}


def _spilled() -> str:
    """What Ray says about what its store had to put on disk."""
    import ray
    from ray._private.internal_api import memory_summary

    address = ray.get_runtime_context().gcs_address  # there may be other clusters on this machine
    lines = memory_summary(address, stats_only=True).splitlines()
    return "; ".join(line.strip() for line in lines if "pill" in line) or "nothing"


def in_fresh_process(task: dict[str, Any]) -> dict[str, Any]:
    variables = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
    command = [sys.executable, __file__, "--task", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


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
    done, peak_bytes = run_watched(
        [python, str(HERE / TOOLS[FLOWER].script), *arguments], env=os.environ | variables, cwd=BENCH
    )
    answer = read_answer(done.stdout)
    per_second = float(answer["clients_per_second"])  # type: ignore[arg-type]
    return {"seconds_per_round": clients / per_second, "peak_bytes_of_all_processes": peak_bytes, **answer}


def estimated(store: Path, clients: int, epochs: int, algorithm: str, workers: list[int]) -> dict[int, float]:
    from fedarena.runs.cluster.estimate import estimate_round, measure_round
    from fedarena.runs.config import resolve
    from fedarena.runs.merging import merge
    from fedarena.runs.observer import Observer

    chosen = settings(store, {"name": "ray", "workers": 0}, clients, epochs, algorithm)
    cost = measure_round(resolve(merge({}, chosen)), Observer())
    return {number: estimate_round(cost, number).seconds for number in workers}


def median(repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """The measurement in the middle, with the seconds of all."""
    in_order = sorted(repetitions, key=lambda found: found["seconds_per_round"])
    seconds = [found["seconds_per_round"] for found in repetitions]
    return {**in_order[len(in_order) // 2], "seconds_of_repetitions": seconds}


def compare(arguments: argparse.Namespace, counts: list[int], common: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for every number of workers, with both engines."""
    rows: list[dict[str, Any]] = []
    lose = None if arguments.no_loss else "worker"
    expected = estimated(Path(common["store"]), arguments.clients, arguments.epochs, arguments.algorithm, counts)
    of_machine = efficiencies(counts)
    for workers in counts:
        cohort_task = {**common, "engine": {"name": "cohort", "workers": workers}, "lose": None}
        ray_task = {**common, "engine": {"name": "ray", "workers": workers}, "lose": lose if workers > 1 else None}
        in_turns = [(in_fresh_process(cohort_task), in_fresh_process(ray_task)) for _ in range(arguments.repetitions)]
        alone, ray = (median(list(repetitions)) for repetitions in zip(*in_turns, strict=True))
        row = {"workers": workers, "cohort": alone, "ray": ray, "estimated_seconds": expected[workers]}
        rows.append(row)
        first = rows[0]["ray"]["seconds_per_round"] * counts[0]
        row["efficiency"] = first / (workers * ray["seconds_per_round"])
        row["efficiency_of_machine"] = of_machine[workers]
        same = "same bits" if ray["model_after_warm_up"] == alone["model_after_warm_up"] else "OTHER BITS"
        print(
            f"{workers} workers: a round takes {alone['seconds_per_round']:.3f} s with engine=cohort, "
            f"{ray['seconds_per_round']:.3f} s with engine=ray "
            f"({ray['seconds_per_round'] / alone['seconds_per_round']:.2f}x), {expected[workers]:.3f} s estimated; "
            f"efficiency {row['efficiency']:.2f}, of processes that share nothing {of_machine[workers]:.2f}; "
            f"start {ray['start_seconds']:.1f} s; "
            f"driver {ray['own_bytes'] / 1e6:.0f} MB of its own, {ray['resident_peak_bytes'] / 1e6:.0f} MB resident; "
            f"{same}",
            flush=True,
        )
    return rows


def compare_flower(arguments: argparse.Namespace, ours_seconds: float) -> dict[str, Any]:
    try:
        found = flower(arguments.clients, arguments.seconds)
    except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        return {"failed": str(error)}
    slower = found["seconds_per_round"] / ours_seconds
    print(f"Flower: {found['seconds_per_round']:.2f} s a round, {slower:.1f}x ours", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--states", choices=STATES, help="how what clients keep gets to workers, whatever its size")
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0, help="of every measurement")
    parser.add_argument("--repetitions", type=int, default=3, help="of every measurement, of which the median counts")
    parser.add_argument("--soak", type=int, default=0, help="rounds of a long run whose memory is looked at")
    parser.add_argument("--soak-clients", type=int, default=50)
    parser.add_argument("--lose-node", action="store_true", help="kill a machine in the middle of a round")
    parser.add_argument("--cores", type=int, nargs="+", help="processors, one for every worker or thread")
    parser.add_argument("--no-loss", action="store_true", help="kill no worker")
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
    powers = {2**power for power in range(cores.bit_length()) if 2**power <= cores}
    counts = arguments.workers or sorted(powers | {cores})
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        print(f"Warning: the load average is {load:.2f}; other processes disturb what is measured here.", flush=True)
    clients = arguments.soak_clients if arguments.soak else arguments.clients
    results: dict[str, Any] = {"clients": clients, "epochs": arguments.epochs, "load": load}
    results |= {"algorithm": arguments.algorithm, "states": arguments.states}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write_federation(make_workload(WORKLOAD, clients, SAMPLES), store)
        common = {"store": str(store), "clients": clients, "epochs": arguments.epochs, "seconds": arguments.seconds}
        common |= {"rounds": arguments.soak, "lose": None, "algorithm": arguments.algorithm, "states": arguments.states}
        common["cores"] = arguments.cores
        if arguments.soak:
            engine = {"name": "ray", "workers": counts[-1]}
            results["soak"] = in_fresh_process({**common, "engine": engine})
            print(f"{arguments.soak} rounds: {results['soak']}", flush=True)
        elif arguments.lose_node:
            engine = {"name": "ray", "workers": NODES}
            results["lost_node"] = in_fresh_process({**common, "engine": engine, "lose": "node"})
            print(f"A lost machine: {results['lost_node']}", flush=True)
        else:
            results["rounds"] = compare(arguments, counts, common)
            if not arguments.no_flower:
                results["flower"] = compare_flower(arguments, results["rounds"][-1]["ray"]["seconds_per_round"])
    if arguments.output:
        write_json(arguments.output, {"environment": describe_environment(), **results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
