"""Keeping Ctrl-C out of the middle of a write."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Lets Ctrl-C and termination wait until the block is done, so that what is being written gets written whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        pending.append(number)

    previous = [(number, signal.signal(number, remember)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)
        for received in pending:
            signal.raise_signal(received)
