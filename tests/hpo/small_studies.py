"""Studies that take a second, what is in them, and processes that die while they work on one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.hpo.tune.outcome import TunedStudy

RUN = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "rounds": 4,
    "cohort": 4,
    "evaluation.every": 2,
    "engine": "reference",
    "local.steps": 3,
}
RATES = {"local.lr": {"from": 0.001, "to": 20.0, "log": True}}


def tune(folder: Path, **options: Any) -> Any:
    """A study called small, of learning rates unless it is said."""
    given = {"search": RATES, "trials": 4, "name": "small", **options}
    return fedarena.tune(RUN, runs_folder=folder, progress=False, **given)


def content(folder: Path) -> dict[str, Any]:
    """Everything about a study that must not depend on when it was interrupted."""
    tuned = TunedStudy.load(folder)
    names = ("rounds.parquet", "clients.parquet", "config.yaml")
    return {
        "trials": tuned.table().drop_columns(["seconds"]).to_pylist(),
        "curves": [trial.curve for trial in tuned.trials],
        "runs": {
            run: {name: (folder / run / name).read_bytes() for name in names}
            for trial in tuned.trials
            for run in trial.runs
            if trial.state != "failed"
        },
    }


class Fails(FedAvg):
    """A method with a bug, which shows for some of its settings."""

    def __init__(self, *, strength: float = 0.0):
        super().__init__()
        self.strength = strength

    def server_step(self, state, mean_update, round):
        if self.strength > 0.5:
            raise ZeroDivisionError("a bug")
        return super().server_step(state, mean_update, round)


class Dies(FedAvg):
    """Ends its process in the second round, once."""

    def server_step(self, state, mean_update, round):
        trigger = Path(os.environ["FEDARENA_TEST_TRIGGER"])
        if round == 2 and trigger.exists():
            trigger.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().server_step(state, mean_update, round)


def tune_and_die(number: int, folder: Path, options: dict[str, Any]) -> None:
    """Dies immediately before the `number`-th time that a file is made durable or takes its place."""
    countdown = iter(range(number))

    def dying(function):
        def wrapped(*args, **kwargs):
            if next(countdown, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    os.replace, os.fsync = dying(os.replace), dying(os.fsync)
    tune(folder, **options)


def tune_in_process(folder: Path, options: dict[str, Any]) -> None:
    """For processes that work on a study beside others."""
    tune(folder, **options)
