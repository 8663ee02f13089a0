"""A process that does runs of a suite: tasks are lines of JSON on its input, events lines of JSON on its output.

It is started by `fedarena.runs.suite_running` as ``python -m fedarena.runs.suite_worker [[cores], [command]]``.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from fedarena.core.errors import FedArenaError
from fedarena.core.words import some
from fedarena.runs.building import Experiment
from fedarena.runs.built_here import BuiltHere, compared_run
from fedarena.runs.cluster import staying
from fedarena.runs.cluster.probe import fingerprint_of_arithmetic
from fedarena.runs.config import read_settings, resolve
from fedarena.runs.observer import Observer
from fedarena.runs.own_source import own_source
from fedarena.runs.round_text import round_text
from fedarena.runs.run import Run, resume_run
from fedarena.runs.workers import begin_work
from fedarena.simulate import RoundOutcome
from fedarena.storage.run_files import CONFIG_FILE


class _Telling(Observer):
    """Tells the suite how far a run is."""

    def __init__(self, events: TextIO):
        self._events = events

    def tell(self, event: str, **about: Any) -> None:
        print(json.dumps({"event": event, **about}), file=self._events, flush=True)

    def warned(self, message: str) -> None:
        self.tell("warned", message=message)

    def started(self, run: Experiment, folder: Path, rounds_done: int) -> None:
        super().started(run, folder, rounds_done)
        self._metric, self._config = run.simulation.leading_metric, run.config.to_dict()
        self.tell("started", rounds=run.config.rounds, done=rounds_done)

    def finished_round(self, outcome: RoundOutcome) -> None:
        score = round_text(outcome.row, self._metric, self._config)
        self.tell("round", round=outcome.snapshot.round, score=score)


def do_run(task: dict[str, Any], observer: Observer, raised: Callable[[str], None] = lambda trace: None) -> str | None:
    """Does one run; what went wrong, if anything did. `raised` is told tracebacks of somebody's own code.

    With settings it begins; on another machine, if it is not there already.
    """
    folder = Path(task["folder"])
    elsewhere = task.get("elsewhere")
    is_new = "settings" in task and not (elsewhere and (folder / CONFIG_FILE).exists())
    try:
        config = resolve(task["settings"] if is_new else read_settings(folder / CONFIG_FILE))
        if changed := own_source(config).changes_since(task["own_source"]):
            return f"{some(changed)} was changed while the suite was running, so the runs would not be comparable"
        if elsewhere and elsewhere["arithmetic"] != fingerprint_of_arithmetic(elsewhere["device"]):
            observer.warned(
                f"{socket.gethostname()} does not compute the same bits as the machine of the suite, so that the "
                "run differs by rounding from what it would be there"
            )
        if is_new:
            wanted = elsewhere and elsewhere["built"]
            kind = compared_run(BuiltHere(**wanted)) if wanted else Run
            kind.create(config, folder.parent, observer).advance().close()
        else:
            resume_run(folder, observer)
    except FedArenaError as error:
        return str(error)
    except Exception as error:  # a bug in somebody's own method
        raised(traceback.format_exc())
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    """Does what is asked for until nothing is any more."""
    observer = _Telling(begin_work())
    try:
        with staying():
            for line in sys.stdin:
                failure = do_run(json.loads(line), observer, lambda trace: observer.tell("raised", trace=trace))
                observer.tell("ended", failure=failure)
    except (KeyboardInterrupt, BrokenPipeError):  # all is written; nobody wants more, or nobody is there
        raise SystemExit(143) from None


if __name__ == "__main__":
    main()
