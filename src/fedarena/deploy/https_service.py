"""A server that speaks HTTPS (HTTP/1.1), with mutual TLS, for devices behind proxies or without grpcio.

A call is ``POST /v1/Name`` with the messages that gRPC carries. h11 reads and writes HTTP; what is here are connections
and their bounds. Nobody is listened to before the handshake is over, and that takes 10 seconds at most; then there are
16 KiB for the head of a request, 64 KiB for a message, 4 MiB for a part of an upload, and 2 minutes to send them.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h11

from fedarena.client.identity import tls_context
from fedarena.deploy.admission import CHUNK_BYTES, CONTROL_BYTES
from fedarena.deploy.authority import holder_of
from fedarena.deploy.calls import BadCallError
from fedarena.deploy.coordinator import Answer, ExcludedError
from fedarena.deploy.members import Member
from fedarena.deploy.service import OUT_OF_ORDER, Credentials, NoSuchFileError, Service, TooManyCallsError

_HANDSHAKES, _HANDSHAKE_SECONDS = 64, 10.0  # at a time; who is not let in in time has to come again
_CONNECTIONS, _CONNECTIONS_EACH = 1000, 4  # at a time, of all devices and of each
_HEAD_BYTES, _UPLOAD_BYTES = 1 << 14, 1 << 22
_IDLE_SECONDS = 60.0  # in which the head of a request must come
_SENDING_SECONDS = 120.0  # in which all of a request must come, and a piece of an answer must go
_READ_BYTES = 1 << 16
_DOWNLOAD, _UPLOAD = b"/v1/Download", b"/v1/Upload"
_STATUS = {ExcludedError: 403, TooManyCallsError: 429, BadCallError: 400, NoSuchFileError: 410}


class _RefusedError(Exception):
    """A request that is none of the calls, or too long."""

    def __init__(self, status: int, sentence: str):
        self.status = status
        super().__init__(sentence)


class HttpsService(Service):
    """See `Service`."""

    _listener: socket.socket
    _accepting: asyncio.Task[None]

    async def _open(self) -> int:
        self._tls = _tls(self._credentials)
        self._listener = _listening(self._address)
        self._handshakes = asyncio.Semaphore(_HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_work: set[asyncio.Task[None]] = set()  # on an answer
        self._connected: defaultdict[str, list[asyncio.Task[None]]] = defaultdict(list)  # by device, the oldest first
        self._accepting = asyncio.create_task(self._accept())
        port: int = self._listener.getsockname()[1]
        return port

    async def _shut(self, grace: float) -> None:
        self._accepting.cancel()
        await asyncio.wait({self._accepting})
        self._listener.close()
        if self._at_work:
            await asyncio.wait(set(self._at_work), timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            await self._handshakes.acquire()
            try:
                accepted, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # too many files are open, say
                self._handshakes.release()
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._serve(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        """Everything on one connection."""
        try:
            connection = await _Connection.made(accepted, self._tls)
        except OSError:
            return
        finally:
            self._handshakes.release()
        task, own = asyncio.current_task(), self._connected[connection.name]
        assert task is not None
        own.append(task)
        try:
            # Who comes back after a network has failed may still be thought to be there: the latest are the true ones.
            if len(own) > _CONNECTIONS_EACH:
                own[0].cancel()
            if sum(map(len, self._connected.values())) <= _CONNECTIONS:
                await self._converse(connection, task)
        except (OSError, h11.ProtocolError):
            pass  # what was not heard is asked again
        finally:
            own.remove(task)
            if not own:
                self._connected.pop(connection.name, None)
            connection.abort()

    async def _converse(self, connection: _Connection, task: asyncio.Task[None]) -> None:
        try:
            while (request := await connection.request()) is not None:
                self._at_work.add(task)
                await self._answer(connection, request)
                self._at_work.discard(task)
                if not connection.goes_on() or self._accepting.done():
                    break
        except h11.RemoteProtocolError as error:
            await connection.answer(error.error_status_hint, b"This is not HTTP, or its head is too long")
        finally:
            self._at_work.discard(task)
        await connection.hang_up()

    async def _answer(self, connection: _Connection, request: h11.Request) -> None:
        body = connection.body(_UPLOAD_BYTES if request.target == _UPLOAD else CONTROL_BYTES)
        try:
            if request.method != b"POST":
                raise _RefusedError(405, "A call is a POST")
            member = self._admitted(connection.name, connection.serial)
            if request.target == _DOWNLOAD:
                await connection.answer_with_file(*self._file(await _all(body)))
                return
            status, answer = 200, json.dumps(await self._called(request.target, member, body))
        except _RefusedError as error:
            status, answer = error.status, str(error)
        except tuple(_STATUS) as error:
            status, answer = _STATUS[type(error)], str(error)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            self._is_out_of_order(error)
            status, answer = 503, OUT_OF_ORDER
        with suppress(_RefusedError):
            async for _ in body:  # an answer is read by those who have sent all
                pass
        await connection.answer(status, answer.encode())

    async def _called(self, target: bytes, member: Member, body: AsyncGenerator[bytes, None]) -> Answer:
        calls = {b"/v1/Join": self._join, b"/v1/Next": self._next, b"/v1/Status": self._status}
        if target in calls:
            return await calls[target](member, await _all(body))
        if target != _UPLOAD:
            raise _RefusedError(404, "There is no such call")
        async with self._uploads:
            head = bytearray()
            while b"\n" not in head and len(head) <= CONTROL_BYTES and (piece := await anext(body, b"")):
                head += piece
            message, _, first = bytes(head).partition(b"\n")
            return await self._received(member, message, _after(first, body))


class _Connection:
    """One device that speaks HTTP: who it is, and what it sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)
        self._until = 0.0
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.name, self.serial = holder_of(certificate)

    @classmethod
    async def made(cls, accepted: socket.socket, tls: ssl.SSLContext) -> _Connection:
        """Shakes hands."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or short answers would wait for 40 ms
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, accepted, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS
        )
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def request(self) -> h11.Request | None:
        """The next one; None: there will be none."""
        self._until = _now() + _IDLE_SECONDS
        event = await self._event()
        self._until = _now() + _SENDING_SECONDS
        return event if isinstance(event, h11.Request) else None

    async def body(self, most: int) -> AsyncGenerator[bytes, None]:
        """What comes with a request, piece by piece."""
        came = 0
        while isinstance(event := await self._event(), h11.Data):
            came += len(event.data)
            if came > most:
                raise _RefusedError(413, f"This call has at most {most:,} bytes")
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await asyncio.wait_for(self._reader.read(_READ_BYTES), self._until - _now())
            self._http.receive_data(data)
        return event

    async def answer(self, status: int, content: bytes) -> None:
        """Says how it went. Who has made a mistake has to come again."""
        await self._begin_answer(status, len(content))
        await self._send(h11.Data(data=content))
        await self._send(h11.EndOfMessage())

    async def answer_with_file(self, path: Path, offset: int) -> None:
        """Sends a file from some place on."""
        with open(path, "rb") as file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            file.seek(offset)
            await self._begin_answer(200, left)
            while left and (chunk := file.read(min(CHUNK_BYTES, left))):
                left -= len(chunk)
                await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _begin_answer(self, status: int, size: int) -> None:
        headers = [("Content-Length", str(size))] + ([] if status == 200 else [("Connection", "close")])
        await self._send(h11.Response(status_code=status, headers=headers))

    async def _send(self, event: Any) -> None:
        """Sends as fast as the other side reads; who reads nothing is given up."""
        self._writer.write(self._http.send(event) or b"")
        await asyncio.wait_for(self._writer.drain(), _SENDING_SECONDS)

    def goes_on(self) -> bool:
        """Whether another request may follow."""
        if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
            return False
        self._http.start_next_cycle()
        return True

    async def hang_up(self) -> None:
        """Ends the connection when everything is sent."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)

    def abort(self) -> None:
        """Ends it at once."""
        self._writer.transport.abort()


async def _all(body: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([piece async for piece in body])


async def _after(first: bytes, body: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    if first:
        yield first
    async for piece in body:
        yield piece


def _now() -> float:
    return asyncio.get_running_loop().time()


def _tls(credentials: Credentials) -> ssl.SSLContext:
    context = tls_context(ssl.PROTOCOL_TLS_SERVER, credentials.key, credentials.certificate, credentials.authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # every connection shows its certificate anew
    context.set_alpn_protocols(["http/1.1"])
    return context


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    if place[0] == "::" and not socket.has_dualstack_ipv6():
        place = "", int(port)
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    listener = socket.create_server(place, family=family, backlog=512, dualstack_ipv6=place[0] == "::")
    listener.setblocking(False)
    return listener
