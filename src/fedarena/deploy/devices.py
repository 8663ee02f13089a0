"""The devices of a run, as the parts of a simulation see them: who is there, and those who train for an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedarena.client.messages import arrived_results
from fedarena.core.files import write_bytes
from fedarena.core.sealed_json import read_sealed_of, seal_json_of
from fedarena.core.words import counted
from fedarena.deploy.coordinator import Coordinator
from fedarena.deploy.scoring import DeviceScoring
from fedarena.deploy.secure_rounds import SecureDeployment
from fedarena.deploy.tasks import Task
from fedarena.models import Tensors
from fedarena.profiling.memory import give_back_unused
from fedarena.simulate.jobs import BoolArray, FloatArray
from fedarena.simulate.phones import Phones
from fedarena.train import ClientScores, Groups, JobArrays, OtherTest, Shard
from fedarena.train.engine import IntArray, Part
from fedarena.train.tensors import unflatten_groups
from fedarena.transforms import Sent, ShardResult, UpdatePath


class Joined:
    """What devices said about themselves when they joined a run: a file each, in the folder of the run."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._known: dict[str, dict[str, Any]] = {}
        for path in folder.glob("*.json"):
            if (said := read_sealed_of(path.stem, path)) is not None:
                self._known[path.stem] = said

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: str, said: dict[str, Any]) -> bool:
        """A device has joined; whether it says something new."""
        if self._known.get(name) == said:
            return False
        write_bytes(self._folder / f"{name}.json", seal_json_of(name, said))
        self._known[name] = said
        return True

    def get(self, name: str) -> dict[str, Any] | None:
        """What a device said; None: it has not joined."""
        return self._known.get(name)

    def samples(self, name: str, part: Part = "train") -> int | None:
        """How many samples a device has; None: it has not joined."""
        said = self._known.get(name)
        return None if said is None else int(said["samples"].get(part) or 0)


@dataclass(frozen=True)
class LivePhones(Phones):
    """Real devices: whether they are there is seen, not simulated."""

    are_there: Callable[[IntArray], BoolArray] | None = None  # None: as if everybody were

    @property
    def never_leave(self) -> bool:
        """Only where nobody asks."""
        return self.are_there is None

    def is_available(self, clients: IntArray, times: float | FloatArray) -> BoolArray:
        """Who has spoken lately."""
        return np.ones(len(clients), dtype=np.bool_) if self.are_there is None else self.are_there(clients)

    def seconds_left(self, clients: IntArray, time: float) -> FloatArray:
        """Nobody knows."""
        return np.full(len(clients), np.inf)


class DeviceCrew:
    """Gives an engine what devices trained, from their files; see `fedarena.train.crew.Crew`.

    There is one update in memory at a time, however many there are.
    """

    def __init__(
        self,
        path: UpdatePath,
        place: Callable[[Groups], Groups],
        coordinator: Coordinator,
        scoring: DeviceScoring | None = None,
        secure: SecureDeployment | None = None,
    ):
        """With `secure` sums, the server gets nothing of single updates."""
        self._path, self._place, self._coordinator, self._scoring = path, place, coordinator, scoring
        self.secure = secure

    def collect(self, shards: Sequence[Shard], kept: Sequence[Groups]) -> Iterator[ShardResult]:
        """What the updates of the round that was just closed come to, added up in the order of their jobs."""
        assert self._coordinator.course is not None
        give_back_unused()  # by receiving updates, before they are added up
        if self.secure is not None:
            yield self._summed(shards)
            return
        tasks = {task.client: task for task in self._coordinator.course.used()}
        for shard in shards:
            yield self._path.add_up(self._arrived(shard.jobs, tasks, kept))

    def _summed(self, shards: Sequence[Shard]) -> ShardResult:
        """The sum of all updates of a round, of whose clients nothing else is known."""
        assert self.secure is not None
        assert self.secure.total is not None
        assert self._coordinator.course is not None
        tasks = {task.client: task for task in self._coordinator.course.used()}
        clients = np.concatenate([shard.jobs.clients for shard in shards])
        steps = sum(int(tasks[client].report["steps"]) for client in clients.tolist())
        total = replace(self.secure.total, tensors=self._place(self.secure.total.tensors))
        return ShardResult({0: total}, clients, [], np.full(len(clients), np.nan), None, steps, {})

    def _arrived(self, jobs: JobArrays, tasks: dict[int, Task], kept: Sequence[Groups]) -> Iterator[Sent]:
        for position in range(len(jobs)):
            job = jobs.take([position])
            yield self._sent(job, tasks[int(job.clients[0])], kept)

    def _sent(self, job: JobArrays, task: Task, kept: Sequence[Groups]) -> Sent:
        path, report = self._path, task.report
        body = self._coordinator.admission.form.load(self._coordinator.inbox.accepted_body(task.id))
        update = self._place(unflatten_groups(body))
        sent = path.receive(arrived_results(job, update, report), kept, path.on_devices)
        observed = sent.observed | {name: float(value) for name, value in report["observed"].items()}
        uploaded = report.get("uploaded_bytes")
        return replace(sent, observed=observed, uploaded_bytes=None if uploaded is None else np.array([int(uploaded)]))

    def measures(self, other: OtherTest | None) -> bool:
        """Whether devices evaluate, because the server has no samples."""
        return self._scoring is not None and other is None

    def evaluate(self, params: Tensors, clients: IntArray, part: Part) -> ClientScores:
        """What devices find a model to score on their samples."""
        assert self._scoring is not None
        return self._scoring.evaluate(params, part)

    def describe(self) -> str:
        """Who works, for people."""
        return f"{counted(len(self._coordinator.online()), 'device')} there"
