"""Trackers beside a run: they follow what it commits, each in a thread of its own, and can neither stop nor change it.

The run only says that there is something new. How much, a tracker reads from the tables; so one that is slow falls
behind without holding up anything, and catches up later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.track.session import Session, make_tracker

# A tracker gets everything new at most so often, and so long is waited for all of them when a run ends.
PAUSE_SECONDS = 1.0
WAIT_SECONDS = 30.0


def check_trackers(settings: Sequence[Mapping[str, Any]]) -> None:
    """Refuses trackers that cannot work, such as those whose package is not installed."""
    for place, one in enumerate(settings):
        if one in settings[:place]:
            raise BadInputError(f"track[{place}] is the same as one before it; every tracker is named once")
        make_tracker(one).check()


class Tracking:
    """The trackers of a run that goes on. Warnings are told to `warn` in the thread that calls."""

    def __init__(self, folder: Path, settings: Sequence[Mapping[str, Any]], warn: Callable[[str], None]):
        self._folder, self._warn = folder, warn
        self._followers = [_Follower(folder, one) for one in settings]

    def notice(self) -> None:
        """There may be something new."""
        for follower in self._followers:
            follower.wake()
        self._complain()

    def finish(self, report: Path | None = None) -> None:
        """The run ended: lets trackers catch up and end, for a limited time."""
        for follower in self._followers:
            follower.end(report)
        until = time.monotonic() + WAIT_SECONDS
        for follower in self._followers:
            follower.join(max(0.0, until - time.monotonic()))
            if follower.is_alive():
                follower.problem = f"it did not answer within {WAIT_SECONDS:g} seconds"
        self._complain()

    def _complain(self) -> None:
        for follower in self._followers:
            if follower.problem is not None and not follower.is_told:
                follower.is_told = True
                shown = f"rounds up to {follower.handed}" if follower.handed >= 0 else "nothing"
                self._warn(
                    f"The tracker {follower.tracker} failed and has {shown}; the run itself is not affected: "
                    f"{follower.problem}. When that is mended: fedarena export {self._folder} --to {follower.tracker}"
                )


class _Follower(threading.Thread):
    """The thread of one tracker; a daemon, so that one that hangs does not keep the process."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.tracker = str(settings["name"])
        super().__init__(name=f"tracker {self.tracker}", daemon=True)
        self._folder, self._settings = folder, settings
        self._session: Session | None = None
        self._new, self._ending = threading.Event(), threading.Event()
        self._report: Path | None = None
        self.problem: str | None = None
        self.is_told = False
        self.start()

    @property
    def handed(self) -> int:
        """The last round that the tracker has."""
        return -1 if self._session is None else self._session.handed

    def wake(self) -> None:
        self._new.set()

    def end(self, report: Path | None) -> None:
        self._report = report
        self._ending.set()
        self._new.set()

    def run(self) -> None:
        try:
            self._session = session = Session(self._folder, self._settings)
            try:
                self._follow(session)
            finally:
                session.release()
        except BaseException as error:  # also what others' code raises to leave the process
            self.problem = " ".join(str(error).split()).rstrip(".") or type(error).__name__

    def _follow(self, session: Session) -> None:
        session.begin()
        ending = False
        while not ending:
            self._new.wait()
            self._new.clear()
            ending = self._ending.is_set()
            session.send()
            if not ending:
                self._ending.wait(PAUSE_SECONDS)
        session.finish(self._report)
