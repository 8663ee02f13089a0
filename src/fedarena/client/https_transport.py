"""Calls over HTTPS by the standard library alone, for devices without grpcio, and for those behind a proxy.

A call is ``POST /v1/Name``, with the messages that gRPC carries. An upload is its first message, a line feed, and bytes
of the file: a few MiB at a time, because who sends over HTTP/1.1 hears nothing before the end of what it sends.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from fedarena.client import transport
from fedarena.client.identity import Invitation
from fedarena.client.transport import CallFailedError, Failure

_PIECE_BYTES = 1 << 16
_UPLOAD_BYTES = 1 << 21  # of a file, in one request
_IDLE_SECONDS = 20.0  # after which the server, or something in between, may have forgotten a connection
_CONNECTING_SECONDS = 20.0
_FAILURES = {
    403: Failure.NOT_WANTED,
    410: Failure.GONE,
    429: Failure.NO_ANSWER,
    500: Failure.NO_ANSWER,
    503: Failure.NO_CONNECTION,
}


class HttpsTransport:
    """See `fedarena.client.transport.Transport`."""

    def __init__(self, invitation: Invitation):
        self._invitation, self._tls = invitation, invitation.tls()
        self._lock = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []  # since when, the latest at the end

    def close(self) -> None:
        """Ends what is not in use."""
        with self._lock:
            for _, connection in self._idle:
                connection.close()
            self._idle.clear()

    def ask(self, name: str, message: bytes, seconds: float) -> bytes:
        """The answer to a message."""
        with self._connected(seconds) as connection:
            connection.request("POST", f"/v1/{name}", message)
            return _answer(connection.getresponse())

    def download(self, message: bytes) -> Generator[bytes, None, None]:
        """What the server has to send, piece by piece."""
        with self._connected(transport.SILENCE_SECONDS) as connection:
            connection.request("POST", "/v1/Download", message)
            response = connection.getresponse()
            if response.status != http.client.OK:
                _answer(response)
            left = response.length or 0
            while left > 0:
                piece = response.read1(min(_PIECE_BYTES, left))
                if not piece:
                    raise http.client.IncompleteRead(b"", left)
                left -= len(piece)
                yield piece
            response.close()

    def upload(self, head: bytes, pieces: Iterator[bytes], packs: bool) -> bytes:
        """The answer to a message and as many pieces as go into one request."""

        def body() -> Iterator[bytes]:
            yield head + b"\n"
            sent = 0
            while sent < _UPLOAD_BYTES and (piece := next(pieces, b"")):
                yield piece
                sent += len(piece)

        with self._connected(transport.SILENCE_SECONDS) as connection:
            connection.request("POST", "/v1/Upload", body())
            return _answer(connection.getresponse())

    @contextmanager
    def _connected(self, seconds: float) -> Iterator[http.client.HTTPConnection]:
        """A connection that nobody else uses, and on which nothing may stand still for longer."""
        connection = self._taken()
        try:
            connection.sock.settimeout(seconds)
            yield connection
        except TimeoutError as error:
            connection.close()
            raise CallFailedError(Failure.NO_ANSWER, "time is up") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CallFailedError(Failure.NO_CONNECTION) from error
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append((time.monotonic(), connection))

    def _taken(self) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()
                if time.monotonic() - since < _IDLE_SECONDS and connection.sock is not None:
                    return connection
                connection.close()
        connection = self._invitation.connection(_CONNECTING_SECONDS, self._tls)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CallFailedError(Failure.NO_CONNECTION) from error
        return connection


def _answer(response: http.client.HTTPResponse) -> bytes:
    """All of an answer; what is no answer becomes a failure."""
    if response.length is None or response.length > transport.MOST_BYTES:
        raise CallFailedError(Failure.NOT_UNDERSTOOD, "its answer is too long")
    data = response.read()
    if response.status != http.client.OK:
        failure = _FAILURES.get(response.status, Failure.NOT_UNDERSTOOD)
        raise CallFailedError(failure, data.decode(errors="replace"))
    return data
