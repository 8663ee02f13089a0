"""Small deployments for tests: a deploy folder, a server, and devices that are threads of this process."""

from __future__ import annotations

import _thread
import asyncio
import hashlib
import io
import json
import socket
import threading
import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from fedarena.client import codec
from fedarena.client.messages import job_of, report_of, sent_update, split_model
from fedarena.client.scores import measured
from fedarena.core.version import VERSION
from fedarena.deploy.folder import Address, DeployFolder
from fedarena.deploy.serving import DeployedServer, open_server
from fedarena.runs.building import Experiment, prepare
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.simulate import simulate
from fedarena.train import Groups, Shard, flatten_groups, take_row, unflatten_groups

CLIENTS = 4
SMALL: dict[str, Any] = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": CLIENTS, "min_samples": 5}},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "cohort": 3,
    "local": {"steps": 2, "batch_size": 4},
    "evaluation": {"every": 3, "max_clients": 2},
    "engine": {"name": "reference"},
}


def small_config(**settings: Any) -> RunConfig:
    return resolve(merge({}, SMALL | settings))


def deploy_folder(path: Path, clients: int = CLIENTS, transport: str = "grpc") -> tuple[DeployFolder, dict[str, bytes]]:
    """A new deploy folder, and the invitations of its devices."""
    folder = DeployFolder.create(path, Address("127.0.0.1", 1), transport)
    return folder, {f"phone{number}": folder.invite(f"phone{number}", 30)[1] for number in range(clients)}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def files_of(invitation: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(invitation)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def bits_of(state: Groups) -> str:
    digest = hashlib.sha256()
    for name, t in sorted(flatten_groups(state).items()):
        digest.update(name.encode() + t.numpy().tobytes())
    return digest.hexdigest()


def simulated_state(config: RunConfig) -> dict[str, torch.Tensor]:
    """What the simulation of the same settings comes to."""
    *_, last = simulate(prepare(config, Observer()).simulation)
    return flatten_groups(last.snapshot.state)


def simulated_bits(config: RunConfig) -> str:
    return bits_of(unflatten_groups(simulated_state(config)))


class Trainer:
    """What devices compute: the reference engine of the same run, one client at a time."""

    def __init__(self, config: RunConfig):
        self.experiment: Experiment = prepare(config, Observer())
        self.path = self.experiment.simulation.path
        self.engine: Any = self.experiment.simulation.engine
        self.task = self.engine.task

    def join_message(self, client: int) -> dict[str, Any]:
        federation = self.experiment.federation
        counts = {part: int(federation.counts(np.array([client]), part)[0]) for part in ("train", "validation", "test")}
        columns = {name: [column.dtype, list(column.shape)] for name, column in federation.columns.items()}
        return {"protocol": 1, "fedarena": VERSION, "torch": "2", "samples": counts, "device": None, "columns": columns}

    def train(self, task: dict[str, Any], blob: bytes, client: int, kept: Groups | None) -> tuple[bytes, Any, Any]:
        """The body and the report of an upload, and what the device keeps."""
        jobs = job_of(task, client)
        broadcast, told = split_model(codec.decode_groups(blob), len(self.path.transforms))
        states = {} if kept is None else {client: kept}
        shard = Shard(jobs, {int(jobs.versions[0]): broadcast}, states, self.engine.local.batch_size)
        (result,) = self.engine.train(shard)
        sent = self.path.send(result, shard, told, self.path.on_devices, packs=True)
        rows = [state for _, state in sent.client_states]
        report = {**report_of(sent), "seconds": {"download": 0.0, "train": 0.0}, "joules": None}
        return codec.encode_groups(sent_update(sent)), report, take_row(rows[0], 0) if rows else kept


class Phone:
    """One device on the network; `calls` are made on its own connection."""

    def __init__(self, name: str, client: int, invitation: bytes, port: int, trainer: Trainer):
        files = files_of(invitation)
        credentials = grpc.ssl_channel_credentials(files["ca.crt"], files["client.key"], files["client.crt"])
        self.name, self.client, self.trainer, self.kept = name, client, trainer, None
        self.undecided: dict[str, Any] = {}  # what it keeps if its last update is used
        soon = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        self.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=soon)
        self.run: str | None = None
        self.uploads = 0
        self.trained: list[str] = []
        self.broke_off = False

    async def call(self, name: str, message: Any) -> dict[str, Any]:
        request = json.dumps(message).encode()

        async def once() -> bytes:
            return await self.channel.unary_unary(f"/fedarena.v1/{name}")(request, timeout=60, wait_for_ready=True)

        return json.loads(await _until_it_works(once))

    async def join(self) -> dict[str, Any]:
        answer = await self.call("Join", self.trainer.join_message(self.client))
        self.run = answer.get("run")
        return answer

    async def next(self, **more: Any) -> dict[str, Any]:
        answer = await self.call("Next", {"run": self.run, "busy": None, "ready": True, **more})
        last = answer.get("last", {})
        if last.get("used") and last["task"] in self.undecided:
            self.kept = self.undecided[last["task"]]
        return answer

    async def download(self, blob: str) -> bytes:
        """All of a file, from wherever it broke off."""
        got = bytearray()

        async def rest() -> None:
            request = json.dumps({"blob": blob, "offset": len(got)}).encode()
            stream = self.channel.unary_stream("/fedarena.v1/Download")(request, timeout=60, wait_for_ready=True)
            async for chunk in stream:
                got.extend(chunk)

        await _until_it_works(rest)
        return bytes(got)

    async def upload(self, header: dict[str, Any], body: bytes, chunk: int = 1 << 16) -> dict[str, Any]:
        """Sends a body, from wherever it broke off."""

        async def rest() -> dict[str, Any]:
            if self.broke_off:
                there = await self.call("Status", {"task": header["task"]})
                if "receipt" in there:
                    return there["receipt"]
                header["offset"] = there["bytes"]
            self.broke_off = True
            start = header.get("offset", 0)
            pieces = [body[place : place + chunk] for place in range(start, len(body), chunk)]
            send = self.channel.stream_unary("/fedarena.v1/Upload")
            messages = iter([json.dumps(header).encode(), *pieces])
            return json.loads(await send(messages, timeout=60, wait_for_ready=True))

        self.broke_off = False
        while "offset" in (answer := await _until_it_works(rest)):
            pass
        return answer

    def header(self, task: dict[str, Any], body: bytes, report: Any, offset: int = 0) -> dict[str, Any]:
        digest = hashlib.sha256(body).hexdigest()
        return {"task": task["task"], "offset": offset, "bytes": len(body), "sha256": digest, "report": report}

    async def work(self) -> str:
        """Takes part until the run is over."""
        answer = await self.join()
        if "refused" in answer:
            return str(answer["refused"])
        while True:
            answer = await self.next()
            if "over" in answer:
                return str(answer["over"])
            if "task" in answer:
                await self.do(answer["task"])

    async def do(self, task: dict[str, Any]) -> dict[str, Any]:
        assert task["task"] not in self.trained, "nobody trains twice for the same task"
        if task["kind"] == "evaluate":
            return await self.score(task)
        self.trained.append(task["task"])
        body, report, kept = self.trainer.train(task, await self.download(task["blob"]), self.client, self.kept)
        answer = await self.upload(self.header(task, body, report), body)
        if answer.get("accepted"):
            self.undecided = {task["task"]: kept}
            self.uploads += 1
        return answer

    async def score(self, task: dict[str, Any]) -> dict[str, Any]:
        params = codec.decode_groups(await self.download(task["blob"]))["params"]
        states, samples = measured(self.trainer, params, self.client, task["part"])
        body = codec.encode_groups(states)
        return await self.upload(self.header(task, body, {"samples": samples}), body)


_PASSING = [getattr(grpc.StatusCode, name) for name in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL")]


async def _until_it_works(call: Callable[[], Any]) -> Any:
    """Tries again as long as there is no server."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() not in _PASSING:
                raise
            await asyncio.sleep(0.02)


class Swarm(threading.Thread):
    """Devices that work until the run is over, all in one thread."""

    def __init__(self, phones: Callable[[], list[Phone]]):
        super().__init__(daemon=True)
        self._make, self.said, self.failure = phones, [], None

    def run(self) -> None:
        async def all_of_them() -> None:
            self.phones = self._make()
            self.said = await asyncio.gather(*(phone.work() for phone in self.phones))

        try:
            asyncio.run(all_of_them())
        except BaseException as error:
            self.failure = error
            _thread.interrupt_main()  # who would wait for ever for these devices


@contextmanager
def serving(folder: DeployFolder, config: RunConfig):
    """A server that answers; its rounds begin with `server.run.advance()`."""
    server: DeployedServer = open_server(folder, config, Observer())
    server.start("127.0.0.1:0")
    try:
        yield server
    finally:
        server.close(None)


def play(
    folder: DeployFolder, invitations: dict[str, bytes], config: RunConfig, devices: RunConfig | None = None
) -> tuple[DeployedServer, Swarm]:
    """A whole run over the network; devices may have another federation."""
    with serving(folder, config) as server:
        trainer = Trainer(devices or config)
        port = server.service.port
        swarm = Swarm(
            lambda: [Phone(name, n, zipped, port, trainer) for n, (name, zipped) in enumerate(invitations.items())]
        )
        swarm.start()
        server.run.advance()
        server.close("The run is finished")
        swarm.join(20)
        assert swarm.failure is None
    server.run.close()
    return server, swarm
