"""Several processes that work on one study at once, and what they tell."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.words import some
from fedarena.hpo.tune.observer import Ended, Incumbent, TuneObserver
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.runs.workers import LocalProcess, Worker, shares_of_cores, wait_for


def work_in_processes(plan: TuningPlan, jobs: int, observer: TuneObserver, seconds: float | None) -> None:
    """Has so many processes work until the study has as many trials as wanted. Ctrl-C stops all of them.

    Where a process is killed, another one goes on with its trial.
    """
    check_found_by_others(plan)
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        workers = [_StudyWorker(plan, cores, observer, deadline) for cores in shares_of_cores(jobs)]
        wait_for(workers)
        for worker in workers:
            if worker.problem is not None:
                raise RunFailedError(worker.problem)
        killed = [worker.killed for worker in workers if worker.killed is not None]
        if not killed:
            return
        observer.warned(f"{killed[0]}; another one goes on with its trial")


def check_found_by_others(plan: TuningPlan) -> None:
    """Refuses a study with parts that another process would not find."""
    source = plan.own_source
    if definitions := [*source["unknown"], *(name for name in source["fingerprints"] if ":" in name)]:
        raise BadInputError(
            f"Other processes cannot find {some(definitions)}, which is not in a file that can be imported; "
            "put it into one, or run one trial after the other (jobs=1)"
        )


class _StudyWorker(Worker):
    """Listens to a process that works on a study."""

    def __init__(self, plan: TuningPlan, cores: list[int], observer: TuneObserver, deadline: float | None):
        super().__init__(lambda: LocalProcess("fedarena.hpo.tune.worker", cores))
        self.problem: str | None = None  # why nobody can go on
        self.killed: str | None = None  # how it ended before all was done
        self._plan, self._observer, self._deadline = plan, observer, deadline

    def _work(self) -> None:
        process = self._running_process()
        if process is None:
            return
        seconds = None if self._deadline is None else self._deadline - time.monotonic()
        process.tell({"folder": str(self._plan.folder), "trials": self._plan.options.trials, "seconds": seconds})
        process.end_tasks()
        for event in process.events():
            if event["event"] == "problem":
                self.problem = event["sentence"]
            else:
                tell_of(event, self._observer)
        code = process.wait()
        if code and not self._stopping and self.problem is None:
            self.killed = f"A process was killed by signal {-code}" if code < 0 else f"A process ended with code {code}"


def tell_of(event: dict[str, Any], observer: TuneObserver) -> None:
    """Passes on what another process told."""
    if event["event"] == "warned":
        observer.warned(event["message"])
    elif event["event"] == "began":
        observer.began(event["trial"], event["configuration"], event["rounds"], event["done"])
    elif event["event"] == "round":
        observer.finished_round(event["trial"], event["round"], event["score"])
    elif event["event"] == "ended":
        observer.ended(ended_of(event["ended"]))


def ended_of(values: dict[str, Any]) -> Ended:
    """How a trial ended, as another process told it."""
    best = values["incumbent"]
    return Ended(**{**values, "values": tuple(values["values"]), "incumbent": Incumbent(**best) if best else None})


class Telling(TuneObserver):
    """Tells another process what happens, as lines of JSON."""

    def __init__(self, events: Any):
        self._events = events

    def tell(self, event: str, **about: Any) -> None:
        """Writes a line."""
        print(json.dumps({"event": event, **about}), file=self._events, flush=True)

    def warned(self, message: str) -> None:
        """Passes it on."""
        self.tell("warned", message=message)

    def began(self, trial: int, configuration: Any, rounds: int, done: int) -> None:
        """Passes it on."""
        self.tell("began", trial=trial, configuration=dict(configuration), rounds=rounds, done=done)

    def finished_round(self, trial: int, round: int, score: str | None) -> None:
        """Passes it on."""
        self.tell("round", trial=trial, round=round, score=score)

    def ended(self, ended: Ended) -> None:
        """Passes it on."""
        self.tell("ended", ended=asdict(ended))
