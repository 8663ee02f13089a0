"""The other end of a measurement of the network: a server that sends and takes as many bytes as it is asked to.

``GET /`` says who it is, ``GET /download?bytes=N`` sends N bytes, ``POST /upload`` reads what comes and says how much
that was. It keeps nothing, reads no file and runs nothing. Nobody can keep it busy for longer than `ServerLimits` say.
"""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted

SERVICE = "fedarena network measurement"
DEFAULT_PORT = 8765
THIS_MACHINE = "127.0.0.1"
MAX_TRANSFER_BYTES = 1 << 30
# Random, so that nothing on the way can make it smaller.
BLOCK = os.urandom(1 << 16)
BUSY = 503  # what HTTP answers to one client too many


@dataclass(frozen=True)
class ServerLimits:
    """What clients may take of a server."""

    clients: int = 32  # at a time
    client_seconds: float = 120.0  # for a single request, from connecting to the last byte
    idle_seconds: float = 30.0  # without a sign of the client
    retry_seconds: float = 0.2  # before the next client, where none can be let in (no files can be opened any more)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.limits.idle_seconds)  # somebody who says nothing is not waited for

    def do_GET(self) -> None:
        if self.path == "/":
            self._answer(200, {"service": SERVICE})
            return
        wanted = re.fullmatch(r"/download\?bytes=(\d{1,12})", self.path)
        if wanted is None:
            self._answer(404, {"error": "there are /, /download?bytes=N and /upload"})
            return
        left = int(wanted[1])
        if left > MAX_TRANSFER_BYTES:
            self._answer(413, {"error": f"at most {MAX_TRANSFER_BYTES} bytes are sent"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left:
            left -= self.wfile.write(BLOCK[: min(left, len(BLOCK))])

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/upload" or not re.fullmatch(r"\d{1,12}", length):
            self._answer(404, {"error": "what is uploaded goes to /upload and has a Content-Length"})
            return
        left = total = int(length)
        if total > MAX_TRANSFER_BYTES:
            self._answer(413, {"error": f"at most {MAX_TRANSFER_BYTES} bytes are taken"})
            return
        while left and (block := self.rfile.read(min(left, len(BLOCK)))):
            left -= len(block)
        self._answer(200, {"bytes": total - left})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the screen quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[Any, ...], family: int, limits: ServerLimits):
        self.address_family, self.limits = family, limits
        self._places = threading.BoundedSemaphore(limits.clients)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Binds without asking the network for this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next client; where none can be let in, asking again and again would help nobody."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(self.limits.retry_seconds)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a client in a thread of its own, if there is a place left."""
        if not self._places.acquire(blocking=False):
            with suppress(OSError):
                request.settimeout(self.limits.retry_seconds)
                request.sendall(f"HTTP/1.0 {BUSY} Busy\r\nContent-Length: 0\r\n\r\n".encode())
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Hangs up when the client's time is over."""
        watch = threading.Timer(self.limits.client_seconds, _hang_up, [request])
        watch.daemon = True
        try:
            watch.start()
            super().process_request_thread(request, client_address)
        finally:
            watch.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # it has gone already
        request.shutdown(socket.SHUT_RDWR)


def make_server(
    port: int = DEFAULT_PORT, address: str = THIS_MACHINE, limits: ServerLimits | None = None
) -> ThreadingHTTPServer:
    """A server that listens already; `serve_forever` makes it answer. Port 0 is any that is free.

    It can be reached from this machine alone, unless `address` is another one of its addresses, or 0.0.0.0 for all.
    """
    if not 0 <= port <= 65_535:
        raise BadInputError(f"A port is a number from 0 to 65535, not {port}")
    try:
        if not address:
            raise OSError("an address is missing")
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        return _Server(place, family, limits or ServerLimits())
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"Nothing can listen at {quoted(address)}, port {port}: {reason}") from None
