"""Calls over gRPC, without protobuf."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from fedarena.client import transport
from fedarena.client.identity import Invitation
from fedarena.client.transport import CallFailedError, Failure

_SERVICE = "/fedarena.v1/"
_OPTIONS = [
    ("grpc.max_receive_message_length", transport.MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),  # whoever needs a proxy takes HTTPS
]
_CODES = grpc.StatusCode
_FAILURES = {
    _CODES.PERMISSION_DENIED: Failure.NOT_WANTED,
    _CODES.UNAUTHENTICATED: Failure.NOT_WANTED,
    _CODES.NOT_FOUND: Failure.GONE,
    _CODES.INVALID_ARGUMENT: Failure.NOT_UNDERSTOOD,
    _CODES.UNIMPLEMENTED: Failure.NOT_UNDERSTOOD,
    _CODES.UNAVAILABLE: Failure.NO_CONNECTION,
}


class GrpcTransport:
    """See `fedarena.client.transport.Transport`."""

    def __init__(self, invitation: Invitation):
        credentials = grpc.ssl_channel_credentials(invitation.authority, invitation.key, invitation.certificate)
        self._channel = grpc.secure_channel(invitation.address, credentials, options=_OPTIONS)
        # Connects when it is first used. Calls that go on by themselves ignore what is said about packing in a call.
        self._packing_channel = grpc.secure_channel(
            invitation.address, credentials, options=_OPTIONS, compression=grpc.Compression.Gzip
        )

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()
        self._packing_channel.close()

    def ask(self, name: str, message: bytes, seconds: float) -> bytes:
        """The answer to a message."""
        with _failing():
            answer: bytes = self._channel.unary_unary(_SERVICE + name)(message, timeout=seconds)
            return answer

    def download(self, message: bytes) -> Generator[bytes, None, None]:
        """What the server has to send, piece by piece."""
        stream = self._channel.unary_stream(_SERVICE + "Download")(message)
        watched = _Watched(stream)
        try:
            with _failing(), watched.cancelling(stream):
                yield from watched
        finally:
            stream.cancel()

    def upload(self, head: bytes, pieces: Iterator[bytes], packs: bool) -> bytes:
        """The answer to a message and the pieces that follow it."""

        def messages() -> Iterator[bytes]:
            yield head
            yield from pieces

        watched = _Watched(messages())
        channel = self._packing_channel if packs else self._channel
        with _failing():
            call = channel.stream_unary(_SERVICE + "Upload").future(watched)
            with watched.cancelling(call):
                answer: bytes = call.result()
                return answer


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except grpc.FutureCancelledError:
        raise CallFailedError(Failure.NO_ANSWER, "cancelled") from None
    except grpc.RpcError as error:
        code = error.code()
        failure = _FAILURES.get(code, Failure.NO_ANSWER)
        words = code.name.lower().replace("_", " ") if failure is Failure.NO_ANSWER else error.details() or ""
        raise CallFailedError(failure, words) from error


class _Watched:
    """The pieces of a stream. If none moves for long, its call is cancelled: a network may die without a word."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces, self._moved = pieces, time.monotonic()
        self._done = threading.Event()

    @contextmanager
    def cancelling(self, call: Any) -> Iterator[None]:
        """Watches over a call."""
        threading.Thread(target=self._watch, args=[call], daemon=True).start()
        try:
            yield
        finally:
            self._done.set()

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> bytes:
        self._moved = time.monotonic()
        try:
            return next(self._pieces)
        finally:
            self._moved = time.monotonic()

    def _watch(self, call: Any) -> None:
        while not self._done.wait(transport.SILENCE_SECONDS / 20):
            if time.monotonic() - self._moved > transport.SILENCE_SECONDS:
                call.cancel()
                return
