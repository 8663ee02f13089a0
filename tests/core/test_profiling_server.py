"""What others can do to the server that networks are measured against: little. All on this machine alone."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from measured_devices import TINY
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.profiling import arguments, make_server
from fedarena.profiling import server as server_module
from fedarena.profiling.__main__ import main as plain_main
from fedarena.profiling.network import NetworkProbe
from fedarena.profiling.server import ServerLimits

PATIENCE_SECONDS = 10.0


@contextmanager
def serving(**limits: Any) -> Iterator[Any]:
    with make_server(0, "127.0.0.1", ServerLimits(**limits)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def connect(server: Any) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=PATIENCE_SECONDS)


def answer(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while block := connection.recv(1 << 16):
            received += block
    return received


def test_it_listens_at_this_machine_alone_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_server(0) as server:
        assert server.server_address[0] == "127.0.0.1"
    said: list[str] = []
    monkeypatch.setattr(server_module.ThreadingHTTPServer, "serve_forever", lambda self: None)
    arguments.serve(0, "127.0.0.1", said.append)
    assert said[0].startswith("Listening at 127.0.0.1, port ")
    assert said[1].startswith("Only this machine can reach it.")


@pytest.mark.parametrize("face", [lambda words: CliRunner().invoke(main, ["profile-device", *words]), plain_main])
def test_the_address_is_an_option(face: Callable[[list[str]], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def remember(port: int, address: str) -> Any:
        asked.append((port, address))
        raise BadInputError("no server is needed here")

    monkeypatch.setattr(arguments, "make_server", remember)
    face(["--serve"])
    face(["--serve", "9000", "--address", "192.168.1.20"])
    assert asked == [(8765, "127.0.0.1"), (9000, "192.168.1.20")]


@pytest.mark.parametrize("address", ["", "256.1.1.1", "no such host", "192.0.2.1", "a" * 300, "\x1b[31m"])
def test_addresses_that_are_not_of_this_machine_get_a_sentence(address: str) -> None:
    with pytest.raises(BadInputError, match=r"Nothing can listen at '.*, port 0: ") as caught:
        make_server(0, address)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("word", ["9" * 5000, "-1", "port", "²"])
def test_ports_that_are_none_get_a_sentence(word: str) -> None:
    with pytest.raises(BadInputError, match="After --serve there may be a port"):
        arguments.port_of([word])


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /", b"POST /upload HTTP/1.0\r\nContent-Length: 1000000\r\n\r\n"],
    ids=["nothing", "half", "upload"],
)
def test_a_client_that_keeps_talking_is_hung_up_on(begin: bytes) -> None:
    """It says a byte now and then, so that it is never silent for long."""
    with serving(client_seconds=0.5, idle_seconds=30.0) as server, connect(server) as slow:
        slow.sendall(begin)
        started = time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - started < PATIENCE_SECONDS:
                slow.sendall(b"x")
                time.sleep(0.05)
        assert 0.4 <= time.monotonic() - started < PATIENCE_SECONDS


def test_a_client_that_does_not_read_is_hung_up_on() -> None:
    with serving(client_seconds=0.5, idle_seconds=30.0) as server, connect(server) as lazy:
        lazy.sendall(b"GET /download?bytes=1000000000 HTTP/1.0\r\n\r\n")
        time.sleep(1.0)
        assert len(answer(lazy)) < 1_000_000_000


def test_a_silent_client_is_hung_up_on() -> None:
    with serving(idle_seconds=0.3) as server, connect(server) as silent:
        assert answer(silent) == b""


def test_one_client_too_many_is_turned_away_and_places_are_free_again() -> None:
    with serving(clients=2) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(connect(server))
            time.sleep(0.3)
            with pytest.raises(BadInputError, match="serves too many devices at the moment; try again"):
                NetworkProbe(url, TINY).ping()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                NetworkProbe(url, TINY).ping()
                break
            except BadInputError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        for _ in range(5):  # more than there are places, one after the other
            NetworkProbe(url, TINY).ping()
            time.sleep(0.05)


def test_it_does_not_spin_when_no_files_can_be_opened() -> None:
    with serving(retry_seconds=0.1) as server, socket.socket() as waiting:
        tried: list[float] = []
        accept = server.get_request

        def counted() -> Any:
            tried.append(time.monotonic())
            return accept()

        server.get_request = counted
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno(), hard))
        try:
            waiting.connect(server.server_address[:2])
            time.sleep(1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert 1 <= len(tried) <= 15
        waiting.sendall(b"GET / HTTP/1.0\r\n\r\n")
        waiting.settimeout(PATIENCE_SECONDS)
        assert b"200" in answer(waiting)
