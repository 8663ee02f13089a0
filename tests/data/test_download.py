"""Files arrive whole or not at all, from servers that behave and from servers that do not."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import filelock
import numpy as np
import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.raw import download as module
from fedarena.data.raw.download import download, download_missing
from fedarena.data.raw.files import RawFile, RawFiles

CONTENT = np.random.default_rng(0).bytes(1_000_000)
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves one file under any name; what it does wrong can be set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True
        self.breaks_after: int | None = None  # so many bytes of every response
        self.headers: dict[str, str] = {"ETag": '"one"'}
        self.status: int | None = None
        self.says_length = True
        self.requests: list[str | None] = []  # the ranges that were asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/data.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers.get("Range")
        server.requests.append(asked)
        if server.status is not None:
            self.send_error(server.status)
            return
        begin, body = 0, server.content
        still_the_same = self.headers.get("If-Range") in (None, *server.headers.values())
        if asked and server.ranges and still_the_same:
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if server.says_length:
            self.send_header("Content-Length", str(len(body) - begin))
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        end = None if server.breaks_after is None else begin + server.breaks_after
        self.wfile.write(body[begin:end])

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(server: Server, folder: Path, checksum: str | None = CHECKSUM, name: str = "data.bin") -> Path:
    return download(RawFile(name, checksum, server.url), folder, lambda have, whole, text: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("says_length", [True, False])
def test_a_file_arrives(server: Server, tmp_path: Path, says_length: bool) -> None:
    server.says_length = says_length
    seen: list[tuple[int, int | None, str]] = []
    file = RawFile("data.bin", CHECKSUM, server.url)
    path = download(file, tmp_path / "raw" / "a", lambda *state: seen.append(state))
    assert path == tmp_path / "raw" / "a" / "data.bin"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["data.bin"]
    fetched = [have for have, _, text in seen if text == "Fetching data.bin"]
    assert fetched == sorted(fetched)
    assert fetched[-1] == len(CONTENT)
    assert {whole for _, whole, text in seen if text.startswith("Fetching")} == {len(CONTENT) if says_length else None}
    assert any(text == "Checking data.bin" for _, _, text in seen)


@pytest.mark.parametrize("checksum", [CHECKSUM, None])
def test_a_transfer_that_breaks_off_goes_on_where_it_was(server: Server, tmp_path: Path, checksum: str | None) -> None:
    server.breaks_after = 300_000
    assert fetch(server, tmp_path, checksum).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert names(tmp_path) == ["data.bin"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 0
    with pytest.raises(BadInputError, match=r"the connection broke off; put data\.bin into"):
        fetch(server, tmp_path)
    (tmp_path / "data.part.bin").write_bytes(CONTENT[:700_000])
    with pytest.raises(BadInputError, match=r"700,000 bytes are kept, and the same command goes on from there"):
        fetch(server, tmp_path)
    assert not (tmp_path / "data.bin").exists()
    server.breaks_after = None
    server.requests.clear()
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=700000-"]


def test_a_server_that_knows_no_ranges_sends_everything_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "data.part.bin").write_bytes(b"x" * 10)
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=10-"]


def test_the_rest_of_another_version_is_not_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "data.part.bin").write_bytes(b"x" * 10)
    (tmp_path / "data.part.bin.version").write_text('"older"')
    assert fetch(server, tmp_path, checksum=None).read_bytes() == CONTENT
    assert server.requests == ["bytes=10-"]


def test_without_checksum_and_version_nothing_is_taken_up(server: Server, tmp_path: Path) -> None:
    server.headers = {"ETag": 'W/"weak"'}
    (tmp_path / "data.part.bin").write_bytes(b"x" * 10)
    assert fetch(server, tmp_path, checksum=None).read_bytes() == CONTENT
    assert server.requests == [None]


def test_what_was_complete_is_only_checked_and_what_is_too_long_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    for kept, requests in ((CONTENT, 1), (CONTENT + b"x", 2)):
        server.requests.clear()
        (tmp_path / "data.part.bin").write_bytes(kept)
        assert fetch(server, tmp_path).read_bytes() == CONTENT
        assert len(server.requests) == requests


def test_another_content_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(
        DamagedFileError, match=r"is not the published data\.bin: its checksum differs; nothing was kept"
    ):
        fetch(server, tmp_path)
    assert names(tmp_path) == []


def test_a_compressed_file_keeps_its_ending(server: Server, tmp_path: Path) -> None:
    server.content = gzip.compress(CONTENT)
    file = RawFile("data.bin", CHECKSUM, f"{server.url}.gz")
    path = download(file, tmp_path, lambda *state: None)
    assert path.name == "data.bin.gz"
    assert file.look_for(tmp_path) == path
    assert gzip.decompress(path.read_bytes()) == CONTENT


@pytest.mark.parametrize(
    ("status", "requests", "sentence"),
    [(404, 1, "cannot be fetched: 404 Not Found; put data.bin into"), (503, 3, "cannot be fetched: 503 Service")],
)
def test_servers_that_refuse(server: Server, tmp_path: Path, status: int, requests: int, sentence: str) -> None:
    server.status = status
    with pytest.raises(BadInputError, match=sentence):
        fetch(server, tmp_path)
    assert len(server.requests) == requests
    assert names(tmp_path) == []


def test_a_web_page_is_not_the_file(server: Server, tmp_path: Path) -> None:
    server.headers["Content-Type"] = "text/html; charset=utf-8"
    with pytest.raises(BadInputError, match="it is a web page instead of the file"):
        fetch(server, tmp_path, checksum=None)
    assert names(tmp_path) == []


def test_no_network(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.server_close()  # nobody listens there any more
    with pytest.raises(BadInputError, match=rf"cannot be fetched: .*; put data\.bin into {tmp_path} by other means"):
        fetch(server, tmp_path)

    def resolve(*names: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    file = RawFile("data.bin", None, "http://nowhere.invalid/data.bin")
    with pytest.raises(BadInputError, match="there is no network, or its name cannot be found"):
        download(file, tmp_path, lambda *state: None)


def test_a_server_that_does_not_answer(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(Handler, "do_GET", lambda handler: handler.rfile.read(1))
    with pytest.raises(BadInputError, match=r"no answer in 0\.05 seconds"):
        fetch(server, tmp_path)


def test_two_processes_do_not_write_the_same_file(server: Server, tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / ".data.part.bin.lock"), pytest.raises(BadInputError, match="Another process"):
        fetch(server, tmp_path)
    assert server.requests == []


def test_only_what_is_missing_and_known_is_fetched(server: Server, tmp_path: Path) -> None:
    files = RawFiles(
        "made",
        "Made",
        {
            "here": RawFile("here.bin", None, server.url),
            "away": RawFile("away.bin", CHECKSUM, server.url),
            "secret": RawFile("secret.bin"),
        },
        "ask around",
    )
    (tmp_path / "here.bin").write_bytes(b"as it was")
    assert download_missing(files, str(tmp_path), lambda *state: None) == [tmp_path / "away.bin"]
    assert names(tmp_path) == ["away.bin", "here.bin"]
    assert (tmp_path / "here.bin").read_bytes() == b"as it was"


def test_of_several_forms_of_the_same_data_one_is_fetched(server: Server, tmp_path: Path) -> None:
    forms = {name: RawFile(name, CHECKSUM, server.url) for name in ("first.bin", "second.bin")}
    files = RawFiles("made", "Made", {"unknown": RawFile("unknown.bin"), **forms}, "ask around", one_is_enough=True)
    assert download_missing(files, str(tmp_path), lambda *state: None) == [tmp_path / "first.bin"]
    assert download_missing(files, str(tmp_path), lambda *state: None) == []
