"""The server on the network: gRPC with mutual TLS, without protobuf, in a thread of its own.

Control messages are JSON, models and updates are chunks of at most 1 MiB; each side sends only as fast as the other one
reads. There are no pings: a device speaks at least every 30 seconds by itself.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from fedarena.core.errors import BadInputError
from fedarena.deploy.admission import CHUNK_BYTES, CONTROL_BYTES, MOST_CHUNK_BYTES
from fedarena.deploy.authority import serial_of
from fedarena.deploy.calls import BadCallError, Buckets, Calls, parse
from fedarena.deploy.coordinator import POLL_SECONDS, Answer, ExcludedError, Upload
from fedarena.deploy.members import Member

NAME = "fedarena.v1"
_UPLOADS_AT_ONCE, _CHECKS_AT_ONCE = 16, 2
_CHUNK_SECONDS = 60.0  # within which the next piece of an upload must come
_STREAMS = 16  # calls at once on one connection
_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_CHUNK_BYTES + CONTROL_BYTES),
    ("grpc.max_send_message_length", MOST_CHUNK_BYTES + CONTROL_BYTES),
    ("grpc.max_concurrent_streams", _STREAMS),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.so_reuseport", 0),  # or a second server on the same port would go unnoticed
]


class Service:
    """Answers devices until it is stopped. Whoever it is for starts it, and goes on with something else."""

    def __init__(self, calls: Calls, key: bytes, certificate: bytes, authority: bytes, address: str):
        self._calls, self._address = calls, address
        self._credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedarena server", daemon=True)
        self._server: Any = None
        self._news: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._buckets = Buckets()
        self._serials: dict[bytes, str] = {}  # of certificates
        self._serials_most = 4096
        self.port = 0

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except RuntimeError:
            self._end_thread()
            raise BadInputError(
                f"{self._address} cannot be listened at: another program does so, or it is no address of this machine"
            ) from None
        self._calls.coordinator.tell = self.tell

    async def _start(self) -> None:
        self._uploads, self._checks = asyncio.Semaphore(_UPLOADS_AT_ONCE), asyncio.Semaphore(_CHECKS_AT_ONCE)
        self._server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            "Join": grpc.unary_unary_rpc_method_handler(self._join),
            "Next": grpc.unary_unary_rpc_method_handler(self._next),
            "Status": grpc.unary_unary_rpc_method_handler(self._status),
            "Download": grpc.unary_stream_rpc_method_handler(self._download),
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
        self.port = self._server.add_secure_port(self._address, self._credentials)
        await self._server.start()

    def stop(self, grace: float = 1.0) -> None:
        """Ends all calls, after so many seconds at most."""
        if self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.stop(grace), self._loop).result()
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

    async def _member(self, context: Any) -> Member:
        """Who calls, by the certificate of the connection."""
        peer = context.auth_context()
        name, certificate = peer["x509_common_name"][0].decode(errors="replace"), peer["x509_pem_cert"][0]
        if certificate not in self._serials:
            if len(self._serials) >= self._serials_most:
                self._serials.clear()
            self._serials[certificate] = serial_of(certificate)
        try:
            member = self._calls.coordinator.member(name, self._serials[certificate])
        except ExcludedError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
            raise
        if not self._buckets.take(name):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many calls; wait a second")
        return member

    async def _join(self, request: bytes, context: Any) -> bytes:
        member = await self._member(context)
        return await self._answered(context, asyncio.to_thread(self._calls.join, member, request))

    async def _status(self, request: bytes, context: Any) -> bytes:
        member = await self._member(context)
        return await self._answered(context, asyncio.to_thread(self._calls.status, member, request))

    async def _next(self, request: bytes, context: Any) -> bytes:
        member = await self._member(context)
        return await self._answered(context, self._poll(member, request))

    async def _poll(self, member: Member, request: bytes) -> Answer:
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

    async def _answered(self, context: Any, answer: Any) -> bytes:
        try:
            return json.dumps(await answer).encode()
        except BadCallError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except OSError as error:
            await self._out_of_order(context, error)
            raise

    async def _download(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        await self._member(context)
        try:
            message = parse(request)
        except BadCallError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        offset, path = message.get("offset", 0), self._calls.coordinator.blob(message.get("blob", ""))
        if path is None or type(offset) is not int or offset < 0:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no such file, or no such place in it")
        assert path is not None
        with open(path, "rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    async def _upload(self, stream: AsyncIterator[bytes], context: Any) -> bytes:
        member = await self._member(context)
        async with self._uploads:
            return await self._answered(context, self._received(member, stream))

    async def _received(self, member: Member, stream: AsyncIterator[bytes]) -> Answer:
        coordinator, chunks = self._calls.coordinator, aiter(stream)
        first = await _next_chunk(chunks)
        begun = await asyncio.to_thread(coordinator.begin_upload, member, parse(first or b""))
        if not isinstance(begun, Upload):
            return begun
        try:
            while (chunk := await _next_chunk(chunks)) is not None:
                if (answer := coordinator.write(member, begun, chunk)) is not None:
                    return answer
            async with self._checks:
                return await asyncio.to_thread(coordinator.finish_upload, member, begun)
        except BaseException:
            coordinator.abandon(begun)
            raise

    async def _out_of_order(self, context: Any, error: OSError) -> None:
        """The disk is full, say: whoever runs the server is told, and devices try again later."""
        self._calls.coordinator.log(f"cannot write {error.filename or ''}: {error.strerror or error}")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "The server cannot write to its disk; it was told so")


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
    """The next message of a stream; None at its end."""
    try:
        return await asyncio.wait_for(anext(chunks), _CHUNK_SECONDS)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise BadCallError(f"Nothing came for {_CHUNK_SECONDS:g} seconds") from None
