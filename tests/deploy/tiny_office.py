"""A coordinator without sockets, whose clock and crashes tests decide about."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedarena.algorithms import ALGORITHMS
from fedarena.client import codec
from fedarena.deploy.admission import Admission
from fedarena.deploy.clocks import RunClock
from fedarena.deploy.coordinator import Coordinator, Upload
from fedarena.deploy.members import Members
from fedarena.deploy.rules import Rule, live_rule
from fedarena.deploy.tasks import Course, Task, new_task_id
from fedarena.deploy.update_form import UpdateForm
from fedarena.runs.deployed import DeployOptions
from fedarena.simulate.protocols import Ideal, Protocol
from fedarena.train import LocalTraining

SAMPLES = 8
LOCAL = LocalTraining(steps=2, batch_size=4)
FORM = {"params/a": (torch.float32, (3,)), "params/b": (torch.float32, (2, 2))}
REPORT = {"samples": SAMPLES, "steps": 2, "processed": 8, "start_loss": None, "loss": 0.5, "uploaded_bytes": None}
REPORT |= {"observed": {}, "seconds": {"download": 0.1, "train": 0.2}, "joules": None}


class MovedClock(RunClock):
    """A clock that tests move; who waits gets there at once."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.time = 100.0

    def seconds(self) -> float:
        return self.time

    def wait(self, condition: Any, seconds: float) -> None:
        self.time += seconds


def body_of(client: int, scale: float = 1.0) -> bytes:
    """The update of a client, always the same."""
    numbers = torch.arange(7, dtype=torch.float32) * scale + client
    return codec.encode({"params/a": numbers[:3], "params/b": numbers[3:].reshape(2, 2)})


def header_of(task: Task, body: bytes, offset: int = 0, **report: Any) -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"task": task.id, "offset": offset, "bytes": len(body), "sha256": digest, "report": REPORT | report}


class Office:
    """A server that can be killed and started again, and its devices."""

    def __init__(self, folder: Path, clients: int = 3, protocol: Protocol | None = None, **options: Any):
        self.folder, self.clients, self.clock = folder, clients, MovedClock()
        self.options = DeployOptions(**options)
        folder.mkdir(parents=True, exist_ok=True)
        self.members = Members(folder)
        for client in range(clients):
            self.members.invite(f"phone{client}", str(client), "2099-01-01")
        protocol = protocol or Ideal()
        protocol.prepare(clients, clients)
        self.rule: Rule = live_rule(protocol)
        self.start()

    def start(self) -> None:
        """Also after a kill."""
        algorithm = ALGORITHMS.get("fedavg")()
        admission = Admission(UpdateForm(FORM), algorithm, LOCAL, self.options)
        samples = lambda name: SAMPLES  # noqa: E731
        self.coordinator = Coordinator(self.folder / "run", Members(self.folder), admission, self.clock, samples)
        self.model = hashlib.sha256(b"the model").hexdigest()
        (self.coordinator.blobs / self.model).write_bytes(b"the model")
        self.log: list[str] = []
        self.coordinator.log = self.log.append

    def task(self, client: int, job: int | None = None, round: int = 1, version: int = 0) -> Task:
        spec = {"kind": "train", "round": round, "now": round, "share": 1.0, "version": version, "lr_scale": None}
        spec |= {"hyperparameters": None, "decisions": None, "blob": self.model, "bytes": 10, "deadline_seconds": None}
        number = client if job is None else job
        return Task(new_task_id(), client, f"phone{client}", number, round, spec, SAMPLES, self.clock.time)

    def open(self, round: int = 1, clients: list[int] | None = None) -> None:
        """Begins a round, or goes on with it."""
        course = self.coordinator.course
        if course is None or course.round != round:
            chosen = range(self.clients) if clients is None else clients
            tasks = [self.task(client, (round - 1) * self.clients + client, round) for client in chosen]
            course = Course(round, self.clock.time, round - 1, tasks)
        self.coordinator.begin(course, self.rule)

    def member(self, client: int):
        return self.coordinator.member(f"phone{client}", str(client))

    def given(self, client: int) -> Task | None:
        """What a device is told to do, if anything."""
        answer = self.coordinator.next(self.member(client), None, True)
        tasks = [] if self.coordinator.course is None else self.coordinator.course.tasks
        if answer is None or "task" not in answer:
            return None
        return next(task for task in tasks if task.id == answer["task"]["task"])

    def upload(self, client: int, header: Any, pieces: list[bytes]) -> dict[str, Any]:
        member = self.member(client)
        begun = self.coordinator.begin_upload(member, header)
        if not isinstance(begun, Upload):
            return begun
        for piece in pieces:
            if (answer := self.coordinator.write(member, begun, piece)) is not None:
                return answer
        return self.coordinator.finish_upload(member, begun)

    def send(self, client: int, task: Task, body: bytes | None = None, **report: Any) -> dict[str, Any]:
        body = body_of(client) if body is None else body
        return self.upload(client, header_of(task, body, **report), [body])

    def total(self) -> np.ndarray:
        """What the used updates come to, added up in the order of jobs."""
        course = self.coordinator.course
        total = np.zeros(7, dtype=np.float32)
        for task in course.used():
            tensors = codec.load(self.coordinator.inbox.accepted_body(task.id), FORM)
            total = total * np.float32(1.1) + torch.cat([t.reshape(-1) for t in tensors.values()]).numpy()
        return total


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def killed_after(operations: int, monkeypatch: Any):
    """Ends a process, so to speak, before one of its operations on files."""
    left = operations

    def counted(operation: Any):
        def doing(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return operation(*args, **options)

        return doing

    with monkeypatch.context() as patched:
        for name in ("replace", "fsync", "unlink", "open", "rename"):
            patched.setattr(os, name, counted(getattr(os, name)))
        yield
