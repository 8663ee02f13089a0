"""A process that works on a study; it is started by `fedarena.hpo.tune.jobs`, which tells it on its input which one."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from fedarena.core.errors import FedArenaError
from fedarena.hpo.tune.jobs import Telling
from fedarena.hpo.tune.library import quiet_optuna
from fedarena.runs.workers import begin_work


def main() -> None:
    """Works until the study has as many trials as wanted, the time is over, or it is told to stop."""
    observer = Telling(begin_work())
    task = json.loads(sys.stdin.readline())
    deadline = None if task["seconds"] is None else time.monotonic() + task["seconds"]
    from fedarena.hpo.tune.storage import read_study
    from fedarena.hpo.tune.working import Worker

    try:
        plan = read_study(Path(task["folder"]))
        with quiet_optuna():
            Worker(plan.with_trials(task["trials"]), observer, deadline).work()
    except FedArenaError as error:
        observer.tell("problem", sentence=str(error))
        raise SystemExit(error.exit_code) from None
    except (KeyboardInterrupt, BrokenPipeError):  # all is written; nobody wants more, or nobody is there
        raise SystemExit(143) from None


if __name__ == "__main__":
    main()
