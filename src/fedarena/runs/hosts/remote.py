"""A process on a machine of a cluster, as if it were one on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedarena.core.errors import RunFailedError

if TYPE_CHECKING:
    from fedarena.runs.hosts.hosting import Hosts

_LISTEN_SECONDS = 1.0  # after which a host answers that nothing was said
_SILENT_SECONDS = 60.0  # after which a host that does not answer is taken to be gone
_START_SECONDS = 300.0  # for a host to start a process
_END_SECONDS = 120.0  # for a process to end that has nothing to do
_LONGEST_SECONDS = 600.0  # for a host to do something with files


class HostLostError(Exception):
    """A machine is gone, or the host on it, or what it runs was killed."""


class RemoteProcess:
    """A process that a host starts; it begins once `settle` has found room for it."""

    def __init__(self, hosts: Hosts, module: str):
        self._hosts, self._module = hosts, module
        self._ray = hosts.ray
        self._host = hosts.new_host()
        self.answer = hosts.ask(self._host)  # where it is seen that there is room
        self.node = "?"
        self.sees_folder = False
        self._cores: tuple[str, list[int]] | None = None
        self._code: int | None = None
        self._stopping = False

    def settle(self) -> bool:
        """Waits until there is room, and starts the process; False if it was stopped meanwhile."""
        if self._cores is not None:
            return True
        began = time.monotonic()
        while not self._stopping:
            ready, _ = self._ray.wait([self.answer], num_returns=1, timeout=_LISTEN_SECONDS)
            if ready:
                self._begin()
                return True
            self._hosts.check_patience(time.monotonic() - began)
        self.end()
        return False

    def _begin(self) -> None:
        about = self._hosts.admitted(self.answer)
        self.node, self.sees_folder = about["node"], about["sees"]
        self._cores = self.node, self._hosts.take_cores(self.node, about["cores"])
        self.call("start", self._module, self._hosts.order(self._cores[1]), seconds=_START_SECONDS)
        if self._stopping:
            self.stop()

    def call(self, method: str, *arguments: Any, seconds: float = _LONGEST_SECONDS) -> Any:
        """What a method of the host gives."""
        exceptions = self._ray.exceptions
        try:
            answer = getattr(self._host, method).remote(*arguments)
            ready, _ = self._ray.wait([answer], num_returns=1, timeout=seconds)
            if not ready:
                raise TimeoutError
            return self._ray.get(answer, timeout=seconds)
        except exceptions.RayTaskError as error:
            if isinstance(cause := getattr(error, "cause", None), OSError):
                raise RunFailedError(f"{cause.strerror or cause}, on {self.node}") from None
            raise
        except (exceptions.RayError, TimeoutError):
            self.end()
            raise HostLostError(f"{self.node} is gone, or the process there that looked after a run") from None

    # ---- as a process on this machine

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._code

    def tell(self, task: dict[str, Any]) -> None:
        """Says what to do."""
        self.call("tell", json.dumps(task), seconds=_SILENT_SECONDS)

    def end_tasks(self) -> None:
        """There is nothing more to do, so that the process ends."""
        if self._code is None and self._cores is not None:
            try:
                self.call("end_tasks", seconds=_SILENT_SECONDS)
            except HostLostError:
                return

    def events(self) -> Iterator[dict[str, Any]]:
        """What it tells, until it ends."""
        while self._code is None:
            heard = self.call("listen", _LISTEN_SECONDS, seconds=_SILENT_SECONDS)
            yield from map(json.loads, heard["lines"])
            self._code = heard["code"]

    def stop(self) -> None:
        """Has it end after it has written what is done."""
        self._stopping = True
        if self._cores is not None:
            self._host.stop.remote()

    def wait(self) -> int:
        """Until it has ended, which is not waited for without a limit; its exit code."""
        until = time.monotonic() + _END_SECONDS
        try:
            while self._code is None and self._cores is not None and time.monotonic() < until:
                self._code = self.call("listen", _LISTEN_SECONDS, seconds=_SILENT_SECONDS)["code"]
        except HostLostError:
            pass
        code = self._code
        return 1 if code is None else code

    def end(self) -> None:
        """Lets go of the host, and of what it runs."""
        if self._code is None:
            self._code = 1
        if self._cores is not None:
            self._hosts.give_cores_back(*self._cores)
            self._cores = None
        self._hosts.dismiss(self._host)
