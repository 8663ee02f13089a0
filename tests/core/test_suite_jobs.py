"""Several runs of a suite at once: the same results, and no run stops another."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_runs import content
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.console import Screen
from fedarena.core.errors import BadInputError
from fedarena.display.suite_progress import SuiteBars
from fedarena.runs.observer import Observer, SuiteObserver
from fedarena.runs.suite import make_suite
from fedarena.runs.suite_plan import begin_suite, expected_seconds, plan_suite
from fedarena.runs.suite_running import run_at_once, run_one_by_one
from fedarena.runs.suite_worker import do_run
from fedarena.runs.workers import shares_of_cores

BASE = {
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "rounds": 3,
}
OWN = """
import os
from fedarena.algorithms import FedAvg

class Dies(FedAvg):
    def server_step(self, state, mean_update, round):
        os._exit(7)

class Fails(FedAvg):
    def server_step(self, state, mean_update, round):
        print("printed by somebody's own method")
        raise ZeroDivisionError("a bug")
"""


class Seen(SuiteObserver):
    def __init__(self) -> None:
        self.events: list[tuple] = []

    def began(self, name: str, rounds: int, done: int) -> None:
        self.events.append(("began", name, rounds, done))

    def finished_round(self, name: str, round: int, score: str | None) -> None:
        self.events.append(("round", name, round))

    def ended(self, name: str, failure: str | None) -> None:
        self.events.append(("ended", name, failure))


def planned(folder: Path, **content_):
    return plan_suite(make_suite({"name": "few", "base": BASE, **content_}, {}), folder)


@pytest.mark.slow
def test_at_once_and_one_by_one_give_the_same_bits(tmp_path: Path) -> None:
    matrix = {"algorithm": ["fedavg", "scaffold"]}
    one = begin_suite(planned(tmp_path / "one", matrix=matrix), Observer())
    assert run_one_by_one(one, Observer(), lambda label: None) == []
    seen = Seen()
    several = begin_suite(planned(tmp_path / "several", matrix=matrix), Observer())
    assert run_at_once(several, 2, seen) == []
    for a, b in zip(one, several, strict=True):
        assert content(a.folder) == content(b.folder)
    assert {event for event in seen.events if event[0] != "round"} == {
        *(("began", run.name, 3, 0) for run in one),
        *(("ended", run.name, None) for run in one),
    }
    assert [event[2] for event in seen.events if event[:2] == ("round", "scaffold-seed0")] == [0, 1, 2, 3]
    again = begin_suite(planned(tmp_path / "several", matrix=matrix), Observer())
    assert [run.state for run in again] == ["finished"] * 2
    assert run_at_once(again, 2, SuiteObserver()) == []


@pytest.mark.slow
def test_a_run_that_fails_or_dies_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own_dying.py").write_text(OWN)
    (tmp_path / "bad.yaml").write_text(
        "base: {federation: digits, model: logistic_regression, rounds: 2, evaluation: {max_clients: 5}}\n"
        "matrix: {algorithm: [own_dying:Dies, own_dying:Fails, fedavg]}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "elsewhere")])  # which the other processes find, too
    call = CliRunner().invoke(main, ["suite", "bad.yaml", "--jobs", "2"])
    sys.modules.pop("own_dying")
    assert call.exit_code == 1, call.output
    assert "Failed: own_dying_Dies-seed0: its process was killed, with exit code 7" in call.output
    assert "Failed: own_dying_Fails-seed0: ZeroDivisionError: a bug" in call.output
    assert "own_dying.py" in call.output  # of the traceback
    assert fedarena.load(tmp_path / "runs" / "bad" / "fedavg-seed0").status == "finished"


@pytest.mark.slow
def test_ctrl_c_stops_all_and_loses_nothing(tmp_path: Path, interruptible: None) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("base: {federation: digits, model: logistic_regression, rounds: 100000}\nseeds: [0, 1]\n")
    command = [sys.executable, "-m", "fedarena", "suite", str(path), "--jobs", "2", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    folders = [tmp_path / "long" / f"seed{seed}" for seed in (0, 1)]
    deadline = time.monotonic() + 100
    while not all((folder / "checkpoint" / "state.json").exists() for folder in folders):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on" in errors
    for folder in folders:
        result = fedarena.load(folder)
        assert result.status == "interrupted"
        assert result.summary["message"] == "stopped by the user"


def test_other_processes_do_not_know_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedarena.algorithms import FedAvg

    class Typed(FedAvg):
        def client_weight(self, work):
            return 1.0

    Typed.__module__, Typed.__qualname__ = "__main__", "Typed"
    monkeypatch.setattr(sys.modules["__main__"], "Typed", Typed, raising=False)
    with pytest.raises(BadInputError, match="Other processes cannot find __main__:Typed"):
        fedarena.suite(base=BASE, matrix={"algorithm": [Typed]}, jobs=2, runs_folder=tmp_path)
    assert not (tmp_path / "suite").exists()


@pytest.mark.parametrize("live", [False, True])
def test_bars_of_several_runs(live: bool) -> None:
    shown = io.StringIO()
    with SuiteBars(Screen(file=shown, force_terminal=live, width=200), runs=3) as bars:
        bars.began("one", 3, 0)
        bars.began("two", 1, 0)
        bars.finished_round("one", 1, "accuracy 0.5")
        bars.warned("two", "something")
        bars.ended("two", "it broke")
        bars.ended("one", None)
        bars.ended("three, which never began", "its process was killed")
    for text in ("all runs", "3/3") if live else ("two: 1 round, 0 done", "one: round 1 of 3, accuracy 0.5"):
        assert text in shown.getvalue()
    for text in ("Warning: two: something", "two: failed", "one: done"):
        assert text in shown.getvalue()


def test_a_file_that_changes_while_a_suite_runs_is_noticed(tmp_path: Path) -> None:
    (run,) = begin_suite(planned(tmp_path), Observer())
    recorded = {"files": {"mine": "/somewhere/mine.py"}, "fingerprints": {"mine": "0" * 16}, "unknown": []}
    task = {"folder": str(run.folder), "settings": run.config.to_dict(), "own_source": recorded}
    assert str(do_run(task, Observer())).startswith("/somewhere/mine.py was changed while the suite was running")
    assert not run.folder.exists()
    task["own_source"] = {"files": {}, "fingerprints": {}, "unknown": []}
    assert do_run(task, Observer()) is None
    assert fedarena.load(run.folder).status == "finished"


def test_every_worker_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert shares_of_cores(2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shares_of_cores(3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert sorted(core for share in shares_of_cores(16) for core in share) == sorted([*range(8)] * 2)


def test_a_dry_run_writes_nothing_and_tells_how_long(tmp_path: Path) -> None:
    path = tmp_path / "dry.yaml"
    path.write_text("base: {federation: digits, model: logistic_regression, rounds: 2}\nseeds: [0, 1, 2]\n")
    call = CliRunner().invoke(main, ["suite", str(path), "--dry-run", "--runs", str(tmp_path)])
    assert call.exit_code == 0, call.output
    assert "3 runs to do; how long that takes is known when" in call.output
    assert not (tmp_path / "dry").exists()
    CliRunner().invoke(main, ["suite", str(path), "seeds=[0]", "--runs", str(tmp_path)])
    call = CliRunner().invoke(main, ["suite", str(path), "--dry-run", "--runs", str(tmp_path)])
    assert "seed0  is kept  2 rounds" in call.output
    assert "2 runs to do; by the rounds that are done, that takes about" in call.output


def test_time_is_expected_by_the_rounds_that_are_done(tmp_path: Path) -> None:
    runs = planned(tmp_path, seeds=[0, 1])
    run_one_by_one(begin_suite(runs[:1], Observer()), Observer(), lambda label: None)
    timings = fedarena.load(runs[0].folder).timings
    seconds = sum(sum(timings[name].to_pylist()) for name in ("train_seconds", "evaluate_seconds"))
    now = planned(tmp_path, seeds=[0, 1])
    assert [run.state for run in now] == ["finished", "new"]
    assert expected_seconds(now, now[1:]) == pytest.approx(seconds)
