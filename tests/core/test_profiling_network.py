"""The network of a device, against a real server on this machine and against impostors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from measured_devices import TINY, FakeClock, free_port, quiet, running_server

from fedarena.core.errors import BadInputError
from fedarena.profiling import make_server
from fedarena.profiling.network import NetworkPlan, NetworkProbe
from fedarena.profiling.statistics import summarize


@pytest.fixture
def server() -> Iterator[str]:
    with running_server() as address:
        yield address


def test_transfers_grow_and_are_repeated(server: str) -> None:
    found = NetworkProbe(server + "/", TINY, clock=FakeClock(0.5)).measure(quiet)
    sizes = [1000, 4000, 16_000, 16_000, 16_000]
    for direction in ("download", "upload"):
        assert [transfer["bytes"] for transfer in found[direction]] == sizes
        for transfer in found[direction]:
            assert transfer["seconds"] == 0.5
            assert transfer["bits_per_second"] == 8 * transfer["bytes"] / 0.5
    assert found["latency_seconds"] == summarize([0.5, 0.5])


def test_a_slow_network_gets_small_transfers_and_few_of_them(server: str) -> None:
    plan = NetworkPlan(first_bytes=1000, long_enough_seconds=1.0, repeats=5, patience_seconds=5.0)
    found = NetworkProbe(server, plan, clock=FakeClock(2.0)).measure(quiet)
    assert [transfer["bytes"] for transfer in found["upload"]] == [1000, 1000, 1000]


@pytest.mark.parametrize("url", ["192.168.1.2:8765", "ftp://somewhere", "http://", "nonsense"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadInputError, match="A server is written like http://"):
        NetworkProbe(url, TINY)


def test_nobody_there() -> None:
    with pytest.raises(BadInputError, match=r"The server http://127.0.0.1:\d+ cannot be reached: Connection refused$"):
        NetworkProbe(f"http://127.0.0.1:{free_port()}", TINY).ping()


class Impostor:
    """A server that answers every connection with the same bytes, or with nothing at all."""

    def __init__(self, answer: bytes | None):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._answer, self._open = answer, []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(connection)
            if self._answer is not None:
                connection.recv(1 << 16)
                connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        for connection in self._open:
            connection.close()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "said nothing for 0.05 seconds"),
        (b"", "broke the connection|cannot be reached"),
        (b"220 mail.example ESMTP\r\n", "broke the connection"),
        (b"HTTP/1.0 404 No\r\n\r\n", "is not `fedarena profile-device --serve` .it answers 404"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>", "is not `fedarena profile-device --serve`"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"service": "another"}', "is not `fedarena profile-device --serve`"),
    ],
)
def test_somebody_else_is_there(answer: bytes | None, complaint: str) -> None:
    impostor = Impostor(answer)
    try:
        with pytest.raises(BadInputError, match=f"The server {impostor.url} ({complaint})"):
            NetworkProbe(impostor.url, NetworkPlan(timeout_seconds=0.05 if answer is None else 10)).ping()
    finally:
        impostor.close()


def test_a_download_that_ends_early_is_noticed() -> None:
    impostor = Impostor(b"HTTP/1.0 200 OK\r\n\r\nonly this")
    try:
        with pytest.raises(BadInputError, match="sent 9 bytes instead of 1,000"):
            NetworkProbe(impostor.url, TINY).download(1000)
    finally:
        impostor.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /download?bytes=99999999999 HTTP/1.0", 413),
        ("GET /etc/passwd HTTP/1.0", 404),
        ("GET /download?bytes=-1 HTTP/1.0", 404),
        ("POST /upload HTTP/1.0\r\nContent-Length: 99999999999", 413),
        ("POST /upload HTTP/1.0\r\nContent-Length: -5", 404),
        ("POST /elsewhere HTTP/1.0\r\nContent-Length: 0", 404),
    ],
)
def test_the_server_refuses(server: str, request_line: str, status: int) -> None:
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{request_line}\r\n\r\n".encode())
        assert f" {status} ".encode() in connection.recv(100)


def test_ports_that_cannot_be_listened_at() -> None:
    with pytest.raises(BadInputError, match="from 0 to 65535, not 70000"):
        make_server(70_000)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInputError, match=f"Nothing can listen at '127.0.0.1', port {port}: "):
            make_server(port, "127.0.0.1")
