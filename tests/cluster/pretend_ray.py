"""A stand-in for Ray in one process and without waiting, in which workers fail when a test says so.

It has what `fedarena.runs.cluster` uses of Ray. Who is done first is drawn, time passes only when somebody waits, and
what is sent really travels: it is pickled, and what arrives cannot be written to, as with Ray.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
import torch

# dies: the process ends; hangs: it never answers; slow: it answers after a while; lost: the answer is;
# late: what was sent to all does not arrive; memory, disk: there is none left.
Fate = Literal["dies", "hangs", "slow", "lost", "late", "memory", "disk"] | None
Fates = Callable[["Call"], Fate]  # asked when a worker is to begin with a call
_SLOW_SECONDS, _CALL_SECONDS = 45.0, 0.01


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class ObjectLostError(RayError):
    pass


class GetTimeoutError(RayError, TimeoutError):
    pass


class OutOfDiskError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception):
        super().__init__(str(cause))
        self.cause = cause


_FAILURES: dict[Any, RayError] = {
    "lost": ObjectLostError("its machine is gone"),
    "late": RayTaskError(GetTimeoutError("what was sent did not arrive")),
    "memory": RayTaskError(MemoryError()),
    "disk": OutOfDiskError("no space left"),
}


class Clock:
    """Takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Reference:
    """Where something is, or will be."""

    def __init__(self) -> None:
        self.content: Any = None  # an exception, or what travels
        self.is_ready = False
        self._number = len(_references)
        _references.append(self)

    def __reduce__(self) -> Any:
        return _reference, (self._number,)

    def fill(self, content: Any) -> None:
        self.content, self.is_ready = content, True


_references: list[Reference] = []


def _reference(number: int) -> Reference:
    return _references[number]


@dataclass
class Call:
    """What a worker is asked to do."""

    worker: Worker
    method: str
    sent: Sent
    reference: Reference

    @property
    def message(self) -> Any:
        return self.sent.arrived()[0]


class Worker:
    """An actor: does what it is asked, one call after the other, or several at the same time."""

    def __init__(self, ray: PretendRay, kind: type, options: dict[str, Any]):
        self._ray, self._kind = ray, kind
        self.options = options
        self.number = len(ray.workers)
        self.at_once = options.get("max_concurrency", 1)
        self.calls: list[Call] = []
        self.itself: Any = None  # once it has found room
        self.is_dead = self.hangs = False

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Reference:
            reference = Reference()
            if self.is_dead:
                reference.fill(ActorDiedError("it died before"))
            else:
                self.calls.append(Call(self, method, Sent(arguments), reference))
            return reference

        return SimpleNamespace(remote=remote)

    def die(self, why: str = "the process ended") -> None:
        self.is_dead = True
        for call in self.calls:
            call.reference.fill(ActorDiedError(why))
        self.calls = []

    def do_one(self) -> None:
        """One of the calls that it works on."""
        if self.itself is None:
            self.itself = self._kind()
        call = self.calls.pop(self._ray.draw.randrange(min(self.at_once, len(self.calls))))
        self._ray.began.append(call)
        fate, reference = self._ray.fates(call), call.reference
        if fate == "dies":
            reference.fill(ActorDiedError("the process ended"))
            self.die()
        elif fate == "hangs":
            self.calls.insert(0, call)
            self.hangs = True
        elif fate == "slow":
            self._ray.later.append((self._ray.clock.now + _SLOW_SECONDS, call))
            self.hangs = True
        elif fate is not None:
            reference.fill(_FAILURES[fate])
        else:
            self.answer(call)

    def answer(self, call: Call) -> None:
        given = [one.content.arrived() if isinstance(one, Reference) else one for one in call.sent.arrived()]
        try:
            answer = getattr(self.itself, call.method)(*given)
        except Exception as error:
            call.reference.fill(RayTaskError(error))
        else:
            call.reference.fill(Sent(answer))


class Sent:
    """What travels: bytes, and arrays beside them."""

    def __init__(self, content: Any):
        _check_travels(content)
        buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(content, 5, buffer_callback=buffers.append)
        self._buffers = [bytes(buffer.raw()) for buffer in buffers]

    def arrived(self) -> Any:
        return pickle.loads(self._pickled, buffers=self._buffers)


def _check_travels(content: Any) -> None:
    """Settings as text and arrays by their names, and nothing else."""
    assert not isinstance(content, torch.Tensor), "tensors are copied for every worker, and arrays are not"
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list | tuple):
        for one in content:
            _check_travels(one)


class PretendRay(ModuleType):
    """The module, with as many machines of a core each as it is told."""

    def __init__(self, fates: Fates | None = None, seed: int = 0, room: int = 1000):
        super().__init__("ray")
        self.exceptions = ModuleType("ray.exceptions")
        for error in (RayError, ActorDiedError, ObjectLostError, GetTimeoutError, OutOfDiskError, RayTaskError):
            setattr(self.exceptions, error.__name__, error)
        self.fates: Fates = fates or (lambda call: None)
        self.draw, self.clock, self.room = random.Random(seed), Clock(), room
        self.workers: list[Worker] = []
        self.began: list[Call] = []
        self.later: list[tuple[float, Call]] = []
        self._initialized = False
        self.times_begun = 0

    # ---- what FedArena calls

    def is_initialized(self) -> bool:
        return self._initialized

    def init(self, **options: Any) -> None:
        self._initialized = True
        self.times_begun += 1

    def shutdown(self) -> None:
        self._initialized = False
        for worker in self.workers:
            worker.die()

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="10.0.0.1:6379")

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}} for _ in range(self.room)]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.room)}

    def remote(self, kind: type) -> Any:
        def start(options: dict[str, Any]) -> Worker:
            self.workers.append(Worker(self, kind, options))
            return self.workers[-1]

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda: start(options)))

    def put(self, content: Any) -> Reference:
        reference = Reference()
        reference.fill(Sent(content))
        return reference

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing waits without a limit"
        if not reference.is_ready:
            raise GetTimeoutError("it is not there yet")
        if isinstance(reference.content, Exception):
            raise reference.content
        return reference.content.arrived()

    def wait(
        self, references: list[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        assert timeout is not None, "nothing waits without a limit"
        end = self.clock.now + timeout
        while True:
            ready = [reference for reference in references if reference.is_ready][:num_returns]
            if ready or not self._do_something(end):
                self.clock.now = self.clock.now if ready else max(self.clock.now, end)
                return ready, [reference for reference in references if reference not in ready]

    def kill(self, worker: Worker, no_restart: bool) -> None:
        worker.die()

    # ----

    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_dead]

    def _do_something(self, end: float) -> bool:
        """Somebody does something, if there is somebody who can before this time."""
        with_room = self.living()[: self.room]
        able = [worker for worker in with_room if worker.calls and not worker.hangs]
        due = min(self.later, key=lambda entry: entry[0], default=None)
        if able:
            self.clock.now += _CALL_SECONDS
            self.draw.choice(able).do_one()
        elif due is not None and due[0] <= end:
            self.later.remove(due)
            when, call = due
            self.clock.now = max(self.clock.now, when)
            call.worker.hangs = False
            if not call.worker.is_dead:
                call.worker.answer(call)
        return bool(able) or (due is not None and due[0] <= end)


@contextmanager
def pretending(ray: PretendRay) -> Iterator[PretendRay]:
    """In which this is the Ray that there is."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        patch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
        for module in ("pool", "working"):
            patch.setattr(f"fedarena.runs.cluster.{module}.time", ray.clock)
        yield ray
    torch.set_num_threads(threads)
    _references.clear()
