"""A process that makes searches: tasks are lines of JSON on its input, events lines of JSON on its output.

It is started by `fedarena.hpo.searching`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final, TextIO

from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.hpo.opening import open_problem
from fedarena.hpo.problem import Problem
from fedarena.hpo.search import SearchObserver
from fedarena.hpo.searching import REFUSED, PlannedSearch, attempt
from fedarena.hpo.trajectory import Evaluation
from fedarena.runs.workers import begin_work

_SECONDS_BETWEEN_EVENTS: Final = 0.2  # a table answers thousands of times a second


class _Telling(SearchObserver):
    """Tells how far a search is."""

    def __init__(self, events: TextIO):
        self._events, self._told = events, 0.0

    def tell(self, event: str, **about: Any) -> None:
        print(json.dumps({"event": event, **about}), file=self._events, flush=True)

    def evaluated(self, spent_s: float, budget_s: float, incumbent: Evaluation | None) -> None:
        now = time.monotonic()
        if now - self._told >= _SECONDS_BETWEEN_EVENTS:
            self._told = now
            self.tell("evaluated", spent_s=spent_s, best=None if incumbent is None else incumbent.value)


def main() -> None:
    """Makes searches until no more are asked for."""
    observer = _Telling(begin_work())
    opened: dict[str, Problem] = {}  # tables are read once
    try:
        for line in sys.stdin:
            search = PlannedSearch(**json.loads(line))
            try:
                key = json.dumps([search.problem, search.mode, search.problem_options])
                if key not in opened:
                    opened[key] = open_problem(search.problem, search.mode, search.problem_options)
                failure = attempt(search, opened[key], observer)
            except FedArenaError as error:
                failure = error
            if isinstance(failure, BadInputError):
                observer.tell(REFUSED)
            observer.tell("ended", failure=None if failure is None else str(failure))
    except (KeyboardInterrupt, BrokenPipeError):  # all is written; nobody wants more, or nobody is there
        raise SystemExit(143) from None


if __name__ == "__main__":
    main()
