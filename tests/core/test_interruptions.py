"""Everything that can stop a run: Ctrl-C, divergence, the disk, damage. Nothing may be lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from killable_runs import VisitCounter, kill_self_before
from small_runs import SMALL, StopAfter, config, content, forge, interrupt

import warm_processes
from fedarena.algorithms import FedAvg
from fedarena.core import files
from fedarena.core.errors import BadInputError, DamagedFileError, DivergedError, RunFailedError
from fedarena.core.interrupts import deferring_interrupts
from fedarena.core.sealed_json import seal_json
from fedarena.runs.merging import merge
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.storage import checkpoint, tables
from fedarena.storage.growing_tables import GrowingTables
from fedarena.storage.run_data import load_run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is in the folder of a run that nothing stopped."""
    return content(start_run(config(), tmp_path_factory.mktemp("uninterrupted")).path)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stopped_run(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A run that was interrupted after its eleventh round."""
    return shutil.copytree(stopped_once, tmp_path / "small")


# --- stopping in other ways -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("interruptible")
def test_a_run_that_is_stopped_while_it_is_made_can_go_on(
    tmp_path: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path] = []

    class Listening(Observer):
        def stopped(self, folder: Path) -> None:
            told.append(folder)

    begin = GrowingTables.begin

    def begin_and_interrupt(tables: GrowingTables) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        begin(tables)

    with monkeypatch.context() as patch:
        patch.setattr(GrowingTables, "begin", begin_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            start_run(config(), tmp_path, Listening())
    assert told == [tmp_path / "small"]
    assert content(resume_run(tmp_path / "small").path) == uninterrupted


def test_an_interrupted_run_saves_its_last_round_and_goes_on(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(), tmp_path, StopAfter(17, interrupt))
    stopped = load_run(tmp_path / "small")
    assert stopped.status == "interrupted"
    assert stopped.summary["rounds_done"] == 17
    assert stopped.rounds["round"].to_pylist() == list(range(18))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == uninterrupted


def test_a_run_that_stopped_before_its_first_round_can_be_resumed(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    class StopAtStart(Observer):
        def started(self, run, folder, rounds_done) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_run(config(), tmp_path, StopAtStart())
    with pytest.raises(BadInputError, match="has no finished round yet"):
        load_run(tmp_path / "small")
    assert resume_run(tmp_path / "small").status == "finished"
    assert content(tmp_path / "small") == uninterrupted


class Awkward(FedAvg):
    """Depends on the order of parameters, keeps the same tensors twice, and has an empty group."""

    def server_init(self, params):
        return {"params": params, "anchor": params, "nothing": {}}

    def client_init(self, broadcast):
        return {"start": broadcast["params"]}

    def local_gradient(self, grad, params, client):
        weights = torch.cat([p.flatten() for p in params.values()])
        factor = 1 / (weights * torch.arange(1.0, len(weights) + 1)).norm()
        return {name: g * (1 + factor) for name, g in grad.items()}

    def server_step(self, state, mean_update, round):
        assert state["nothing"] == {}
        return {**state, **super().server_step(state, mean_update, round)}


def test_checkpoints_keep_order_sharing_and_empty_groups(tmp_path: Path) -> None:
    settings = config(algorithm=Awkward, model="mlp", rounds=15)
    start_run(settings, tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(settings, tmp_path, StopAfter(9, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_a_killed_run_does_not_show_how_it_ended_before(tmp_path: Path, stopped: Path) -> None:
    process = warm_processes.CONTEXT.Process(target=kill_self_before, args=(20, SMALL, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    run = load_run(stopped)
    assert run.status == "interrupted"
    assert run.summary["rounds_done"] == run.rounds["round"][-1].as_py() > 11


@pytest.mark.usefixtures("interruptible")
def test_interrupts_wait_for_a_write_to_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferring_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            steps.append("written")
        steps.append("not reached")
    assert steps == ["written"]


def test_interrupts_that_are_ignored_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferring_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    except KeyboardInterrupt:  # it would stop all tests
        pytest.fail("an ignored signal was raised again")
    finally:
        signal.signal(signal.SIGINT, before)


def test_runs_work_outside_the_main_thread(tmp_path: Path) -> None:
    thread = threading.Thread(target=start_run, args=(config(rounds=2), tmp_path))
    thread.start()
    thread.join()
    assert load_run(tmp_path / "small").status == "finished"


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    start_run(config(rounds=2), tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert resume_run(tmp_path / "small").status == "finished"
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}


def test_a_run_in_progress_is_not_written_by_a_second_process(tmp_path: Path) -> None:
    refused = []

    def try_resume() -> None:
        with pytest.raises(BadInputError, match="being written by another process"):
            resume_run(tmp_path / "small")
        refused.append(True)

    assert start_run(config(rounds=3, engine="reference"), tmp_path, StopAfter(2, try_resume)).status == "finished"
    assert refused == [True]


def test_divergence_names_round_and_client(tmp_path: Path) -> None:
    with pytest.raises(DivergedError) as caught:
        start_run(config(**{"local.lr": 1e30, "algorithm": "fedavg", "model": "mlp"}), tmp_path)
    run = load_run(tmp_path / "small")
    assert run.status == "diverged"
    assert f"in round {caught.value.round} at client '{caught.value.client}'" in run.summary["message"]
    assert run.summary["rounds_done"] == caught.value.round - 1
    assert "diverged" in (tmp_path / "small" / "log.txt").read_text()
    with pytest.raises(DivergedError) as again:
        resume_run(tmp_path / "small")
    assert str(again.value) == str(caught.value)


class Explodes(FedAvg):
    """Its server's steps are too large for any number."""

    def server_step(self, state, mean_update, round):
        return {"params": {name: p / 0 for name, p in state["params"].items()}}


def test_divergence_at_the_server_is_not_blamed_on_a_client(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"The server's state became infinite or undefined in round 1\.") as caught:
        start_run(config(algorithm=f"{__name__}:Explodes"), tmp_path)
    assert caught.value.client is None
    assert load_run(tmp_path / "small").summary["rounds_done"] == 0


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_finished_rounds(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))

    try:
        with pytest.raises(RunFailedError) as caught:
            start_run(config(), tmp_path, StopAfter(9, fill_disk))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.exit_code == 1
    assert "Cannot write" in str(caught.value)
    assert f"fedarena resume {tmp_path / 'small'}" in str(caught.value)
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == uninterrupted


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ram_bytes", [2**30, 0], ids=["as a round ends", "in the middle of a round"])
def test_a_full_disk_keeps_the_memories_of_finished_rounds(tmp_path: Path, ram_bytes: int) -> None:
    settings = config(algorithm="scaffold", client_states_ram_bytes=ram_bytes, rounds=12)
    start_run(settings, tmp_path / "uninterrupted")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk() -> None:
        log = tmp_path / "small" / "checkpoint" / "client_states-0.log"
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 4000, limits[1]))

    try:
        with pytest.raises(RunFailedError, match="Cannot write"):
            start_run(settings, tmp_path, StopAfter(9, fill_disk))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


class FailsAtTheEnd(VisitCounter):
    """Clients of a round remember something, and then the round comes to nothing."""

    def server_step(self, state, mean_update, round):
        if round == 9 and os.environ.get("FAIL"):
            raise RuntimeError("bad luck")
        return super().server_step(state, mean_update, round)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ram_bytes", [2**30, 0])
def test_a_round_that_fails_leaves_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ram_bytes: int) -> None:
    settings = config(algorithm=FailsAtTheEnd, client_states_ram_bytes=ram_bytes, rounds=12)
    start_run(settings, tmp_path / "uninterrupted")
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(RuntimeError, match="bad luck"):
        start_run(settings, tmp_path)
    assert load_run(tmp_path / "small").summary["rounds_done"] == 8
    monkeypatch.delenv("FAIL")
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_a_runs_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(RunFailedError, match="Cannot create the run folder"):
        start_run(config(), tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "a file, not a folder"


def test_an_existing_folder_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(BadInputError, match=r"exists; go on with it \(fedarena resume"):
        start_run(config(), tmp_path)
    assert [p.name for p in (tmp_path / "small").iterdir()] == ["thesis.txt"]


def stopped_run(folder: Path, **settings: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**settings), folder, StopAfter(11, interrupt))
    return folder / "small"


def test_a_damaged_checkpoint_is_refused_and_kept(stopped: Path) -> None:
    tensors = next((stopped / "checkpoint").glob("*.safetensors"))
    good = tensors.read_bytes()
    damages = {
        "flipped": bytes([good[0]]) + bytes([good[1] ^ 1]) + good[2:],
        "last byte flipped": good[:-1] + bytes([good[-1] ^ 1]),
        "cut": good[:-1],
        "empty": b"",
    }
    for damaged in damages.values():
        tensors.write_bytes(damaged)
        with pytest.raises(DamagedFileError) as caught:
            resume_run(stopped)
        assert str(tensors) in str(caught.value)
        assert tensors.read_bytes() == damaged
    tensors.unlink()
    with pytest.raises(DamagedFileError, match="cannot be read"):
        resume_run(stopped)
    tensors.write_bytes(good)
    assert resume_run(stopped).status == "finished"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("file", ["state.json", "rounds.arrows", "clients.arrows", "timings.arrows"])
def test_other_damaged_checkpoint_files_are_named(stopped: Path, file: str) -> None:
    path = stopped / "checkpoint" / file
    good = path.read_bytes()
    middle = len(good) // 2
    for damaged in (
        good[:-10],
        b"",
        good[:middle] + bytes([good[middle] ^ 128]) + good[middle + 1 :],
        b"x" * len(good),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=file):
            resume_run(stopped)
        with pytest.raises(DamagedFileError, match=file):
            load_run(stopped)
    path.write_bytes(good)
    assert resume_run(stopped).status == "finished"


def test_a_damaged_log_of_memories_is_refused_and_kept(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path, algorithm="scaffold", rounds=12)
    path = folder / "checkpoint" / "client_states-0.log"
    good = path.read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (0, 27, 40, len(good) // 2, len(good) - 1)]
    for damaged in [*flipped, good[:-1], good[: len(good) // 2], b"", b"x" * len(good)]:
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
            resume_run(folder)
        assert path.read_bytes() == damaged
    path.unlink()
    with pytest.raises(DamagedFileError, match=r"client_states-0\.log cannot be read"):
        resume_run(folder)
    path.write_bytes(good)
    assert resume_run(folder).status == "finished"


def test_a_log_of_memories_of_another_run_is_refused(tmp_path: Path) -> None:
    folder, other = (stopped_run(tmp_path / str(seed), algorithm="scaffold", seed=seed, rounds=12) for seed in (0, 1))
    logs = [path / "checkpoint" / "client_states-0.log" for path in (folder, other)]
    assert logs[0].stat().st_size == logs[1].stat().st_size
    logs[0].write_bytes(logs[1].read_bytes())
    with pytest.raises(DamagedFileError, match=r"client_states-0\.log is damaged"):
        resume_run(folder)


@pytest.mark.parametrize("change", [{"round": "x"}, {"round": 3.5}, {"tables": {}}, {"format": 1}])
def test_a_state_with_nonsense_is_damaged(stopped: Path, change: dict[str, Any]) -> None:
    state = json.loads((stopped / "checkpoint" / "state.json").read_text()) | change
    forge(stopped, "checkpoint/state.json", seal_json({k: v for k, v in state.items() if k != "checksum"}))
    with pytest.raises(DamagedFileError, match=rf"state\.json is damaged: {next(iter(change))} "):
        resume_run(stopped)


@pytest.mark.parametrize("file", ["config.yaml", "environment.json", "summary.json"])
def test_other_damaged_files_are_named(stopped: Path, file: str) -> None:
    (stopped / file).write_bytes(b"\x00{broken")
    with pytest.raises(BadInputError, match=file):
        resume_run(stopped)


@pytest.mark.parametrize("setting", ["local.lr", "seed", "cohort", "rounds"])
def test_resume_refuses_another_configuration(stopped: Path, setting: str) -> None:
    changed = merge(yaml.safe_load((stopped / "config.yaml").read_text()), {setting: 3})
    (stopped / "config.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(BadInputError, match=r"config\.yaml was changed after the run began"):
        resume_run(stopped)


def test_resume_refuses_other_data(stopped: Path) -> None:
    environment = json.loads((stopped / "environment.json").read_text())
    changed = environment | {"federation_fingerprint": "other", "federation_content_fingerprint": "other"}
    forge(stopped, "environment.json", files.json_text(changed).encode())
    with pytest.raises(BadInputError, match="is not the one that the run"):
        resume_run(stopped)


def test_parquet_and_logs_hold_the_same(tmp_path: Path) -> None:
    run = start_run(config(rounds=8, engine="reference", task={"metrics": ["accuracy", "macro_f1"]}), tmp_path)
    state = checkpoint.read_state(run.path)
    for table in tables.TABLES:
        assert checkpoint.read_table(run.path, table, state).equals(pq.read_table(run.path / f"{table}.parquet"))
