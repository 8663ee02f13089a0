"""Trials on the machines of a cluster: what is proposed, judged and pruned is decided here, and played there.

So the study and its locks stay on this machine, whether or not others see its folder.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from fedarena.core.errors import BadInputError, FedArenaError, RunFailedError
from fedarena.hpo.space import Configuration
from fedarena.hpo.tune.jobs import check_found_by_others, tell_of
from fedarena.hpo.tune.observer import TuneObserver
from fedarena.hpo.tune.plan import TuningPlan
from fedarena.hpo.tune.storage import STUDY_FILE
from fedarena.hpo.tune.trial import Judged, TrialFailedError
from fedarena.hpo.tune.working import Worker
from fedarena.runs.building import prepare
from fedarena.runs.built_here import BuiltHere
from fedarena.runs.cluster.troubles import MOST_LOST
from fedarena.runs.config import resolve
from fedarena.runs.hosts.carrying import folders_there
from fedarena.runs.hosts.hosting import Hosts, check_trains_alone
from fedarena.runs.hosts.remote import HostLostError, RemoteProcess
from fedarena.runs.observer import Observer

_MODULE = "fedarena.hpo.tune.trial_worker"
_DATA = ("federation", "fleet", "model", "engine")  # settings on which it depends what is compared


def work_on_cluster(plan: TuningPlan, address: str, observer: TuneObserver, seconds: float | None) -> None:
    """Has machines of a cluster play trials until the study has as many as wanted. Ctrl-C stops all of them."""
    check_found_by_others(plan)
    with suppress(BadInputError):  # it may be complete with what is searched alone
        check_trains_alone([resolve(plan.run_settings({}))])
    deadline = None if seconds is None else time.monotonic() + seconds
    with Hosts(address, plan.options.jobs, plan.folder, _wants_gpu(plan)) as hosts:
        seats = [_Seat(hosts, process, plan, observer, deadline) for process in hosts.processes(_MODULE)]
        for seat in seats:
            threading.Thread(target=seat.work, daemon=True).start()
        try:
            for seat in seats:
                seat.done.wait()
        except BaseException:
            for seat in seats:
                seat.stop()
            for seat in seats:
                seat.done.wait()
            raise
        for seat in seats:
            if seat.problem is not None:
                raise seat.problem


def _wants_gpu(plan: TuningPlan) -> bool:
    engine = plan.run_settings({}).get("engine")
    device = engine.get("device", "auto") if isinstance(engine, dict) else "auto"
    if device == "auto":
        import torch

        return torch.cuda.is_available()
    return str(device).startswith("cuda")


class _Seat:
    """Works on trial after trial, with a process on some machine."""

    def __init__(
        self, hosts: Hosts, first: RemoteProcess, plan: TuningPlan, observer: TuneObserver, deadline: float | None
    ):
        self.done = threading.Event()
        self.problem: Exception | None = None
        self.stopping = False
        self.observer = observer
        self._hosts, self._process = hosts, first
        self._plan, self._deadline = plan, deadline
        self._known: dict[str, BuiltHere] = {}

    def work(self) -> None:
        """Until the study has as many trials as wanted."""
        try:
            Worker(self._plan, self.observer, self._deadline, lambda *about: _HostedTrialRuns(self, *about)).work()
        except KeyboardInterrupt:  # ours, by which a trial was stopped
            pass
        except Exception as error:
            self.problem = error
        finally:
            self._process.end()
            self.done.set()

    def stop(self) -> None:
        """Has the process end after it has written what is done."""
        self.stopping = True
        self._process.stop()

    def process(self) -> RemoteProcess:
        """One that is at work; another one, if the last one is lost."""
        if self._process.poll() is not None:
            self._process = RemoteProcess(self._hosts, _MODULE)
        if self.stopping or not self._process.settle():
            raise KeyboardInterrupt
        return self._process

    def built_here(self, number: int, configuration: Configuration) -> BuiltHere:
        """What a trial's run comes to here."""
        try:
            config = self._plan.trial_config(number, configuration, self._plan.seeds[0])
            key = json.dumps([getattr(config, part) for part in _DATA], sort_keys=True)
            if key not in self._known:
                self._known[key] = BuiltHere.of(prepare(config, Observer()))
        except BadInputError as error:  # hyperparameters that do not fit each other
            raise TrialFailedError(str(error)) from error
        return self._known[key]


class _HostedTrialRuns:
    """The runs of a trial on another machine; where that is lost, they are played again on another one."""

    def __init__(
        self, seat: _Seat, plan: TuningPlan, number: int, configuration: Configuration, observer: TuneObserver
    ):
        self._seat, self._plan, self._observer = seat, plan, observer
        self._number, self._configuration = number, configuration
        self._built = seat.built_here(number, configuration)
        self._place: ExitStack | None = None  # while the runs are on a machine
        self._stage = self._lost = 0
        self._reached: dict[str, Any] = {"rounds": 0, "is_over": False, "value": None}
        self._every = self._last = 1
        self._ask(None)

    @property
    def rounds(self) -> int:
        return int(self._reached["rounds"])

    @property
    def is_over(self) -> bool:
        return bool(self._reached["is_over"])

    def stage_after(self, round: int) -> int:
        return min((round // self._every + 1) * self._every, self._last)

    def advance_to(self, stage: int) -> None:
        self._reached = self._ask({"do": "advance", "stage": stage})
        self._stage = stage

    def value(self, stage: int) -> float | None:
        value: float | None = self._reached["value"]
        return value

    def judged(self) -> Judged:
        found = self._ask({"do": "judge"})
        return Judged(tuple(found["values"]), tuple(found["excesses"]), found["rounds"])

    def close(self, reason: str) -> None:
        if self._place is None:
            return
        if self._seat.stopping:  # then its process has closed them
            with suppress(HostLostError, FedArenaError):
                self._leave()
            return
        self._ask({"do": "close", "reason": reason}, then_leave=True)

    def _ask(self, task: dict[str, Any] | None, then_leave: bool = False) -> dict[str, Any]:
        """What the process answers; all that it had done is done again where it is lost."""
        while True:
            try:
                if self._place is None:
                    self._begin()
                answer = {} if task is None else self._exchange(self._seat.process(), task)
                if then_leave:
                    self._leave()
                return answer
            except HostLostError as error:
                self._place = None
                self._lost += 1
                if self._lost >= MOST_LOST:
                    raise TrialFailedError(f"{error}; it was lost {MOST_LOST} times") from None
                self._observer.warned(f"Trial {self._number}: {error}; it goes on elsewhere")
            except TrialFailedError:
                with suppress(HostLostError):
                    self._leave()
                raise

    def _begin(self) -> None:
        process = self._seat.process()
        folders = [self._plan.folder / self._plan.run_name(self._number, seed) for seed in self._plan.seeds]
        place = ExitStack()
        there = place.enter_context(folders_there(process, folders))
        self._place = place
        study = None if process.sees_folder else (self._plan.folder / STUDY_FILE).read_text(encoding="utf-8")
        about = {"number": self._number, "configuration": self._configuration, "built": asdict(self._built)}
        begin = {"do": "begin", "folder": str(there[0].parent), "study": study, **about}
        found = self._exchange(process, begin)
        self._every, self._last = found["every"], found["last"]
        if self._stage:
            self._exchange(process, {"do": "advance", "stage": self._stage})

    def _leave(self) -> None:
        """Brings here what is there."""
        place, self._place = self._place, None
        if place is not None:
            place.close()

    def _exchange(self, process: RemoteProcess, task: dict[str, Any]) -> dict[str, Any]:
        process.tell(task)
        for event in process.events():
            if event["event"] != "answer":
                tell_of(event, self._observer)
            elif "failed" in event:
                raise TrialFailedError(event["failed"])
            elif "problem" in event:
                kind = BadInputError if event["is_bad_input"] else RunFailedError
                raise kind(f"{event['problem']} (on {process.node})")
            else:
                return event
        if self._seat.stopping:
            raise KeyboardInterrupt
        with suppress(HostLostError, FedArenaError):
            self._leave()
        process.end()
        raise HostLostError(f"Its process on {process.node} has ended")
