"""Devices that only pretend, for `deploy.py`: thousands of connections from one process, and updates out of thin air.

    python benchmarks/deploy_crowd.py poll FOLDER PORT SECONDS     # they ask for tasks, and say how long answers took
    python benchmarks/deploy_crowd.py upload FOLDER PORT STEPS     # they send updates as large as the model

FOLDER has their invitations. The answer is one line of JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import grpc

from fedarena.client import codec
from fedarena.core.version import VERSION

MESSAGE_BYTES = 1 << 16
UPLOADS_AT_ONCE = 4
# As many connections as there are devices: without this, channels of one process to one address would share one.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class Device:
    """One that is on the network, and has nothing to train with."""

    def __init__(self, invitation: Path, port: int):
        with zipfile.ZipFile(io.BytesIO(invitation.read_bytes())) as archive:
            key, certificate, authority = (archive.read(name) for name in ("client.key", "client.crt", "ca.crt"))
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        self.channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=OWN_CONNECTION)
        self.run = ""

    async def call(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        send = self.channel.unary_unary(f"/fedarena.v1/{name}")
        answer: dict[str, Any] = json.loads(await send(json.dumps(message).encode(), timeout=120, wait_for_ready=True))
        return answer

    async def join(self, columns: dict[str, Any], samples: int) -> None:
        counts = {"train": samples, "validation": 0, "test": 0}
        said = {"protocol": 1, "fedarena": VERSION, "torch": "", "samples": counts, "device": None, "columns": columns}
        answer = await self.call("Join", said)
        if "refused" in answer:
            sys.exit(str(answer["refused"]))
        self.run = str(answer["run"])

    async def next(self, busy: str | None = None) -> dict[str, Any]:
        return await self.call("Next", {"run": self.run, "busy": busy, "ready": True})

    async def download(self, blob: str) -> bytes:
        request = json.dumps({"blob": blob, "offset": 0}).encode()
        stream = self.channel.unary_stream("/fedarena.v1/Download")(request, timeout=600)
        return b"".join([chunk async for chunk in stream])

    async def upload(self, header: dict[str, Any], body: memoryview) -> dict[str, Any]:
        async def messages() -> Any:
            yield json.dumps(header).encode()
            for place in range(0, len(body), MESSAGE_BYTES):
                yield bytes(body[place : place + MESSAGE_BYTES])

        answer: dict[str, Any] = json.loads(
            await self.channel.stream_unary("/fedarena.v1/Upload")(messages(), timeout=600)
        )
        return answer


COLUMNS = {"x": ["float32", [1, 8, 8]], "y": ["int64", []]}


async def poll(devices: list[Device], seconds: float) -> dict[str, Any]:
    """All devices wait for a task; besides, each says now and then that it is busy, and the answer is timed."""
    began = time.perf_counter()
    for some in range(0, len(devices), 50):
        await asyncio.gather(*(device.join(COLUMNS, 8) for device in devices[some : some + 50]))
    joined = time.perf_counter() - began
    until, took = time.perf_counter() + seconds, []

    async def wait(device: Device) -> None:
        while time.perf_counter() < until:
            await device.next()

    async def heartbeat(device: Device) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, min(10.0, seconds)))
            if time.perf_counter() >= until:
                return
            asked = time.perf_counter()
            await device.next(busy="0" * 32)
            took.append(time.perf_counter() - asked)

    waiting = [asyncio.create_task(wait(device)) for device in devices]
    await asyncio.gather(*(heartbeat(device) for device in devices))
    for task in waiting:
        task.cancel()
    took.sort()
    found = {"median": took[len(took) // 2], "p99": took[int(0.99 * len(took))], "longest": took[-1]}
    return {"devices": len(devices), "calls": len(took), "join_seconds": joined, "next_seconds": found}


async def upload(devices: list[Device], steps: int) -> dict[str, Any]:
    """Every device gets a task, and sends an update of the model's form."""
    samples = 8 * steps
    await asyncio.gather(*(device.join(COLUMNS, samples) for device in devices))
    tasks = await asyncio.gather(*(device.next() for device in devices))
    (blob,) = {answer["task"]["blob"] for answer in tasks}
    model = codec.decode(await devices[0].download(blob))
    for t in model.values():
        t.mul_(0).add_(1e-3)
    body = codec.encode(model)
    digest, view = hashlib.sha256(body).hexdigest(), memoryview(body)
    report = {"samples": samples, "steps": steps, "processed": samples, "start_loss": None, "loss": 1.0}
    report |= {"uploaded_bytes": None, "observed": {}, "seconds": {"download": 0.0, "train": 0.0}, "joules": None}
    gate, began = asyncio.Semaphore(UPLOADS_AT_ONCE), time.perf_counter()

    async def one(device: Device, task: dict[str, Any]) -> None:
        header = {"task": task["task"], "offset": 0, "bytes": len(body), "sha256": digest, "report": report}
        async with gate:
            answer = await device.upload(header, view)
        if answer != {"accepted": True}:
            sys.exit(f"An update was not accepted: {answer}")

    await asyncio.gather(*(one(device, answer["task"]) for device, answer in zip(devices, tasks, strict=True)))
    seconds = time.perf_counter() - began
    while "over" not in await devices[0].next():
        pass
    return {"updates": len(devices), "bytes_each": len(body), "upload_seconds": seconds}


async def main() -> None:
    what, folder, port, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    devices = [Device(path, port) for path in sorted(folder.glob("*.zip"))]
    found = await (poll(devices, number) if what == "poll" else upload(devices, int(number)))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
