"""The server on the network, in a thread of its own: what devices get whatever they speak, gRPC or HTTPS."""

from __future__ import annotations

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from fedarena.client.identity import GRPC
from fedarena.core.errors import BadInputError
from fedarena.deploy.calls import Buckets, Calls, parse
from fedarena.deploy.coordinator import POLL_SECONDS, Answer, Upload
from fedarena.deploy.members import Member

_UPLOADS_AT_ONCE, _CHECKS_AT_ONCE = 16, 2
OUT_OF_ORDER = "The server cannot write to its disk; it was told so"


class TooManyCallsError(Exception):
    """A device asks for more than it may."""


class NoSuchFileError(Exception):
    """A device asks for a file that is not there."""


@dataclass(frozen=True)
class Credentials:
    """What a server shows, and whom it trusts. All PEM."""

    key: bytes
    certificate: bytes
    authority: bytes


class Service(ABC):
    """Answers devices until it is stopped. Whoever it is for starts it, and goes on with something else."""

    def __init__(self, calls: Calls, credentials: Credentials, address: str):
        self._calls, self._credentials, self._address = calls, credentials, address
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedarena server", daemon=True)
        self._news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._buckets = Buckets()
        self._uploads, self._checks = asyncio.Semaphore(_UPLOADS_AT_ONCE), asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._is_open = False
        self.port = 0

    @abstractmethod
    async def _open(self) -> int:
        """Begins to listen, and says at which port; raises OSError or RuntimeError if that cannot be."""

    @abstractmethod
    async def _shut(self, grace: float) -> None:
        """Ends all calls, after so many seconds at most."""

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        try:
            self.port = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        except (OSError, RuntimeError):
            self._end_thread()
            raise BadInputError(
                f"{self._address} cannot be listened at: another program does so, or it is no address of this machine"
            ) from None
        self._is_open = True
        self._calls.coordinator.tell = self.tell

    def stop(self, grace: float = 1.0) -> None:
        """Ends all calls, after so many seconds at most."""
        if self._is_open:
            asyncio.run_coroutine_threadsafe(self._shut(grace), self._loop).result()
        self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def tell(self, names: Iterable[str]) -> None:
        """Has these devices look whether there is something to do; from any thread."""

        def wake() -> None:
            for name in names:
                self._news[name].set()

        self._loop.call_soon_threadsafe(wake)

    def _admitted(self, name: str, serial: str) -> Member:
        """Who calls, by the certificate of the connection; raises `ExcludedError` or `TooManyCallsError`."""
        member = self._calls.coordinator.member(name, serial)
        if not self._buckets.take(name):
            raise TooManyCallsError("Too many calls; wait a second")
        return member

    async def _join(self, member: Member, request: bytes) -> Answer:
        return await asyncio.to_thread(self._calls.join, member, request)

    async def _status(self, member: Member, request: bytes) -> Answer:
        return await asyncio.to_thread(self._calls.status, member, request)

    async def _next(self, member: Member, request: bytes) -> Answer:
        """Waits until there is something to do, for as long as a poll takes."""
        until = self._loop.time() + POLL_SECONDS * random.uniform(0.6, 1.0)  # or thousands would come back at once
        news = self._news[member.name]
        while True:
            news.clear()
            answer = self._calls.next(member, request)
            if answer is not None:
                return answer
            left = until - self._loop.time()
            if left <= 0:
                return {"wait": 0.0}
            try:
                await asyncio.wait_for(news.wait(), left)
            except TimeoutError:
                return {"wait": 0.0}

    def _file(self, request: bytes) -> tuple[Path, int]:
        """What a device wants to download, and from which place on."""
        message = parse(request)
        offset, path = message.get("offset", 0), self._calls.coordinator.blob(message.get("blob", ""))
        if path is None or type(offset) is not int or offset < 0:
            raise NoSuchFileError("There is no such file, or no such place in it")
        return path, offset

    async def _received(self, member: Member, head: bytes, chunks: AsyncIterator[bytes]) -> Answer:
        """Takes an upload, of which 16 go on at a time."""
        coordinator = self._calls.coordinator
        begun = await asyncio.to_thread(coordinator.begin_upload, member, parse(head))
        if not isinstance(begun, Upload):
            return begun
        try:
            async for chunk in chunks:
                if (answer := coordinator.write(member, begun, chunk)) is not None:
                    return answer
            async with self._checks:
                return await asyncio.to_thread(coordinator.finish_upload, member, begun)
        except BaseException:
            coordinator.abandon(begun)
            raise

    def _is_out_of_order(self, error: OSError) -> None:
        """The disk is full, say: whoever runs the server is told, and devices try again later."""
        self._calls.coordinator.log(f"cannot write {error.filename or ''}: {error.strerror or error}")


def service_kind(transport: str) -> type[Service]:
    """What speaks to devices in this way."""
    if transport == GRPC:
        from fedarena.deploy.grpc_service import GrpcService

        return GrpcService
    from fedarena.deploy.https_service import HttpsService

    return HttpsService
