"""Training from different models at once: jobs that began at different times started from different broadcasts.

What a client downloaded becomes part of what it remembers, so that an engine which trains many clients with memories of
their own also trains many clients with starts of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedarena.models import Task, Tensors
from fedarena.train.algorithm import Algorithm, Work
from fedarena.train.engine import Engine, IntArray, Job, JobResults, T
from fedarena.train.optimizers import LocalTraining
from fedarena.train.tensors import Groups

_START = "start:"  # begins the names of the groups a client downloaded


class VersionedTraining:
    """Trains jobs of which each has its own start, in as few calls of the engine as possible."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._mixed: Engine | None = None

    def train_and(
        self,
        digest: Callable[[JobResults], T],
        jobs: Sequence[Job],
        versions: Sequence[int],
        broadcasts: Mapping[int, Groups],
        memories: Mapping[int, Groups],
    ) -> Iterator[T]:
        """Like `Engine.train_and`; every job starts from the broadcast of its version."""
        if len(set(versions)) == 1 or not self._can_mix:
            for version in dict.fromkeys(versions):
                same = [job for job, its in zip(jobs, versions, strict=True) if its == version]
                yield from self._engine.train_and(digest, same, broadcasts[version], memories)
            return
        if self._mixed is None:
            engine = self._engine
            algorithm = _OwnStarts(engine.algorithm)
            self._mixed = engine.like_this(algorithm, engine.local, engine.data, engine.seed)
        starts = {job.client: broadcasts[version] for job, version in zip(jobs, versions, strict=True)}
        with_starts = _MemoriesWithStarts(self._engine.algorithm, memories, starts)
        # What is broadcast to all of them is not used; it only has the right shape.
        yield from self._mixed.train_and(digest, jobs, broadcasts[versions[0]], with_starts)

    @property
    def _can_mix(self) -> bool:
        algorithm = self._engine.algorithm
        return not (algorithm.trains_freely or algorithm.needs_start_loss)


class _OwnStarts(Algorithm):
    """Another algorithm whose clients remember the broadcast they start from."""

    def __init__(self, inner: Algorithm):
        self.inner = inner
        self.partial_work = inner.partial_work

    def server_init(self, params: Tensors) -> Groups:
        return self.inner.server_init(params)

    def broadcast(self, state: Groups) -> Groups:
        return self.inner.broadcast(state)

    def memory_init(self, broadcast: Groups) -> Groups:
        return {**self.inner.memory_init(broadcast), **_as_memory(broadcast)}

    def local_start(self, broadcast: Groups, memory: Groups) -> Tensors:
        return self.inner.local_start(*_apart(memory))

    def local_steps(self, samples: IntArray, local: LocalTraining) -> IntArray:
        return self.inner.local_steps(samples, local)

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, broadcast: Groups, memory: Groups) -> Tensor:
        return self.inner.local_loss(task, params, batch, *_apart(memory))

    def local_gradient(self, grad: Tensors, params: Tensors, broadcast: Groups, memory: Groups) -> Tensors:
        return self.inner.local_gradient(grad, params, *_apart(memory))

    def client_update(self, params: Tensors, broadcast: Groups, memory: Groups, work: Work) -> tuple[Groups, Groups]:
        return self.inner.client_update(params, *_apart(memory), work)

    def client_weight(self, work: Work) -> Any:
        return self.inner.client_weight(work)


class _MemoriesWithStarts(dict[int, Groups]):
    """The memories of clients that are about to train, each with what the client downloaded."""

    def __init__(self, algorithm: Algorithm, memories: Mapping[int, Groups], starts: Mapping[int, Groups]):
        for client, broadcast in starts.items():
            memory = memories.get(client)
            memory = algorithm.memory_init(broadcast) if memory is None else memory
            self[client] = {**memory, **_as_memory(broadcast)}


def _as_memory(broadcast: Groups) -> Groups:
    return {_START + group: tensors for group, tensors in broadcast.items()}


def _apart(memory: Groups) -> tuple[Groups, Groups]:
    """What a client downloaded, and what it really remembers."""
    broadcast = {group.removeprefix(_START): t for group, t in memory.items() if group.startswith(_START)}
    return broadcast, {group: t for group, t in memory.items() if not group.startswith(_START)}
