"""Whole runs on a Ray cluster: the runs that they would be here, wherever they lie and whoever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_clusters import MANY_SHARDS, Silent, bits

import fedarena
from fedarena.runs.hosts.suites import run_on_cluster
from fedarena.runs.observer import Observer, SuiteObserver
from fedarena.runs.run import Run
from fedarena.runs.suite import make_suite
from fedarena.runs.suite_plan import PlannedRun, begin_suite, plan_suite
from fedarena.runs.suite_running import run_one_by_one
from ray_clusters import pretend_folders_are_not_shared, small_cluster

pytest.importorskip("ray")
os.environ["RAY_AUTH_MODE"] = "disabled"
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]

BASE = {key: value for key, value in MANY_SHARDS.items() if key != "seed"}


class Seen(SuiteObserver):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.traces: list[str] = []

    def warned(self, name: str, message: str) -> None:
        self.warnings.append(message)

    def raised(self, name: str, trace: str) -> None:
        self.traces.append(trace)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One on this machine; gives the folder of files that make a method kill its process."""
    with small_cluster(tmp_path_factory.mktemp("trigger")) as trigger:
        yield trigger


@pytest.fixture(params=[True, False], ids=["shared", "brought"])
def shared(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether machines see the folder of the runs."""
    if not request.param:
        pretend_folders_are_not_shared(monkeypatch)
    return bool(request.param)


def planned(folder: Path, *algorithms: str, **more: Any) -> list[PlannedRun]:
    content = {"name": "few", "base": BASE | more, "matrix": {"algorithm": list(algorithms)}}
    return plan_suite(make_suite(content, {}), folder)


def on_cluster(runs: list[PlannedRun], seen: SuiteObserver, jobs: int | None = 2) -> list[str]:
    return run_on_cluster(begin_suite(runs, Observer()), "auto", jobs, seen)


def test_same_bits_as_here(cluster: Path, shared: bool, tmp_path: Path) -> None:
    here = begin_suite(planned(tmp_path / "here", "fedavg", "scaffold"), Observer())
    assert run_one_by_one(here, Silent(), lambda label: None) == []
    there = planned(tmp_path / "there", "fedavg", "scaffold")
    run = Run.create(there[1].config, there[1].folder.parent, Silent())  # one that was begun goes on
    run.advance(1)
    run.close()
    seen = Seen()
    assert on_cluster(planned(tmp_path / "there", "fedavg", "scaffold"), seen) == []
    assert seen.warnings == []
    for a, b in zip(here, there, strict=True):
        assert bits(a.folder) == bits(b.folder)
    assert {one.name for one in (tmp_path / "there" / "few").iterdir()} == {"suite.json", *(run.name for run in here)}
    assert [run.state for run in planned(tmp_path / "there", "fedavg", "scaffold")] == ["finished"] * 2


def test_a_mistake_of_ones_own_is_told_at_once(cluster: Path, shared: bool, tmp_path: Path) -> None:
    seen = Seen()
    (failure,) = on_cluster(planned(tmp_path, "own_methods:RaisesThere"), seen)
    assert "ValueError: a mistake of my own (on " in failure
    assert seen.warnings == []
    assert "own_methods.py" in seen.traces[0]
    assert fedarena.load(tmp_path / "few" / "own_methods_RaisesThere-seed0").rounds.num_rows == 2  # those before it


def test_a_process_that_is_killed(cluster: Path, shared: bool, tmp_path: Path) -> None:
    """The run goes on, or begins again where nobody sees its folder."""
    (cluster / "kill-1").touch()
    seen = Seen()
    killed = planned(tmp_path / "killed", "own_methods:KillsItsProcess")
    assert on_cluster(killed, seen) == []
    assert [warning.endswith("was killed by signal 9; it goes on elsewhere") for warning in seen.warnings] == [True]
    here = planned(tmp_path / "here", "own_methods:KillsItsProcess")
    assert run_one_by_one(begin_suite(here, Observer()), Silent(), lambda label: None) == []
    assert bits(killed[0].folder) == bits(here[0].folder)


def test_a_run_that_kills_all_its_processes(cluster: Path, tmp_path: Path) -> None:
    """It stops, but no other one does."""
    for number in (1, 2, 3):
        (cluster / f"kill-{number}").touch()
    (failure,) = on_cluster(planned(tmp_path, "own_methods:KillsItsProcess", "fedavg"), Seen())
    assert failure.startswith("own_methods_KillsItsProcess-seed0: Its process on ")
    assert "was killed by signal 9; it was lost 3 times" in failure


def test_a_host_that_is_lost(cluster: Path, shared: bool, tmp_path: Path) -> None:
    class KillsHosts(Seen):
        def finished_round(self, name: str, round: int, score: str | None) -> None:
            if round == 1 and not self.warnings:
                for pid in _hosts():
                    os.kill(pid, signal.SIGKILL)

    seen = KillsHosts()
    runs = planned(tmp_path / "lost", "scaffold", rounds=30)
    assert on_cluster(runs, seen) == []
    assert [warning.endswith("it goes on elsewhere") for warning in seen.warnings] == [True]
    here = planned(tmp_path / "here", "scaffold", rounds=30)
    assert run_one_by_one(begin_suite(here, Observer()), Silent(), lambda label: None) == []
    assert bits(runs[0].folder) == bits(here[0].folder)


def _hosts() -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"ray::Host") and entry.stat().st_uid == os.getuid():
                found.append(int(entry.name))
    return found


def test_ctrl_c_stops_all_and_loses_nothing(cluster: Path, shared: bool, tmp_path: Path, interruptible: None) -> None:
    import ray

    (tmp_path / "long.yaml").write_text(
        "base: {federation: digits, model: logistic_regression, rounds: 100000, evaluation: {every: 1}}\n"
        "seeds: [0, 1]\n"
    )
    program = "from fedarena.cli import main; main()"
    if not shared:
        alone = "from fedarena.core.signs import Sign; Sign.offer = lambda self: {'folder': '/', 'sign': 'none'}"
        program = f"{alone}; {program}"
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", program, "suite", "long.yaml", "--cluster", address, "--runs", "."]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    try:
        begun = 0
        deadline = time.monotonic() + 100
        while begun < 2:
            assert time.monotonic() < deadline
            begun += "round 1 of" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "The same command goes on" in errors
    for seed in (0, 1):
        assert fedarena.load(tmp_path / "long" / f"seed{seed}").summary["message"] == "stopped by the user"
