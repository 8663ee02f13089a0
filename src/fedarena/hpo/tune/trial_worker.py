"""A process on a machine of a cluster that plays the runs of trials; it is told what to do by `hosted`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError, FedArenaError
from fedarena.core.files import write_text
from fedarena.core.words import some
from fedarena.hpo.tune.jobs import Telling
from fedarena.hpo.tune.observer import TuneObserver
from fedarena.hpo.tune.storage import STUDY_FILE, read_study
from fedarena.hpo.tune.trial import TrialFailedError, TrialRuns
from fedarena.runs.built_here import BuiltHere, compared_run
from fedarena.runs.config import resolve
from fedarena.runs.own_source import own_source
from fedarena.runs.workers import begin_work


class _Playing:
    """The trial that is at work."""

    def __init__(self, observer: TuneObserver):
        self._observer = observer
        self._runs: TrialRuns | None = None
        self._judges_stages = False

    def do(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """What came of a task."""
        if task["do"] == "begin":
            return self._begin(task)
        assert self._runs is not None
        if task["do"] == "advance":
            self._runs.advance_to(task["stage"])
            value = self._runs.value(task["stage"]) if self._judges_stages else None
            return {"rounds": self._runs.rounds, "is_over": self._runs.is_over, "value": value}
        if task["do"] == "judge":
            return asdict(self._runs.judged())
        self.close(task["reason"])
        return {}

    def _begin(self, task: Mapping[str, Any]) -> dict[str, Any]:
        folder = Path(task["folder"])
        if task["study"] is not None:
            write_text(folder / STUDY_FILE, task["study"])
        plan = read_study(folder)
        config = resolve(plan.run_settings(task["configuration"]))
        if changed := own_source(config).changes_since(plan.own_source):
            raise BadInputError(f"{some(changed)} is not the same there; copy it from the machine of the search")
        self._judges_stages = not plan.options.several
        kind = compared_run(BuiltHere(**task["built"]))
        self._runs = TrialRuns(plan, task["number"], task["configuration"], self._observer, kind)
        return {"every": self._runs.every, "last": self._runs.last}

    def close(self, reason: str) -> None:
        """Lets go of the runs."""
        if self._runs is not None:
            self._runs.close(reason)
            self._runs = None


def main() -> None:
    """Does what is asked for until nothing is any more."""
    observer = Telling(begin_work())
    playing = _Playing(observer)
    try:
        for line in sys.stdin:
            try:
                answer = playing.do(json.loads(line))
            except TrialFailedError as error:
                answer = {"failed": str(error)}
            except FedArenaError as error:
                answer = {"problem": str(error), "is_bad_input": isinstance(error, BadInputError)}
            observer.tell("answer", **answer)
        playing.close("closed")
    except (KeyboardInterrupt, BrokenPipeError):  # all is written; nobody wants more, or nobody is there
        playing.close("stopped by the user")
        raise SystemExit(143) from None


if __name__ == "__main__":
    main()
