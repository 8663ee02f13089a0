"""The clock of a run on a real network: seconds since it began, however often its server was started."""

from __future__ import annotations

import threading
import time


class RunClock:
    """Tells the time. Tests have one that they move themselves."""

    def __init__(self, began: float | None = None, offset: float = 0.0):
        """The run `began` then, by the wall clock; None: now. `offset` is what its clock showed then."""
        self.began = time.time() if began is None else began
        self._offset = offset

    def seconds(self) -> float:
        """How long the run has been going on."""
        return time.time() - self.began + self._offset

    def wait(self, condition: threading.Condition, seconds: float) -> None:
        """Waits until somebody notifies the condition, which is held, or so many seconds have passed."""
        condition.wait(seconds)
