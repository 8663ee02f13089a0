"""Weights & Biases and MLflow, read back from what they leave on disk without a network. See `make test-extras`."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest
from tracked_runs import config, content, expected
from typer.testing import CliRunner

import warm_processes
from fedarena.cli import main
from fedarena.display.running import run_with_report
from fedarena.runs.callbacks import Callback
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.storage import recorder
from fedarena.storage.run_data import load_run
from fedarena.track import live
from fedarena.track.wandb_files import history

pytestmark = pytest.mark.extras


class StopAfterFive(Observer):
    def finished_round(self, outcome) -> None:
        if outcome.snapshot.round == 5:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(config(), tmp_path_factory.mktemp("plain")).path


class Slow(Callback):
    """Gives a tracker time to begin before the run is over."""

    def on_round(self, run, row):
        time.sleep(0.4)


def start_or_resume(folder: Path, tracker: str) -> None:
    os.environ.pop("WANDB_SERVICE", None)  # that of the process that this one was forked from
    os.environ["WANDB_MODE"] = "offline"  # which may have started before the test
    recorder._COMMIT_SHARE, live.PAUSE_SECONDS = math.inf, 0.01
    if (folder / "small").exists():
        resume_run(folder / "small")
    else:
        start_run(config(track=tracker, callbacks=f"{__name__}:Slow"), folder)


def kill_in_the_middle(folder: Path, tracker: str) -> None:
    """Starts a run in another process, and kills that when the tracker has some of its rounds."""
    process = warm_processes.CONTEXT.Process(target=start_or_resume, args=(folder, tracker))
    process.start()
    path, handed = folder / "small" / "tracking.json", -1
    while process.is_alive() and handed < 2:
        time.sleep(0.01)
        if path.exists():
            handed = json.loads(path.read_text())["trackers"][0]["round"]
    assert 2 <= handed < 12
    process.kill()
    process.join()
    assert not (folder / "small" / "summary.json").exists()


# --- W&B --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))


def logged(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What lies in W&B's files of a run, in the order of their making."""
    return [step for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for step in history(path)]


def check_wandb(folder: Path) -> None:
    steps = logged(folder)
    assert [step for step, _ in steps] == list(range(13))
    for name, values in expected(folder).items():
        assert {step: row[name] for step, row in steps if name in row} == pytest.approx(values), name


def test_wandb_offline_has_the_values_of_the_table(tmp_path: Path, plain: Path, offline: None) -> None:
    hooks = sys.exit, sys.excepthook
    folder = run_with_report(config(track={"name": "wandb", "project": "mine"}), tmp_path, progress=False).path
    assert (sys.exit, sys.excepthook) == hooks
    check_wandb(folder)
    assert content(folder) == content(plain)
    written = b"".join(path.read_bytes() for path in folder.glob("wandb/offline-run-*/*.wandb"))
    for word in (b"mine", b"algorithm:fedavg", b"logistic_regression", b"report.html"):
        assert word in written, word


def test_a_resumed_run_is_the_same_run_of_wandb(tmp_path: Path, plain: Path, offline: None) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(track="wandb"), tmp_path, StopAfterFive())
    folder = resume_run(tmp_path / "small").path
    check_wandb(folder)
    assert content(folder) == content(plain)
    assert len({path.name for path in folder.glob("wandb/offline-run-*/*.wandb")}) == 1, "they have the same id"
    assert not any("The tracker" in line for line in (folder / "log.txt").read_text().splitlines())


def test_a_killed_run_goes_on_in_the_same_run_of_wandb(tmp_path: Path, offline: None) -> None:
    kill_in_the_middle(tmp_path, "wandb")
    check_wandb(resume_run(tmp_path / "small").path)


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


def the_run(client):
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return run


def check_mlflow(client, folder: Path) -> None:
    run = the_run(client)
    for name, values in expected(folder).items():
        shown = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert shown == list(values.items()), name


def test_mlflow_has_the_values_of_the_table(tmp_path: Path, plain: Path, client) -> None:
    folder = run_with_report(config(track="mlflow"), tmp_path, progress=False).path
    check_mlflow(client, folder)
    run = the_run(client)
    assert content(folder) == content(plain)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "small")
    assert run.data.params["algorithm.name"] == "fedavg"
    assert run.data.tags["federation"] == "digits"
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_a_resumed_run_is_the_same_run_of_mlflow(tmp_path: Path, plain: Path, client) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(track="mlflow"), tmp_path, StopAfterFive())
    assert the_run(client).info.status == "KILLED"
    folder = resume_run(tmp_path / "small").path
    check_mlflow(client, folder)
    assert content(folder) == content(plain)
    assert the_run(client).info.status == "FINISHED"


def test_a_killed_run_goes_on_in_the_same_run_of_mlflow(tmp_path: Path, client) -> None:
    kill_in_the_middle(tmp_path, "mlflow")
    check_mlflow(client, resume_run(tmp_path / "small").path)


def test_old_runs_can_be_exported_to_mlflow_once(tmp_path: Path, client) -> None:
    start_run(config(), tmp_path)
    for said in ("13 rounds", "nothing new"):
        result = CliRunner().invoke(main, ["export", str(tmp_path), "--to", "mlflow"])
        assert result.exit_code == 0, result.output
        assert said in result.output
    check_mlflow(client, load_run(tmp_path / "small").path)
