"""A device at work: it tells the server so now and then, hears whether it is still wanted, and may have to pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fedarena.client.conditions import Conditions
from fedarena.client.link import Link
from fedarena.client.transport import CallFailedError
from fedarena.core.errors import FedArenaError

_SECONDS_BETWEEN_LOOKS = 10.0  # at whether the device still charges
_SECONDS_BETWEEN_WORDS = 0.5


class NotWantedError(Exception):
    """The server has no use for what is being computed."""


class AtWork:
    """Speaks with the server while a task is done; `before_step` ends it where it makes no sense to go on."""

    def __init__(
        self,
        link: Link,
        run: str,
        task: str,
        every_seconds: float,
        conditions: Conditions,
        show: Callable[[str], None],
    ):
        self._link, self._every_seconds, self._show = link, every_seconds, show
        # What has begun goes on without Wi-Fi, and makes a device look busy; but not on battery.
        self._conditions = Conditions(charging=conditions.charging)
        self._message = {"run": run, "busy": task, "ready": True}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._steps, self._looked, self._said = 0, time.monotonic(), 0.0
        self.is_cancelled = False

    def __enter__(self) -> AtWork:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=1.0)

    def before_step(self) -> None:
        """To be called before every step of local training."""
        if self.is_cancelled:
            raise NotWantedError
        self._steps += 1
        now = time.monotonic()
        if now - self._said >= _SECONDS_BETWEEN_WORDS:
            self._said = now
            self._show(f"training, step {self._steps:,}")
        if now - self._looked >= _SECONDS_BETWEEN_LOOKS:
            self._pause_as_long_as_needed()
            self._looked = time.monotonic()

    def _pause_as_long_as_needed(self) -> None:
        while (why_not := self._conditions.why_not()) is not None:
            self._show(f"pausing: {why_not}")
            self._link.wait(_SECONDS_BETWEEN_LOOKS)
            if self.is_cancelled:
                raise NotWantedError

    def _go_on(self) -> None:
        while not self._done.wait(self._every_seconds):
            try:
                answer = self._link.call_once("Next", self._message)
            except (CallFailedError, FedArenaError):  # who is offline goes on training
                continue
            if "cancel" in answer or "over" in answer:
                self.is_cancelled = True
                return
