"""The other end of a measurement of the network: a server that sends and takes as many bytes as it is asked to.

``GET /`` says who it is, ``GET /download?bytes=N`` sends N bytes, ``POST /upload`` reads what comes and says how much
that was. It keeps nothing, reads no file and runs nothing.
"""

from __future__ import annotations

import json
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedarena.core.errors import BadInputError

SERVICE = "fedarena network measurement"
DEFAULT_PORT = 8765
MAX_TRANSFER_BYTES = 1 << 30
# Random, so that nothing on the way can make it smaller.
BLOCK = os.urandom(1 << 16)
_IDLE_SECONDS = 60.0


class _Handler(BaseHTTPRequestHandler):
    timeout = _IDLE_SECONDS  # somebody who says nothing is not waited for

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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""


def make_server(port: int = DEFAULT_PORT, host: str = "") -> ThreadingHTTPServer:
    """A server that listens already; `serve_forever` makes it answer. Port 0 is any that is free."""
    if not 0 <= port <= 65_535:
        raise BadInputError(f"A port is a number from 0 to 65535, not {port}")
    try:
        return _Server((host, port), _Handler)
    except OSError as error:
        raise BadInputError(f"Nothing can listen at port {port}: {error.strerror or error}") from None
