"""Lanes that a GPU computes beside each other, each on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class LaneStream:
    """Where a GPU computes one lane: a stream, which is the current one within this context, and memory for its graphs.

    Only graphs of one stream may share memory, since they never run at the same time. What is more urgent goes first.
    """

    def __init__(self, urgency: int = 0) -> None:
        self.stream = torch.cuda.Stream(priority=-urgency)  # type: ignore[no-untyped-call]
        self.pool: Any = None
        self._before: list[torch.cuda.Stream] = []  # it may be entered again within itself

    def __enter__(self) -> None:
        # torch's own context asks every time which GPU is meant, which is much for a small step.
        self._before.append(torch.cuda.current_stream(self.stream.device_index))
        torch.cuda.set_stream(self.stream)

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_stream(self._before.pop())


class Milestone:
    """Points that streams have reached, for which another one can wait; a CPU does everything in order anyway."""

    def __init__(self, device: torch.device):
        self._exists = device.type == "cuda"
        self._reached: list[Any] = []

    def reach(self) -> None:
        """Adds what the current stream has been given to do until now."""
        if self._exists:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._reached.append(event)

    def wait(self) -> None:
        """What the current stream does from now on begins when all of that is done."""
        for event in self._reached:
            torch.cuda.current_stream().wait_event(event)

    def forget(self) -> None:
        """From now on there is nothing to wait for."""
        self._reached = []


@contextmanager
def beside_each_other(streams: Sequence[LaneStream | None]) -> Iterator[None]:
    """These streams see what the current one did before, and what follows in it sees what they did."""
    used = [one.stream for one in streams if one is not None]
    for stream in used:
        stream.wait_stream(torch.cuda.current_stream())
    yield
    for stream in used:
        torch.cuda.current_stream().wait_stream(stream)
