"""Serves the live page: to this machine only, to whoever knows its address only, and nothing can be changed through it.

The address has a random token, without which there is nothing. The name in the ``Host`` header must be this machine's,
so that a page from elsewhere whose name suddenly points here gets nothing either (DNS rebinding).
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from plotly.offline import get_plotlyjs

from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.display.reporting import REPORT_FILE
from fedarena.display.watch.feed import Feed, as_json
from fedarena.display.watch.index import Changes, RunIndex
from fedarena.display.watch.page import asset, page

LOOPBACK: Final = "127.0.0.1"
USUAL_PORT: Final = 7007
MOST_CHOSEN: Final = 12  # runs whose rounds one page follows
_BEAT_SECONDS: Final = 5.0  # in which a page that has gone is noticed
_RETRY_MS = 1000  # after which a page that lost its server asks again
_KEY = re.compile(r"[0-9a-f]{12}\Z")
_POSITION = re.compile(r"([0-9a-f]{12})/(\w{0,64})/([0-9]{1,9})", re.ASCII)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report is a page of its own: what its scripts do stays with it.
_REPORT_POLICY: Final = "sandbox allow-scripts allow-downloads"
Known = dict[str, tuple[str, int]]  # by keys of folders: the run that a page has, and up to which round


class WatchServer(ThreadingHTTPServer):
    """The server of one page; `url` is its address."""

    daemon_threads = True

    def __init__(self, folders: list[Path], port: int | None = None):
        """Without a port, the usual one or, if that is taken, any."""
        self.index, self.token = RunIndex(folders), secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, USUAL_PORT if port is None else port), _Handler)
        except OSError as error:
            if port is not None:
                self.index.close()
                raise BadInputError(
                    f"The port {port} cannot be used: {error.strerror}; choose another --port"
                ) from None
            super().__init__((LOOPBACK, 0), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def server_close(self) -> None:
        """Ends all streams, too."""
        self.index.close()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed in the middle of an answer is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "fedarena", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        token, _, name = place.path.removeprefix("/").partition("/")
        if self.headers.get("Host") not in {f"{host}:{self.server.server_port}" for host in (LOOPBACK, "localhost")}:
            self._refuse(HTTPStatus.FORBIDDEN, "This page is for this machine only.")
        elif not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing here. fedarena watch prints the whole address.")
        elif name == "events":
            self._stream(parse_qs(place.query))
        elif name.startswith("report/"):
            self._send_report(name.removeprefix("report/"))
        else:
            self._send_file(name)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal stays quiet."""

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, "text/plain", f"{sentence}\n".encode())

    def _send(
        self,
        status: HTTPStatus,
        kind: str,
        data: bytes,
        policy: str = _POLICY,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._begin(status, kind, {"Content-Length": str(len(data)), **headers}, policy)
        self.wfile.write(data)

    def _begin(self, status: HTTPStatus, kind: str, headers: Mapping[str, str], policy: str = _POLICY) -> None:
        self.send_response(status)
        everything = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": policy,
            "Cache-Control": "no-store",
            **_HEADERS,
            **headers,
        }
        for name, value in everything.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_file(self, name: str) -> None:
        if name == "":
            self._send(HTTPStatus.OK, "text/html", page(self.server.index.roots).encode())
        elif name == "plotly.js":  # megabytes that do not change
            script = get_plotlyjs().encode()
            self._send(HTTPStatus.OK, "text/javascript", script, headers={"Cache-Control": "private, max-age=86400"})
        elif name in ("watch.js", "watch.css", "report.css"):
            kind = "text/css" if name.endswith(".css") else "text/javascript"
            self._send(HTTPStatus.OK, kind, asset(name).encode())
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such file.")

    def _send_report(self, key: str) -> None:
        folder = self.server.index.folder(key)
        try:
            if folder is None:
                raise FileNotFoundError
            with open(folder / REPORT_FILE, "rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                self._begin(HTTPStatus.OK, "text/html", {"Content-Length": str(size)}, _REPORT_POLICY)
                shutil.copyfileobj(file, self.wfile)
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND, "This run has no report yet.")

    def _stream(self, query: Mapping[str, list[str]]) -> None:
        """News until the page is closed: about all runs, and the rounds of those that it has chosen.

        The id of an event tells up to which round the page has the chosen runs, ``KEY/RUN/ROUND KEY/RUN/ROUND``; a
        page that comes back (or chooses others) says the last one, and gets what comes after it. Where another run has
        begun in the folder meanwhile, it gets all of that.
        """
        chosen = [key for key in query.get("runs", [""])[0].split(",") if _KEY.match(key)][:MOST_CHOSEN]
        known = _positions(self.headers.get("Last-Event-ID") or query.get("after", [""])[0])
        self._begin(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
        self.close_connection = True
        self._write(f"retry: {_RETRY_MS}\n\n")
        index = self.server.index
        version, feeds = 0, dict[str, Feed]()
        with index:
            while not index.is_closed:
                changes = index.wait_for_changes(version, _BEAT_SECONDS)
                if changes is None:
                    self._write(": still here\n\n")
                    continue
                version = changes.version
                self._tell_runs(changes)
                shown = {run["key"]: run for run in changes.runs}
                for key in chosen:
                    if key in shown and key in changes.keys:
                        self._tell_rounds(key, shown[key], feeds, known)

    def _tell_runs(self, changes: Changes) -> None:
        news = {
            "runs": changes.runs,
            "gone": changes.gone,
            "suites": changes.suites,
            "complete": changes.is_complete,
        }
        self._write(f"event: runs\ndata: {as_json(news)}\n\n")

    def _tell_rounds(self, key: str, shown: dict[str, Any], feeds: dict[str, Feed], known: Known) -> None:
        folder = self.server.index.folder(key)
        if folder is None or "metric" not in shown:
            return
        try:
            if key not in feeds or feeds[key].run != shown["run"]:
                feeds[key] = Feed(folder, shown["metric"]["name"], known.get(key, ("", -1)))
            rows = feeds[key].read()
        except FedArenaError as error:
            feeds.pop(key, None)
            self._write(f"event: problem\ndata: {as_json({'key': key, 'message': str(error)})}\n\n")
            return
        if rows:
            feed = feeds[key]
            known[key] = feed.run, feed.after
            position = " ".join(f"{one}/{run}/{round}" for one, (run, round) in known.items())
            news = {
                "key": key,
                "run": feed.run,
                "rows": rows,
                "phones": feed.phones_at_work(),
                "simulated": feed.is_simulated,
            }
            self._write(f"id: {position}\nevent: rounds\ndata: {as_json(news)}\n\n")

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()


def _positions(text: str) -> Known:
    """Up to which round of which run a page has what was in which folder."""
    found = (_POSITION.fullmatch(piece) for piece in text.split(" ")[: 10 * MOST_CHOSEN])
    return {key: (run, int(round)) for key, run, round in (one.groups() for one in found if one is not None)}


def serve_in_background(folders: list[Path], port: int | None = None) -> WatchServer:
    """A server that is at work until `shutdown` and `server_close`."""
    server = WatchServer(folders, port)
    threading.Thread(target=server.serve_forever, name="watch", daemon=True).start()
    return server
