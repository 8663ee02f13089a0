"""What tests of measuring devices share: time that does not pass by itself, a server, and little to transfer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedarena.profiling import make_server
from fedarena.profiling.network import NetworkPlan

TINY = NetworkPlan(pings=2, first_bytes=1000, most_bytes=16_000, long_enough_seconds=100.0, repeats=2)


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total


class FakeClock:
    """Time that passes by the given amounts from one look to the next, again and again."""

    def __init__(self, *steps: float):
        self.steps, self.now, self.looks = steps, 100.0, 0

    def __call__(self) -> float:
        self.now += self.steps[self.looks % len(self.steps)]
        self.looks += 1
        return self.now


@contextmanager
def running_server() -> Iterator[str]:
    """The address of a server that answers meanwhile."""
    made = make_server(0, "127.0.0.1")
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()
    thread.join()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
