"""Getting hosts on the machines of a cluster: how many runs find room there, who may do them, and on which cores."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.installation import here, what_differs
from fedarena.core.signs import Sign
from fedarena.runs.cluster.joining import Wish, join, leave
from fedarena.runs.cluster.troubles import MOST_UNANSWERED, never_answered
from fedarena.runs.config import RunConfig
from fedarena.runs.hosts.carrying import mend
from fedarena.runs.hosts.host import Host
from fedarena.runs.hosts.remote import HostLostError, RemoteProcess

_ROOM_SECONDS = 300.0  # without anybody who has room
_SECONDS_FOR_OTHERS = 10.0  # that slower machines have before the first run begins
_TICK_SECONDS = 0.5
_AT_ONCE = 4  # calls of a host: it listens to its process while it is told to stop it
WISH = Wish(
    "--cluster",
    "--cluster",
    "leave --cluster out to use this machine alone",
    "leave --cluster out",
)


def cores_of_a_run(machines: Iterable[int], jobs: int) -> int:
    """The most cores that each of so many runs can have at the same time; 1 if there are not enough for all."""
    sizes = list(machines)
    fitting = (cores for cores in range(max(sizes, default=1), 1, -1) if sum(size // cores for size in sizes) >= jobs)
    return next(fitting, 1)


def check_trains_alone(configs: Iterable[RunConfig]) -> None:
    """Refuses runs that would need a cluster themselves."""
    for config in configs:
        if config.engine["name"] == "ray" and config.engine.get("workers") != 0:
            raise BadInputError(
                "--cluster puts whole runs on machines, and engine=ray the clients of a run; choose engine=cohort, or "
                "leave --cluster out"
            )


@contextmanager
def joined(address: str | None) -> Iterator[None]:
    """In the cluster, if one is given: what is wrong with it is found out before anything begins."""
    if address is None:
        yield
        return
    join(address, 1, WISH)
    try:
        yield
    finally:
        leave()


class Hosts:
    """Hosts for runs whose folders are in `folder`; `jobs` at the same time, as far as there is room."""

    def __init__(self, address: str, jobs: int, folder: Path, on_gpu: bool):
        self.ray, _ = join(address, 1, WISH)
        try:
            machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            sizes = [int(machine.get("GPU" if on_gpu else "CPU", 0.0)) for machine in machines]
            if not sum(sizes):
                raise BadInputError(
                    f"No machine of the Ray cluster at {address} has a {'GPU' if on_gpu else 'core'} for runs; start "
                    f"nodes with some (ray start --num-{'gpus' if on_gpu else 'cpus'})"
                )
            self._cores = 0 if on_gpu else cores_of_a_run(sizes, jobs)  # those with a GPU may use all
            self._jobs = min(jobs, sum(sizes) if on_gpu else sum(size // self._cores for size in sizes))
            self._needs = {"num_cpus": self._cores, "num_gpus": int(on_gpu)}
            folder.mkdir(parents=True, exist_ok=True)
            mend(folder)
            self._sign = Sign(folder.absolute())
        except BaseException:
            leave()
            raise
        self._mine = here()
        self._lock = threading.Lock()
        self._used: dict[str, Counter[int]] = defaultdict(Counter)  # cores of machines, by how many runs
        self._unanswered = 0
        self._at_work = 0
        self._alive: dict[int, Any] = {}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *error: object) -> None:
        for host in list(self._alive.values()):
            self.dismiss(host)
        self._sign.remove()
        leave()

    def processes(self, module: str) -> list[RemoteProcess]:
        """All that there is room for; a machine that may not do runs is refused, and with it all of it."""
        processes = [RemoteProcess(self, module) for _ in range(self._jobs)]
        began, first = time.monotonic(), None
        waiting = [process.answer for process in processes]
        while waiting and (first is None or time.monotonic() < first + _SECONDS_FOR_OTHERS):
            ready, waiting = self.ray.wait(waiting, num_returns=1, timeout=_TICK_SECONDS)
            for answer in ready:
                with suppress(HostLostError):  # another one is found when it is needed
                    self.admitted(answer)
                    first = first or time.monotonic()
            if first is None:
                self.check_patience(time.monotonic() - began)
        return processes

    # ---- what a remote process asks for

    def new_host(self) -> Any:
        """A host somewhere, once there is room."""
        host = (
            self.ray.remote(Host)
            .options(
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_AT_ONCE,
                scheduling_strategy="SPREAD",
                **self._needs,
            )
            .remote()
        )
        with self._lock:
            self._alive[id(host)] = host
        return host

    def ask(self, host: Any) -> Any:
        """Where it will be seen that it is there."""
        return host.about.remote(self._sign.offer())

    def admitted(self, answer: Any) -> dict[str, Any]:
        """What a host says of itself; refuses one that would not do the same as this machine."""
        try:
            about: dict[str, Any] = self.ray.get(answer, timeout=_ROOM_SECONDS)
        except self.ray.exceptions.RayError as error:
            with self._lock:
                self._unanswered += 1
            if self._unanswered >= MOST_UNANSWERED:
                raise never_answered(error) from None
            raise HostLostError("a machine was gone before a run began there") from None
        self._unanswered = 0
        if (reason := what_differs(about, self._mine)) is not None:
            raise BadInputError(reason)
        return about

    def order(self, cores: Sequence[int]) -> dict[str, Any]:
        """What a host needs to know to start a process."""
        return {
            "cores": list(cores),
            "command": sys.argv,
            "path": [entry or os.getcwd() for entry in sys.path],
            "folder": os.getcwd(),
            "threads": os.environ.get("OMP_NUM_THREADS"),
        }

    def take_cores(self, machine: str, cores: Sequence[int]) -> list[int]:
        """Those of its cores that are used least; none where a run may use all."""
        with self._lock:
            self._at_work += 1
            used = self._used[machine]
            chosen = sorted(sorted(cores), key=lambda core: used[core])[: self._cores]
            used.update(chosen)
            return chosen

    def give_cores_back(self, machine: str, cores: Sequence[int]) -> None:
        """They are free again."""
        with self._lock:
            self._at_work -= 1
            self._used[machine].subtract(cores)

    def dismiss(self, host: Any) -> None:
        """A host is not needed any more, or gone."""
        with self._lock:
            self._alive.pop(id(host), None)
        with suppress(Exception):  # it is gone already, or the cluster is
            self.ray.kill(host, no_restart=True)

    def check_patience(self, waited_seconds: float) -> None:
        """Nobody is waited for without a limit: whoever has no room while none of ours is at work stops."""
        if waited_seconds > _ROOM_SECONDS and not self._at_work:
            raise RunFailedError(
                f"No machine of the Ray cluster has had room for a run for {waited_seconds:.0f} seconds; see that it "
                "has free cores (ray status), then the same command goes on"
            )
