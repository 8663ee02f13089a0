"""Runs that can be killed and gone on with: what they keep, and processes that die at a chosen moment."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

from small_runs import SMALL

from fedarena.algorithms import FedAvg
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate.client_states import log as state_log
from fedarena.storage import checkpoint, recorder


class VisitCounter(FedAvg):
    """An algorithm whose clients remember something, so that memories are checkpointed, too."""

    def client_init(self, broadcast):
        return {"drift": {name: 0 * p for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad, params, client):
        return {name: g - 0.1 * client.state["drift"][name] for name, g in grad.items()}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        return update, {"drift": update["params"]}


# ClientStates of which two fit into RAM, so that most are read back from disk; the log is soon mostly outdated.
WITH_MEMORY = SMALL | {"algorithm": f"{__name__}:VisitCounter", "cohort": 15, "client_states_ram_bytes": 2 * 2600}


def start_or_resume(settings: dict[str, Any], folder: Path, commit_share: float | None = None) -> None:
    state_log.COMPACT_ABOVE_BYTES = 1000
    if commit_share is not None:
        recorder._COMMIT_SHARE = commit_share
    if (folder / "small").exists():
        resume_run(folder / "small")
    else:
        start_run(resolve(merge({}, settings)), folder)


def compacted(folder: Path) -> bool:
    return checkpoint.read_state(folder).client_states.file != "client_states-0.log"


def kill_self_before(number: int, settings: dict[str, Any], folder: Path) -> None:
    """Dies immediately before the `number`-th time that a file is made durable or takes its place."""
    countdown = iter(range(number))

    def dying(function):
        def wrapped(*args, **kwargs):
            if next(countdown, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapped

    os.replace, os.fsync, Path.unlink = dying(os.replace), dying(os.fsync), dying(Path.unlink)
    start_or_resume(settings, folder, commit_share=math.inf)
