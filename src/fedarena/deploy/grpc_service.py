"""A server that speaks gRPC, with mutual TLS and without protobuf.

Control messages are JSON, models and updates are chunks of at most 1 MiB; each side sends only as fast as the other one
reads. There are no pings: a device speaks at least every 30 seconds by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from fedarena.deploy.admission import CHUNK_BYTES, CONTROL_BYTES, MOST_CHUNK_BYTES
from fedarena.deploy.authority import serial_of
from fedarena.deploy.calls import BadCallError
from fedarena.deploy.coordinator import Answer, ExcludedError
from fedarena.deploy.members import Member
from fedarena.deploy.service import OUT_OF_ORDER, NoSuchFileError, Service, TooManyCallsError

NAME = "fedarena.v1"
_CHUNK_SECONDS = 60.0  # within which the next piece of an upload must come
_STREAMS = 16  # calls at once on one connection
_OPTIONS = [
    ("grpc.max_receive_message_length", MOST_CHUNK_BYTES + CONTROL_BYTES),
    ("grpc.max_send_message_length", MOST_CHUNK_BYTES + CONTROL_BYTES),
    ("grpc.max_concurrent_streams", _STREAMS),
    ("grpc.max_metadata_size", 1 << 14),
    ("grpc.so_reuseport", 0),  # or a second server on the same port would go unnoticed
]
_CODES = {
    ExcludedError: grpc.StatusCode.PERMISSION_DENIED,
    TooManyCallsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    BadCallError: grpc.StatusCode.INVALID_ARGUMENT,
    NoSuchFileError: grpc.StatusCode.NOT_FOUND,
}


class GrpcService(Service):
    """See `Service`."""

    _server: Any
    _serials: dict[bytes, str]  # of certificates
    _serials_most = 4096

    async def _open(self) -> int:
        own, self._serials = self._credentials, {}
        credentials = grpc.ssl_server_credentials([(own.key, own.certificate)], own.authority, require_client_auth=True)
        self._server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            "Join": grpc.unary_unary_rpc_method_handler(self._answering(self._join)),
            "Next": grpc.unary_unary_rpc_method_handler(self._answering(self._next)),
            "Status": grpc.unary_unary_rpc_method_handler(self._answering(self._status)),
            "Download": grpc.unary_stream_rpc_method_handler(self._download),
            "Upload": grpc.stream_unary_rpc_method_handler(self._answering(self._upload)),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
        port: int = self._server.add_secure_port(self._address, credentials)
        await self._server.start()
        return port

    async def _shut(self, grace: float) -> None:
        await self._server.stop(grace)

    def _member(self, context: Any) -> Member:
        peer = context.auth_context()
        name, certificate = peer["x509_common_name"][0].decode(errors="replace"), peer["x509_pem_cert"][0]
        if certificate not in self._serials:
            if len(self._serials) >= self._serials_most:
                self._serials.clear()
            self._serials[certificate] = serial_of(certificate)
        return self._admitted(name, self._serials[certificate])

    def _answering(self, call: Callable[[Member, Any], Awaitable[Answer]]) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def answer(request: Any, context: Any) -> bytes:
            try:
                return json.dumps(await call(self._member(context), request)).encode()
            except tuple(_CODES) as error:
                await context.abort(_CODES[type(error)], str(error))
                raise
            except OSError as error:
                self._is_out_of_order(error)
                await context.abort(grpc.StatusCode.UNAVAILABLE, OUT_OF_ORDER)
                raise

        return answer

    async def _download(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            self._member(context)
            path, offset = self._file(request)
        except tuple(_CODES) as error:
            await context.abort(_CODES[type(error)], str(error))
            raise
        with open(path, "rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    async def _upload(self, member: Member, stream: AsyncIterator[bytes]) -> Answer:
        async with self._uploads:
            chunks = _in_time(stream)
            return await self._received(member, await anext(chunks, b""), chunks)


async def _in_time(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The messages of a stream, none of which may take long."""
    chunks = aiter(stream)
    while True:
        try:
            yield await asyncio.wait_for(anext(chunks), _CHUNK_SECONDS)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise BadCallError(f"Nothing came for {_CHUNK_SECONDS:g} seconds") from None
