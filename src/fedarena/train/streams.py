"""Lanes that a GPU computes beside each other, each on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


class LaneStream:
    """Where a GPU computes one lane: a stream, which is the current one within this context, and memory for its graphs.

    Only graphs of one stream may share memory, since they never run at the same time. What is `urgent` goes first.
    """

    def __init__(self, urgent: bool = False) -> None:
        self.stream = torch.cuda.Stream(priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]
        self.pool: Any = None
        self._within: Any = None

    def __enter__(self) -> None:
        self._within = torch.cuda.stream(self.stream)
        self._within.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._within.__exit__(*error)


@contextmanager
def beside_each_other(
    streams: dict[int, LaneStream], lanes: Sequence[int], device: torch.device
) -> Iterator[list[LaneStream | None]]:
    """The streams of these lanes: they see what was done before, and what follows sees what they did.

    On a CPU, which does one thing after the other, there are none.
    """
    if device.type != "cuda":
        yield [None for _ in lanes]
        return
    now = torch.cuda.current_stream()
    for lane in lanes:
        if lane not in streams:
            streams[lane] = LaneStream()
    used = [streams[lane] for lane in lanes]
    for one in used:
        one.stream.wait_stream(now)
    yield list(used)
    for one in used:
        now.wait_stream(one.stream)
