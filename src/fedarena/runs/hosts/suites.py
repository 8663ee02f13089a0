"""The runs of a suite on a cluster: each on one machine, as it would be on this one."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fedarena.core.errors import FedArenaError
from fedarena.runs.cluster.probe import fingerprint_of_arithmetic
from fedarena.runs.cluster.troubles import MOST_LOST, one_line
from fedarena.runs.hosts.carrying import folders_there
from fedarena.runs.hosts.hosting import Hosts
from fedarena.runs.hosts.remote import HostLostError, RemoteProcess
from fedarena.runs.observer import SuiteObserver
from fedarena.runs.own_source import own_source
from fedarena.runs.suite_plan import PlannedRun
from fedarena.runs.suite_running import MODULE, SuiteWorker, cannot_go_on, work_off


def run_on_cluster(planned: Sequence[PlannedRun], address: str, jobs: int | None, observer: SuiteObserver) -> list[str]:
    """Runs what is left on the machines of a cluster; a sentence for every run that failed or could not go on.

    Ctrl-C stops all of them after their current round is on disk, and brings what is done here.
    """
    failures = cannot_go_on(planned)
    to_run = [run for run in planned if run.is_to_run]
    if not to_run:
        return failures
    device = _device_of(to_run)
    waiting: queue.SimpleQueue[PlannedRun] = queue.SimpleQueue()
    for run in to_run:
        waiting.put(run)
    wanted = min(jobs or len(to_run), len(to_run))
    with Hosts(address, wanted, planned[0].folder.parent, device.startswith("cuda")) as hosts:
        processes = hosts.processes(MODULE)
        workers = [_HostedWorker(hosts, process, waiting, observer, device) for process in processes]
        return failures + work_off(workers, planned, observer)


def _device_of(runs: Sequence[PlannedRun]) -> str:
    """Where the runs train: as new ones were built here, or where those that were begun would go on here."""
    built = [run.built_here.device for run in runs if run.built_here is not None]
    wanted = str(runs[0].config.engine.get("device"))
    if built or wanted != "auto":
        return built[0] if built else wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


class _HostedWorker(SuiteWorker):
    """Has a process on some machine do run after run; where the machine is lost, one on another."""

    def __init__(
        self,
        hosts: Hosts,
        first: RemoteProcess,
        waiting: queue.SimpleQueue[PlannedRun],
        observer: SuiteObserver,
        device: str,
    ):
        super().__init__(_first_then(first, lambda: RemoteProcess(hosts, MODULE)), waiting, observer)
        self._elsewhere = {"arithmetic": fingerprint_of_arithmetic(device), "device": device}
        self._there = Path()  # where the process finds the run

    def _work(self) -> None:
        try:
            super()._work()
        finally:
            if isinstance(self._process, RemoteProcess):
                self._process.end()

    def _task(self, item: PlannedRun) -> dict[str, Any]:
        built = None if item.built_here is None else asdict(item.built_here)
        return {
            "folder": str(self._there),
            "own_source": own_source(item.config).to_json(),
            "settings": item.config.to_dict(),
            "elsewhere": {**self._elsewhere, "built": built},
        }

    def _do(self, item: PlannedRun) -> str | None:
        lost = 0
        while not self._stopping:
            try:
                return self._attempt(item)
            except HostLostError as error:
                lost += 1
                if lost >= MOST_LOST:
                    return f"{error}; it was lost {MOST_LOST} times, probably for lack of memory there"
                self._observer.warned(item.name, f"{error}; it goes on elsewhere")
            except FedArenaError as error:
                return str(error)
            except Exception as error:  # of Ray; no other run need fail for it
                return one_line(error)
        return None

    def _attempt(self, item: PlannedRun) -> str | None:
        process = self._running_process()
        assert isinstance(process, RemoteProcess)
        if not process.settle():
            return None
        with folders_there(process, [item.folder]) as (self._there,):
            failure = super()._do(item)
        code = process.poll()
        if code is not None:
            process.end()
        if code is not None and code < 0 and not self._stopping:
            raise HostLostError(f"Its process on {process.node} was killed by signal {-code}")
        return None if failure is None else f"{failure} (on {process.node})"


def _first_then(first: RemoteProcess, others: Callable[[], RemoteProcess]) -> Callable[[], RemoteProcess]:
    """Gives one that is there, and then others."""
    there = [first]
    return lambda: there.pop() if there else others()
