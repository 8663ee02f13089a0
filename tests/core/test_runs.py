"""Runs from start to finish, and everything that can stop them on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from fedarena import checkpoint, files
from fedarena.algorithms import FedAvg
from fedarena.config import merge, resolve
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec
from fedarena.errors import BadInputError, DamagedFileError, DivergedError, RunFailedError
from fedarena.experiment import Observer, resume_run, start_run
from fedarena.interrupts import deferring_interrupts
from fedarena.rundata import load_run, load_runs

SMALL = {
    "name": "small",
    "federation": {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}},
    "model": "logistic_regression",
    "algorithm": "fedyogi",
    "rounds": 40,
    "cohort": 4,
    "evaluation.every": 7,
}


def config(**settings: Any):
    return resolve(merge({}, SMALL | settings))


class VisitCounter(FedAvg):
    """An algorithm whose clients remember something, so that memories are checkpointed, too."""

    def memory_init(self, broadcast):
        return {"drift": {name: 0 * p for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad, params, broadcast, memory):
        return {name: g - 0.1 * memory["drift"][name] for name, g in grad.items()}

    def client_update(self, params, broadcast, memory, work):
        update, _ = super().client_update(params, broadcast, memory, work)
        return update, {"drift": update["params"]}


def content(folder: Path) -> dict[str, bytes]:
    """Everything about a run that must not depend on when or how often it was interrupted."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    tensors = (folder / "checkpoint" / state["tensors"]["file"]).read_bytes()
    tables = {name: (folder / name).read_bytes() for name in ("rounds.parquet", "clients.parquet", "config.yaml")}
    summary = json.loads((folder / "summary.json").read_text())
    del summary["timing"]
    return {"tensors": tensors, "summary": json.dumps(summary).encode(), **tables}


def test_a_run_folder_is_complete(tmp_path: Path) -> None:
    run = start_run(config(), tmp_path)
    folder = tmp_path / "small"
    assert run.path == folder
    assert {p.name for p in folder.iterdir()} == {
        *("config.yaml", "environment.json", "rounds.parquet", "clients.parquet", "timings.parquet"),
        *("summary.json", "checkpoint", "log.txt"),
    }
    assert run.status == "finished"
    rounds = run.rounds.to_pylist()
    assert [row["round"] for row in rounds] == list(range(41))
    assert [row["round"] for row in rounds if row["accuracy"] is not None] == [0, 7, 14, 21, 28, 35, 40]
    weights = (64 * 10 + 10) * 4
    assert all(row["bytes_down"] == row["bytes_up"] == 4 * weights for row in rounds[1:])
    assert all(row["flops"] == 2 * 2 * 64 * 10 * row["samples"] for row in rounds[1:])
    assert all(row["clients"] == 4 for row in rounds[1:])
    assert rounds[-1]["train_loss"] < rounds[1]["train_loss"]
    assert run.summary["final"]["accuracy"] > 2 * run.summary["baseline"]["accuracy"]
    assert run.summary["totals"]["bytes_up"] == 40 * 4 * weights
    assert run.environment["seed"] == 0
    assert {"python", "torch", "numpy", "fedarena"} <= set(run.environment["versions"])
    assert run.config == yaml.safe_load((folder / "config.yaml").read_text())


def test_tables_agree_with_each_other(tmp_path: Path) -> None:
    run = start_run(config(), tmp_path)
    for row in run.rounds.to_pylist():
        clients = [c for c in run.clients.to_pylist() if c["round"] == row["round"]]
        if row["accuracy"] is None:
            assert clients == []
            continue
        samples = np.array([c["samples"] for c in clients])
        accuracy = np.array([c["accuracy"] for c in clients])
        assert len(clients) == row["eval_clients"]
        assert samples.sum() == row["eval_samples"]
        assert (samples * accuracy).sum() / samples.sum() == pytest.approx(row["accuracy"])
        assert accuracy.mean() == pytest.approx(row["accuracy_by_client"])
        assert np.percentile(accuracy, 10) == pytest.approx(row["accuracy_p10"])


def test_the_baseline_is_what_counting_gives(tmp_path: Path) -> None:
    from fedarena.data import load_federation

    run = start_run(config(rounds=1), tmp_path)
    options = dict(run.config["federation"])
    federation = load_federation(options.pop("name"), options)
    everybody = federation.clients("all")
    train, test = (federation.samples(everybody, part).columns["y"] for part in ("train", "test"))
    most_frequent = np.bincount(train).argmax()
    assert run.summary["baseline"]["accuracy"] == pytest.approx((test == most_frequent).mean())


def test_same_seed_same_bits_and_another_seed_other_bits(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        start_run(config(), tmp_path / folder)
    start_run(config(seed=1), tmp_path / "c")
    first, second, other = (content(tmp_path / folder / "small") for folder in "abc")
    assert first == second
    assert first["tensors"] != other["tensors"]


def test_unnamed_runs_get_a_free_name(tmp_path: Path) -> None:
    first, second = (start_run(config(name=None, rounds=1), tmp_path) for _ in range(2))
    assert (first.path.name, second.path.name) == ("digits-fedyogi-seed0", "digits-fedyogi-seed0-2")


def test_evaluation_on_some_clients_only(tmp_path: Path) -> None:
    run = start_run(
        config(rounds=1).model_copy(update={"evaluation": config(**{"evaluation.max_clients": 3}).evaluation}), tmp_path
    )
    assert run.rounds["eval_clients"].to_pylist() == [3, 3]


# --- being killed ---------------------------------------------------------------------------------------------------


def start_or_resume(settings: dict[str, Any], folder: Path) -> None:
    if (folder / "small").exists():
        resume_run(folder / "small")
    else:
        start_run(resolve(merge({}, settings)), folder)


@pytest.fixture(scope="module")
def processes():
    """Processes that start in milliseconds because a server has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedarena.experiment", "pytest", "torch._dynamo"])
    return context


@pytest.mark.parametrize("algorithm", ["fedyogi", f"{__name__}:VisitCounter"], ids=["fedyogi", "with memory"])
def test_killed_at_random_moments_and_resumed(tmp_path: Path, processes, algorithm: str) -> None:
    settings = SMALL | {"algorithm": algorithm, "rounds": 60}
    for folder in ("first, which starts the server", "uninterrupted"):
        began = time.monotonic()
        process = processes.Process(target=start_or_resume, args=(settings, tmp_path / folder))
        process.start()
        process.join()
        usual_seconds = time.monotonic() - began
    moments = random.Random(0)
    kills, rounds_at_kill = 0, set()
    while kills < 12:
        process = processes.Process(target=start_or_resume, args=(settings, tmp_path / "killed"))
        process.start()
        process.join(moments.uniform(0, usual_seconds))
        if process.exitcode is None:
            kills += 1
            process.kill()
            process.join()
            state = tmp_path / "killed" / "small" / "checkpoint" / "state.json"
            rounds_at_kill.add(json.loads(state.read_text())["round"] if state.exists() else None)
        elif (tmp_path / "killed" / "small" / "summary.json").exists():
            assert process.exitcode == 0
            compare_and_remove(tmp_path)
    start_or_resume(settings, tmp_path / "killed")
    compare_and_remove(tmp_path)
    assert len(rounds_at_kill) > 3  # or the moments were not in the middle of the run


def compare_and_remove(folder: Path) -> None:
    assert content(folder / "killed" / "small") == content(folder / "uninterrupted" / "small")
    (folder / "killed").rename(folder / f"done-{random.random()}")


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
    start_or_resume(settings, folder)


def test_killed_at_every_step_of_a_commit(tmp_path: Path, processes) -> None:
    settings = SMALL | {"rounds": 3}
    start_or_resume(settings, tmp_path / "uninterrupted")
    number, exit_code = 0, None
    while exit_code != 0:
        process = processes.Process(target=kill_self_before, args=(number, settings, tmp_path / "killed"))
        process.start()
        process.join()
        exit_code = process.exitcode
        assert exit_code in (0, -signal.SIGKILL)
        start_or_resume(settings, tmp_path / "killed")
        compare_and_remove(tmp_path)
        number += 1
    assert number > 20


# --- stopping in other ways -----------------------------------------------------------------------------------------


class StopAfter(Observer):
    """Does something in the middle of a run."""

    def __init__(self, round: int, action):
        self.round, self.action = round, action

    def finished_round(self, outcome) -> None:
        if outcome.snapshot.round == self.round:
            self.action()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_run_saves_its_last_round_and_goes_on(tmp_path: Path) -> None:
    start_run(config(), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(), tmp_path, StopAfter(17, interrupt))
    stopped = load_run(tmp_path / "small")
    assert stopped.status == "interrupted"
    assert stopped.summary["rounds_done"] == 17
    assert stopped.rounds["round"].to_pylist() == list(range(18))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_a_run_that_stopped_before_its_first_round_can_be_resumed(tmp_path: Path) -> None:
    class StopAtStart(Observer):
        def started(self, run, folder, rounds_done) -> None:
            raise KeyboardInterrupt

    start_run(config(), tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(), tmp_path, StopAtStart())
    with pytest.raises(BadInputError, match="has no finished round yet"):
        load_run(tmp_path / "small")
    assert resume_run(tmp_path / "small").status == "finished"
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


class Awkward(FedAvg):
    """Depends on the order of parameters, keeps the same tensors twice, and has an empty group."""

    def server_init(self, params):
        return {"params": params, "anchor": params, "nothing": {}}

    def memory_init(self, broadcast):
        return {"start": broadcast["params"]}

    def local_gradient(self, grad, params, broadcast, memory):
        weights = torch.cat([p.flatten() for p in params.values()])
        factor = 1 / (weights * torch.arange(1.0, len(weights) + 1)).norm()
        return {name: g * (1 + factor) for name, g in grad.items()}

    def server_step(self, state, mean_update, round):
        assert state["nothing"] == {}
        return {**state, **super().server_step(state, mean_update, round)}


def test_checkpoints_keep_order_sharing_and_empty_groups(tmp_path: Path) -> None:
    settings = config(algorithm=Awkward, model="mlp")
    start_run(settings, tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        start_run(settings, tmp_path, StopAfter(9, interrupt))
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "uninterrupted" / "small")


def test_a_killed_run_does_not_show_how_it_ended_before(tmp_path: Path, processes) -> None:
    folder = stopped_run(tmp_path)
    process = processes.Process(target=kill_self_before, args=(20, SMALL, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    run = load_run(folder)
    assert run.status == "interrupted"
    assert run.summary["rounds_done"] == run.rounds["round"][-1].as_py() > 11


def test_interrupts_wait_for_a_write_to_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with deferring_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            steps.append("written")
        steps.append("not reached")
    assert steps == ["written"]


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

    assert start_run(config(), tmp_path, StopAfter(20, try_resume)).status == "finished"
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


def test_divergence_at_the_server_is_not_blamed_on_a_client(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"The server's state became infinite or undefined in round 1\.") as caught:
        start_run(config(algorithm={"name": "fedavg", "server_lr": 1e39}), tmp_path)
    assert caught.value.client is None
    assert load_run(tmp_path / "small").summary["rounds_done"] == 0


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_finished_rounds(tmp_path: Path) -> None:
    start_run(config(), tmp_path / "uninterrupted")
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


def stopped_run(folder: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        start_run(config(), folder, StopAfter(11, interrupt))
    return folder / "small"


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path)
    tensors = next((folder / "checkpoint").glob("*.safetensors"))
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
            resume_run(folder)
        assert str(tensors) in str(caught.value)
        assert tensors.read_bytes() == damaged
    tensors.unlink()
    with pytest.raises(DamagedFileError, match="cannot be read"):
        resume_run(folder)
    tensors.write_bytes(good)
    assert resume_run(folder).status == "finished"


@pytest.mark.parametrize("file", ["state.json", "rounds.arrows", "clients.arrows", "timings.arrows"])
def test_other_damaged_checkpoint_files_are_named(tmp_path: Path, file: str) -> None:
    folder = stopped_run(tmp_path)
    path = folder / "checkpoint" / file
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
            resume_run(folder)
        with pytest.raises(DamagedFileError, match=file):
            load_run(folder)
    path.write_bytes(good)
    assert resume_run(folder).status == "finished"


@pytest.mark.parametrize("change", [{"round": "x"}, {"round": 3.5}, {"tables": {}}, {"format": 2}])
def test_a_state_with_nonsense_is_damaged(tmp_path: Path, change: dict[str, Any]) -> None:
    folder = stopped_run(tmp_path)
    path = folder / "checkpoint" / "state.json"
    files.write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(DamagedFileError, match=r"state\.json is damaged"):
        resume_run(folder)


@pytest.mark.parametrize("file", ["config.yaml", "environment.json", "summary.json"])
def test_other_damaged_files_are_named(tmp_path: Path, file: str) -> None:
    folder = stopped_run(tmp_path)
    (folder / file).write_bytes(b"\x00{broken")
    with pytest.raises(BadInputError, match=file):
        resume_run(folder)


@pytest.mark.parametrize("setting", ["local.lr", "seed", "cohort", "rounds"])
def test_resume_refuses_another_configuration(tmp_path: Path, setting: str) -> None:
    folder = stopped_run(tmp_path)
    changed = merge(yaml.safe_load((folder / "config.yaml").read_text()), {setting: 3})
    (folder / "config.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(BadInputError, match=r"config\.yaml was changed after the run began"):
        resume_run(folder)


def test_resume_refuses_other_data(tmp_path: Path) -> None:
    folder = stopped_run(tmp_path)
    environment = json.loads((folder / "environment.json").read_text())
    files.write_json(folder / "environment.json", environment | {"federation_fingerprint": "other"})
    with pytest.raises(BadInputError, match="is not the one that the run"):
        resume_run(folder)


def test_parquet_and_logs_hold_the_same(tmp_path: Path) -> None:
    run = start_run(config(), tmp_path)
    state = checkpoint.read_state(run.path)
    for table in checkpoint.TABLES:
        assert checkpoint.read_table(run.path, table, state).equals(pq.read_table(run.path / f"{table}.parquet"))


# --- what does not fit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cohort": 21}, "cohort is 21, but the federation 'digits' has only"),
        ({"model": "char_mlp"}, "The model 'char_mlp' needs a next-token federation, but this federation has images"),
        ({"evaluation.split": "validation"}, "has no validation samples to evaluate on"),
        ({"engine.threads": 0}, "engine.threads must be from 1 to 1024, not 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path, settings, sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        start_run(config(**settings), tmp_path / "runs")
    assert sentence in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_clients_without_samples_are_never_invited(tmp_path: Path, make_federation) -> None:
    generator = np.random.default_rng(0)
    sizes = [0, 1, 5, 0, 2]
    clients = {
        f"c{n}": (generator.normal(size=(k, 4)).astype(np.float32), np.arange(k) % 3) for n, k in enumerate(sizes)
    }
    federation = make_federation(clients, 3)
    heard: list[str] = []

    class Listener(Observer):
        def warned(self, message: str) -> None:
            heard.append(message)

    settings = {"name": "tiny", "federation": {"name": "store", "path": str(federation.path)}, "rounds": 5, "cohort": 3}
    run = start_run(resolve(settings), tmp_path, Listener())
    assert heard == ["2 of 5 clients have no training sample and are never invited"]
    assert run.status == "finished"
    assert run.rounds["samples"].to_pylist()[1:] == [8] * 5
    assert set(run.clients["client"].to_pylist()) == {"c1", "c2", "c4"}


def test_a_federation_without_any_sample_is_refused(tmp_path: Path, make_federation) -> None:
    empty = (np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.int64))
    federation = make_federation({"nobody": empty}, 3)
    with pytest.raises(BadInputError, match="No client of the federation 'made' has a training sample"):
        start_run(resolve({"federation": {"name": "store", "path": str(federation.path)}, "cohort": 1}), tmp_path)


def test_padding_and_unknown_tokens_are_never_right(tmp_path: Path) -> None:
    columns = {"tokens": ColumnSpec(dtype="uint8", shape=(4,))}
    task = TaskSpec(kind="next_token", classes=5, padding=0, unknown=1)
    with FederationWriter(tmp_path / "store", name="text", task=task, columns=columns) as writer:
        mostly_unknown = np.array([[2, 1, 1, 3]] * 6, dtype=np.uint8)
        for client, tokens in {"speaks": mostly_unknown, "silent": np.array([[2, 0, 0, 0]], dtype=np.uint8)}.items():
            writer.add_client(client, train={"tokens": tokens}, test={"tokens": tokens})
    settings = {
        "federation": {"name": "store", "path": str(tmp_path / "store")},
        "cohort": 2,
        "rounds": 2,
        "evaluation": {"every": 1},
    }
    run = start_run(resolve(settings), tmp_path)
    assert run.summary["baseline"]["accuracy"] == pytest.approx(1 / 3)
    assert run.clients["client"].to_pylist() == ["speaks"] * 3
    assert np.isfinite(run.rounds["accuracy_by_client"].to_numpy()).all()


# --- comparing ------------------------------------------------------------------------------------------------------


def test_labels_name_what_differs(tmp_path: Path) -> None:
    variants = [("fedavg", 0.1, 0), ("fedavg", 0.1, 1), ("fedavg", 0.5, 0), ("fedprox", 0.1, 0)]
    for number, (algorithm, lr, seed) in enumerate(variants):
        start_run(config(name=f"run{number}", algorithm=algorithm, seed=seed, rounds=1, **{"local.lr": lr}), tmp_path)
    labels = [run.label for run in load_runs([tmp_path])]
    assert labels == ["fedavg lr=0.1", "fedavg lr=0.1", "fedavg lr=0.5", "fedprox"]
    assert [run.label for run in load_runs([tmp_path / "run2"])] == ["fedavg"]


def test_a_folder_of_suites_stands_for_all_runs_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    class StopAtStart(Observer):
        def started(self, run, folder, rounds_done) -> None:
            raise KeyboardInterrupt

    start_run(config(name="alone", rounds=1), tmp_path)
    start_run(config(name="member", rounds=1), tmp_path / "suite")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="stillborn", rounds=1), tmp_path, StopAtStart())
    left_out: list[str] = []
    assert sorted(run.name for run in load_runs([tmp_path], left_out.append)) == ["alone", "member"]
    assert left_out == [f"The run {tmp_path / 'stillborn'} has no finished round yet"]


def test_folders_that_are_not_runs(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a run folder and holds none"):
        load_runs([tmp_path])
    with pytest.raises(BadInputError, match="There is no run folder"):
        load_runs([tmp_path / "nothing"])
    with pytest.raises(BadInputError, match="is not a run folder"):
        resume_run(tmp_path)
