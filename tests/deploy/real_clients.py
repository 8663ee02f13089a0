"""Real clients for tests: the sessions that `python -m fedarena.client` runs, as threads of this process."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from small_deployments import deploy_folder, files_of, serving

from fedarena.client.device import Device
from fedarena.client.identity import Invitation, read_invitation
from fedarena.client.kept import DeviceFolder
from fedarena.client.link import Link
from fedarena.client.samples import RawSamples
from fedarena.client.session import Options, Session
from fedarena.core.errors import BadInputError
from fedarena.runs.config import RunConfig
from fedarena.runs.observer import Observer
from fedarena.runs.opening import open_federation

PARTS = ("train", "validation", "test")
ONE_COMPUTES = threading.Lock()  # a process has one set of random generators, and clients are processes otherwise


def invitation_at(invitation: bytes, port: int, folder: Path, host: str = "127.0.0.1") -> Path:
    """The file of an invitation to a server that listens somewhere else than was planned."""
    files = files_of(invitation)
    about = json.loads(files["invitation.json"]) | {"address": f"{host}:{port}"}
    files["invitation.json"] = json.dumps(about).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    path = folder / f"{about['name']}.zip"
    path.write_bytes(buffer.getvalue())
    return path


def data_of(config: RunConfig, client: int) -> RawSamples:
    federation, _ = open_federation(config, Observer())
    own = {part: dict(federation.samples(np.array([client]), part).columns) for part in PARTS}
    return RawSamples(own, f"data of {client}")


class _Device(Device):
    lock: threading.Lock

    def train(self, task, model, kept):
        with self.lock:
            return super().train(task, model, kept)


class _Session(Session):
    client: RealClient

    def _device(self, settings, client):
        while True:
            try:
                with ONE_COMPUTES:
                    device = _Device(super()._device(settings, client).parts, client)
            except BadInputError as error:
                if "global generator" not in str(error):  # which the server, in this process, may just have used
                    raise
                continue
            device.lock = self.client.lock
            self.client.prepare(device)
            return device


class RealClient(threading.Thread):
    """One client; `stop` ends it as Ctrl-C does."""

    lock = ONE_COMPUTES

    def __init__(self, invitation: Path, raw: RawSamples, link: Any = Link, **options: Any):
        super().__init__(daemon=True)
        self.invitation: Invitation = read_invitation(invitation)
        self.stop = threading.Event()
        self.said: list[str] = []
        self.shown: list[str] = []
        self.failure: BaseException | None = None
        self._state, self._raw, self._kind = invitation.with_suffix(".state"), raw, link
        self._options = Options(device="cpu", secret_noise=False, **options)

    def prepare(self, device: Device) -> None:
        """Called when everything is built."""

    def run(self) -> None:
        try:
            with (
                closing(DeviceFolder(self._state)) as folder,
                closing(self._kind(self.invitation, self.stop, self.shown.append)) as link,
            ):
                session = _Session(link, folder, self._raw, self._options, self.said.append, self.shown.append)
                session.client = self
                self.said.append(session.take_part())
        except BaseException as error:
            self.failure = error


def play(config, tmp_path, make_client=RealClient, transport: str = "grpc"):
    """A whole run; clients who end before it are started again."""
    folder, invitations = deploy_folder(tmp_path / "deploy", transport=transport)
    with serving(folder, config) as server:
        paths = [invitation_at(zipped, server.service.port, tmp_path) for zipped in invitations.values()]
        raw = [data_of(config, number) for number in range(len(paths))]
        finished = threading.Event()
        lives: list[list[RealClient]] = [[] for _ in paths]

        def live(number: int) -> None:
            while True:
                client = make_client(paths[number], raw[number])
                lives[number].append(client)
                client.start()
                client.join()
                if finished.is_set() or client.failure is None:
                    return

        keepers = [threading.Thread(target=live, args=[number], daemon=True) for number in range(len(paths))]
        for keeper in keepers:
            keeper.start()
        server.run.advance()
        server.coordinator.end("The run is finished", 0.0)
        for keeper in keepers:
            keeper.join(30)
        finished.set()
    server.run.close()
    return server, lives
