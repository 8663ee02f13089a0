"""What is shown on the screen while searches go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedarena.core.console import Screen
from fedarena.hpo.searching import ComparisonObserver, PlannedSearch

_SECONDS_BETWEEN_LINES: Final = 15.0  # where the output is not a terminal


class SearchBars(ComparisonObserver):
    """A bar for all searches and one for every search at work, with the value of its incumbent.

    Where the output is not a terminal, there is a line now and then.
    """

    def __init__(self, planned: Sequence[PlannedSearch], console: Screen | None = None):
        self._console = console or Screen(stderr=True)
        self._all_searches, self._ended = len(planned), 0
        self._lock = threading.Lock()
        self._said = time.monotonic()
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._all = self._progress.add_task("all searches", total=len(planned), count=f"0/{len(planned)}")

    def __enter__(self) -> SearchBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def began(self, search: PlannedSearch) -> None:
        """Starts the bar of a search."""
        with self._lock:
            self._bars[search.name] = self._progress.add_task(search.name, total=search.budget_s, count="")

    def evaluated(self, search: PlannedSearch, spent_s: float, best: float | None) -> None:
        """Moves the bar of a search on."""
        count = "" if best is None else f"best {best:.4g}"
        self._progress.update(self._bars[search.name], completed=spent_s, count=count)

    def ended(self, search: PlannedSearch, failure: str | None) -> None:
        """Takes the bar of a search away."""
        with self._lock:
            self._ended += 1
            self._progress.remove_task(self._bars.pop(search.name))
            count = f"{self._ended}/{self._all_searches}"
            self._progress.update(self._all, completed=self._ended, count=count)
            if failure is not None:
                self._console.say(f"{search.name} failed: {failure}", "red")
            elif not self._console.is_terminal and time.monotonic() - self._said > _SECONDS_BETWEEN_LINES:
                self._said = time.monotonic()
                self._console.say(f"{count} searches are complete")
