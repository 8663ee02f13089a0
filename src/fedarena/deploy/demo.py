"""A deployment that needs nothing but this machine: a server, and clients that are processes of their own.

Each client gets an invitation and the samples of one client of a federation, in a folder of its own, as if it were a
device somewhere else. They speak with the server as devices do, encrypted and through sockets. In the end the model is
compared with that of a simulation of the same settings.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fedarena.client.identity import GRPC
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.data import Federation
from fedarena.deploy.authority import write_secret
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.runs.building import prepare
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation
from fedarena.simulate import ClientStates, simulate
from fedarena.storage.checkpoint import read_snapshot, read_state
from fedarena.train import flatten_groups
from fedarena.train.engine import Part

CLIENTS = 4
_PARTS: tuple[Part, ...] = ("train", "validation", "test")
_ENDING_SECONDS = 20.0  # within which clients hear that the run is over
_FUNCTION = '''"""What a device trains on: here, samples that `fedarena deploy demo` put beside this file."""

from pathlib import Path

import numpy as np


def load():
    columns = np.load(Path(__file__).with_name("samples.npz"))
    parts = {}
    for name in columns.files:
        part, _, column = name.partition("/")
        parts.setdefault(part, {})[column] = columns[name]
    return parts
'''


@dataclass(frozen=True)
class Demo:
    """A deployment on this machine that is ready to start."""

    folder: DeployFolder
    config: RunConfig
    clients: tuple[Path, ...]  # the folder of each


def demo_settings(clients: int) -> dict[str, Any]:
    """A run of a few seconds: handwritten digits, of which no two clients have the same mixture."""
    return {
        "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": clients, "min_samples": 8}},
        "model": {"name": "mlp", "hidden": [32]},
        "algorithm": "scaffold",
        "rounds": 5,
        "cohort": max(1, clients * 3 // 4),
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.05},
        "evaluation": {"every": 1},
        "engine": {"name": "reference", "device": "cpu"},
        "deploy": {"min_clients": clients},
    }


def set_up(path: Path, clients: int, overrides: Mapping[str, Any], transport: str = GRPC) -> Demo:
    """Makes the deploy folder, the invitations, and the data of every client."""
    if clients < 1:
        raise BadInputError(f"A demo needs at least 1 client, not {clients}")
    config = resolve(merge(demo_settings(clients), overrides))
    federation, config = open_federation(config, Observer())
    holders = federation.clients("train")
    if len(holders) != clients or (federation.counts(holders, "train") == 0).any():
        raise BadInputError(
            f"The federation {federation.name!r} has {len(holders)} training clients, and {clients} were asked for; "
            f"say --clients {len(holders)}"
        )
    folder = DeployFolder.create(path, Address("127.0.0.1", _free_port()), transport)
    places = []
    for client in holders.tolist():
        name = f"client{client}"
        place = path / "clients" / name
        place.mkdir(parents=True)
        _, invitation = folder.invite(name, days=30)
        write_secret(place / f"{name}.zip", invitation)
        _write_samples(federation, client, place)
        places.append(place)
    return Demo(folder, config, tuple(places))


class LocalClients:
    """The clients of a demo as processes; what they say is in the file ``log`` of their folders."""

    def __init__(self, demo: Demo):
        self._demo = demo
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> LocalClients:
        here = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        for place in self._demo.clients:
            command = [sys.executable, "-m", "fedarena.client", f"{place.name}.zip", "--data", "mydata.py:load"]
            with open(place / "log", "wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [*command, "--device", "cpu"],
                        cwd=place,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        return self

    def wait(self) -> None:
        """Waits until all have heard that the run is over; says so if one ended otherwise."""
        for place, process in zip(self._demo.clients, self._processes, strict=True):
            try:
                code = process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                code = -1
            if code:
                last = (place / "log").read_text(errors="replace").strip().splitlines()[-1:]
                raise RunFailedError(f"{place.name} did not end well: {' '.join(last) or 'it is still at work'}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def differing_tensors(run_folder: Path, config: RunConfig) -> tuple[list[str], int]:
    """The tensors of the server that are not, bit for bit, those of a simulation; and how many numbers there are."""
    *_, last = simulate(prepare(config, Observer()).simulation)
    wanted = flatten_groups(last.snapshot.state)
    state = read_state(run_folder)
    assert state is not None  # the run has ended
    found = flatten_groups(read_snapshot(run_folder, state, ClientStates()).state)
    differing = [name for name in wanted if name not in found or not torch.equal(found[name], wanted[name])]
    return differing + [name for name in found if name not in wanted], sum(t.numel() for t in wanted.values())


def _write_samples(federation: Federation, client: int, place: Path) -> None:
    parts = {part: federation.samples(np.array([client]), part).columns for part in _PARTS}
    columns: dict[str, Any] = {f"{part}/{name}": t for part, one in parts.items() for name, t in one.items()}
    np.savez(place / "samples.npz", **columns)
    (place / "mydata.py").write_text(_FUNCTION)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
