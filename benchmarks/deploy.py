"""Runs on a network, measured on this machine: rounds of a tiny model, large updates, a crowd that waits; and Flower.

    python benchmarks/deploy.py [--output docs/benchmarks/deploy.json] [--parts rounds updates] [--small]

- *rounds*: three rounds of a tiny model with real clients, each a process, from the first task to the last commit, with
  mutual TLS and every update on disk before its receipt; beside Flower's SuperLink and SuperNodes with the same model
  and clients, without TLS, from the first message of its server's program to the last.
- *updates*: 100 updates of 45 MB added up in one round: by how much the server's memory grows meanwhile.
- *crowd*: 1,000 devices that wait for a task: by how much the server's memory grows, and how long an answer takes.

Memory is that of the server's process. Most of it are libraries (torch, Arrow), which are there before any device; so
it is told how much there was before, and how much more there was at most. Only 127.0.0.1 is used.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fedarena.deploy.folder import Address, DeployFolder
from fedarena.storage.run_data import load_run
from tools import FLOWER, HERE, prepare_environment

MIB = 1 << 20
PARTS = ["rounds", "flower", "updates", "crowd"]
ROUNDS, CLIENTS = 3, 2
HIDDEN_OF_45_MB = 157_000  # of an MLP 64-h-10
COMMAND = [sys.executable, "-c", "from fedarena.cli import main; main()"]
DATA = """import numpy as np


def load():
    random = np.random.default_rng(0)
    return random.random((40, 1, 8, 8), dtype=np.float32), random.integers(0, 10, 40)
"""


def settings(clients: int, hidden: int, rounds: int, steps: int) -> dict[str, Any]:
    return {
        "name": "bench",
        "federation": {"name": "digits", "partition": {"name": "iid", "clients": 2}},
        "model": {"name": "mlp", "hidden": [hidden]},
        "rounds": rounds,
        "cohort": clients,
        "local": {"steps": steps, "batch_size": 8},
        "evaluation": {"every": rounds, "max_clients": 1},
        "deploy": {"min_clients": clients},
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Memory(threading.Thread):
    """Watches how much memory a process has; `grown` since it was last told to `begin`."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._pid, self._done = pid, threading.Event()
        self.before = self.most = 0
        self.start()

    def now(self) -> int:
        try:
            lines = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")]
        return found[0] if found else 0

    def begin(self) -> None:
        self.before = self.most = self.now()

    def run(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, self.now())

    def end(self) -> dict[str, float]:
        self._done.set()
        return {
            "before_mb": round(self.before / MIB, 1),
            "most_mb": round(self.most / MIB, 1),
            "grown_mb": round((self.most - self.before) / MIB, 1),
        }


@contextmanager
def server(folder: Path, names: Sequence[str], config: dict[str, Any]) -> Iterator[tuple[DeployFolder, Any]]:
    """A server that listens, as a process."""
    deployed = DeployFolder.create(folder / "deploy", Address("127.0.0.1", free_port()))
    (folder / "invitations").mkdir()
    for name in names:
        (folder / "invitations" / f"{name}.zip").write_bytes(deployed.invite(name, 1)[1])
    (folder / "run.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [*COMMAND, "deploy", "run", str(folder / "run.yaml"), "--at", str(deployed.path)]
    with open(folder / "server.txt", "w", encoding="utf-8") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            wait_for_port(deployed.address.port, process, folder / "server.txt")
            yield deployed, process
        finally:
            process.kill()
            process.wait()


def wait_for_port(port: int, process: Any, said: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    sys.exit(f"The server did not begin:\n{said.read_text(encoding='utf-8')}")


def rounds() -> dict[str, Any]:
    """Three rounds with real clients."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mydata.py").write_text(DATA, encoding="utf-8")
        names = [f"phone{number}" for number in range(CLIENTS)]
        with server(folder, names, settings(CLIENTS, 16, ROUNDS, 2)) as (deployed, process):
            clients = {}
            for client in names:
                invitation = folder / "invitations" / f"{client}.zip"
                command = [sys.executable, "-m", "fedarena.client", str(invitation), "--data", "mydata.py:load"]
                with open(folder / f"{client}.txt", "w", encoding="utf-8") as said:
                    clients[client] = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    time.sleep(0.05)
                    for client, one in clients.items():
                        if one.poll():
                            sys.exit(f"A client failed: {(folder / f'{client}.txt').read_text(encoding='utf-8')}")
            finally:
                for one in clients.values():
                    one.kill()
                    one.wait()
            run = load_run(deployed.runs / "bench")
        jobs = run.jobs.to_pydict()
        if jobs["outcome"] != ["used"] * ROUNDS * CLIENTS:
            sys.exit(f"Not all updates were used: {jobs['outcome']}")
        timings = run.timings.to_pydict()
        seconds = max(jobs["end_seconds"]) - min(jobs["begin_seconds"])
        return {"rounds": ROUNDS, "clients": CLIENTS, "seconds": round(seconds, 3)} | {
            "train_seconds_of_rounds": [round(value, 3) for value in timings["train_seconds"][1:]]
        }


def crowd(what: str, devices: int, number: float, config: dict[str, Any]) -> dict[str, Any]:
    """What `deploy_crowd.py` does with a server, and the memory of that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(folder, [f"phone{number:04}" for number in range(devices)], config) as (deployed, process):
            time.sleep(1.0)
            memory = Memory(process.pid)
            memory.begin()
            arguments = [what, str(folder / "invitations"), str(deployed.address.port), str(number)]
            done = subprocess.run(
                [sys.executable, str(HERE / "deploy_crowd.py"), *arguments],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if done.returncode:
                sys.exit(f"The crowd failed; the server said:\n{(folder / 'server.txt').read_text(encoding='utf-8')}")
            return {**json.loads(done.stdout), "server_memory": memory.end()}


def flower() -> dict[str, Any]:
    """The same three rounds by Flower's SuperLink and SuperNodes, in an environment of its own."""
    python = prepare_environment(FLOWER, HERE.parent / ".bench", lambda message: print(message, flush=True))
    command = [python, str(HERE / "peers" / "flower_deployed.py"), str(ROUNDS), str(CLIENTS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"Flower failed: {done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="others stay as they are in the file")
    parser.add_argument("--small", action="store_true", help="everything at a small size, to see that it works")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hidden, updates, devices, seconds = (1000, 4, 20, 1.0) if arguments.small else (HIDDEN_OF_45_MB, 100, 1000, 30.0)
    output, parts = arguments.output, arguments.parts
    results: dict[str, Any] = {"command": f"python benchmarks/deploy.py{' --small' if arguments.small else ''}"}
    if output is not None and output.exists() and set(parts) != set(PARTS):
        results |= json.loads(output.read_text(encoding="utf-8"))
    if "rounds" in parts:
        results["rounds"] = rounds()
        print(f"{ROUNDS} rounds: {results['rounds']['seconds']:.2f} s", flush=True)
    if "flower" in parts:
        results["flower"] = flower()
        print(f"Flower: {results['flower']['seconds']:.2f} s", flush=True)
    if {"rounds", "flower"} <= set(parts):  # of one run alone
        results["flower_slower"] = round(results["flower"]["seconds"] / results["rounds"]["seconds"], 1)
    if "updates" in parts:
        results["updates"] = crowd("upload", updates, 1, settings(updates, hidden, 1, 1))
        grown = results["updates"]["server_memory"]
        print(f"{updates} updates of {results['updates']['bytes_each'] / 1e6:.0f} MB: {grown}", flush=True)
    if "crowd" in parts:
        waiting = settings(devices, 16, 1, 1) | {"cohort": devices, "deploy": {"min_clients": devices + 1}}
        results["crowd"] = crowd("poll", devices, seconds, waiting)
        print(f"{devices} devices: {results['crowd']['next_seconds']}, {results['crowd']['server_memory']}", flush=True)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
