"""No file of a run can change, be lost or be exchanged for another run's without being refused by name."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import StopAfter, config, content, forge, interrupt
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError, CannotReadError, DamagedFileError
from fedarena.core.sealed_json import seal_json, unseal_json
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.weights import read_weights
from fedarena.storage import checkpoint
from fedarena.storage.checkpoint import check_fits, read_state
from fedarena.storage.run_data import is_finished, load_run
from fedarena.storage.run_files import MANIFEST_FILE, RunFiles, parquet_bytes

# A run with every kind of file: phones, and clients about whom something is known.
COMPLETE = {
    "federation": {"name": "synthetic", "clients": 20, "cluster_probabilities": [0.6, 0.4]},
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]},
    "protocol": "synchronous",
    "rounds": 8,
    "engine": "reference",
    "evaluation.every": 2,
}
TABLES = ["rounds.parquet", "clients.parquet", "timings.parquet", "jobs.parquet"]
PROTECTED = ["config.yaml", "environment.json", "fleet.json", "summary.json", "attributes.parquet", *TABLES]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two finished runs and two that were stopped; one of each has other data."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        seeds = {"seed": seed, "federation.seed": seed}
        start_run(config(**COMPLETE, **seeds, name=f"finished-{seed}"), folder)
        with pytest.raises(KeyboardInterrupt):
            start_run(config(**COMPLETE, **seeds, name=f"stopped-{seed}"), folder, StopAfter(5, interrupt))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def copy(originals: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def copied(name: str) -> Path:
        shutil.copytree(originals[name], tmp_path / name)
        return tmp_path / name

    return copied


def checkpoint_files(folder: Path) -> list[str]:
    """What is read to go on with a run, or to start from its weights."""
    state = json.loads((folder / "checkpoint" / "state.json").read_text())
    return ["state.json", state["tensors"]["file"], *(f"{table}.arrows" for table in state["tables"])]


def read_checkpoint(folder: Path) -> None:
    state = read_state(folder)
    assert state is not None
    checkpoint.read_snapshot(folder, state, checkpoint.open_client_states(folder, state))
    for table in state.tables:
        checkpoint.read_table(folder, table, state)


# --- changed bits ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_no_flipped_bit_is_taken_silently(seed: int, copy: Callable[[str], Path]) -> None:
    folder, draws, refused = copy("finished-0"), random.Random(seed), 0
    load_run(folder)
    read_checkpoint(folder)
    assert set(RunFiles.open(folder)._manifest.files) == {*PROTECTED, "checkpoint/state.json"}
    for name in [*PROTECTED, MANIFEST_FILE, *(f"checkpoint/{file}" for file in checkpoint_files(folder))]:
        path = folder / name
        good = path.read_bytes()
        for bit in draws.sample(range(8 * len(good)), 10):
            damaged = bytearray(good)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(BadInputError) as caught:
                (read_checkpoint if name.startswith("checkpoint") else load_run)(folder)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            refused += 1
        path.write_bytes(good)
    load_run(folder)
    read_checkpoint(folder)
    assert refused == 10 * 16


def test_pages_of_tables_have_checksums_of_their_own(copy: Callable[[str], Path]) -> None:
    """Whoever reads the tables without FedArena can verify them as well."""
    data = (copy("finished-0") / "clients.parquet").read_bytes()
    column = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(4)
    assert column.path_in_schema == "loss"
    values_end = column.data_page_offset  # values lie in the page of the dictionary, before that of the numbers of rows
    assert values_end - column.dictionary_page_offset > 300
    for position in range(values_end - 200, values_end):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            pq.read_table(pa.BufferReader(bytes(damaged)), page_checksum_verification=True)


SEALED = seal_json({"format": 6, "round": 17, "clock": {"time": 103.25}, "file": "round-17", "list": [1, 2, 30]})


@settings(max_examples=500, deadline=None)
@given(data=st.data())
def test_any_change_of_sealed_json_is_noticed(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(SEALED)))
    end = data.draw(st.integers(begin, min(len(SEALED), begin + 20)))
    changed = SEALED[:begin] + data.draw(st.binary(max_size=20) | st.just(b" ") | st.just(b"1")) + SEALED[end:]
    assert (unseal_json(changed) is None) == (changed != SEALED)


@pytest.mark.parametrize("junk", [b"", b"[]", b"{}", b"7", b"\xff", b"[" * 100_000, b"9" * 10_000, b'{"a": "\\ud800"}'])
def test_what_was_never_sealed_is_not_unsealed(junk: bytes) -> None:
    assert unseal_json(junk) is None


def test_every_changed_digit_of_a_state_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("stopped-0")
    path = folder / "checkpoint" / "state.json"
    forget_the_end(folder)  # the state is then protected by nothing but itself
    good, changes = path.read_text(), 0
    for position, character in enumerate(good):
        if character.isdigit():
            other = str((int(character) + 1 + position % 9) % 10)
            path.write_text(good[:position] + other + good[position + 1 :])
            if path.read_text() != good:
                changes += 1
                with pytest.raises(DamagedFileError, match=r"state\.json is damaged: its content does not match"):
                    read_state(folder)
    assert changes > 80
    path.write_text(good)
    assert read_state(folder) is not None


def forget_the_end(folder: Path) -> None:
    """Makes a closed run look like one that was killed."""
    RunFiles.open(folder).reopen()


# --- lost, exchanged and misplaced files ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PROTECTED, MANIFEST_FILE])
def test_files_that_are_missing_or_folders_or_of_another_run(copy: Callable[[str], Path], name: str) -> None:
    folder, other = copy("finished-0"), copy("finished-1")
    (folder / name).unlink()
    with pytest.raises(BadInputError, match=name):
        load_run(folder)
    (folder / name).mkdir()
    with pytest.raises(BadInputError, match=name):
        load_run(folder)
    (folder / name).rmdir()
    shutil.copy(other / name, folder / name)
    with pytest.raises(BadInputError, match=name if name != MANIFEST_FILE else r"config\.yaml"):
        load_run(folder)


@pytest.mark.parametrize("name", [*PROTECTED, MANIFEST_FILE])
def test_nobody_waits_for_a_pipe(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("finished-0")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DamagedFileError, match=f"{name} cannot be read: it is neither a file nor a folder"):
        load_run(folder)


def test_nobody_waits_for_a_pipe_of_a_checkpoint(copy: Callable[[str], Path]) -> None:
    folder = copy("stopped-0")
    for name in checkpoint_files(folder):
        path = folder / "checkpoint" / name
        path.rename(folder / "aside")
        os.mkfifo(path)
        with pytest.raises(DamagedFileError, match="neither a file nor a folder"):
            read_checkpoint(folder)
        (folder / "aside").replace(path)
    read_checkpoint(folder)


def test_every_command_refuses_a_changed_table(copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, good = copy("finished-0"), copy("finished-1")
    shutil.copy(good / "rounds.parquet", folder / "rounds.parquet")
    monkeypatch.chdir(folder.parent)
    for arguments in (
        ["report", folder],
        ["report", good, folder],
        ["resume", folder],
        ["correlate", good, folder],
        ["leaf-metrics", folder, "out"],
        ["leaf-plot", folder],
    ):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == 2, (arguments, result.output)
        assert "rounds.parquet is damaged" in " ".join(result.output.split())


@pytest.mark.parametrize("name", ["fleet.json", "attributes.parquet", "environment.json"])
def test_a_stopped_run_does_not_go_on_with_other_files(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("stopped-0")
    forget_the_end(folder)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 2
    (folder / name).write_bytes(data)
    for read in (resume_run, load_run):
        with pytest.raises(DamagedFileError, match=rf"{name} is damaged"):
            read(folder)


def test_a_configuration_that_was_changed_is_no_longer_that_of_the_run(copy: Callable[[str], Path]) -> None:
    for name in ("finished-0", "stopped-0"):
        folder = copy(name)
        path = folder / "config.yaml"
        path.write_text(path.read_text() + "# a remark\n")
        for read in (resume_run, load_run):
            with pytest.raises(BadInputError, match=r"config\.yaml was changed after the run began.*fedarena run "):
                read(folder)


# --- checkpoints of other runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("was_killed", [True, False])
def test_a_checkpoint_of_another_run_is_refused(copy: Callable[[str], Path], was_killed: bool) -> None:
    folder, other = copy("stopped-0"), copy("stopped-1")
    if was_killed:
        forget_the_end(folder)
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other / "checkpoint", folder / "checkpoint")
    before = content_of(folder)
    why = r"state\.json belongs to another run" if was_killed else r"state\.json is damaged"
    for read in (resume_run, load_run, read_weights):
        with pytest.raises(DamagedFileError, match=why):
            read(folder)
    assert content_of(folder) == before


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"}


def test_weights_of_a_finished_run_with_another_checkpoint_are_refused(copy: Callable[[str], Path]) -> None:
    folder, other = copy("finished-0"), copy("finished-1")
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other / "checkpoint", folder / "checkpoint")
    with pytest.raises(DamagedFileError, match=r"state\.json is damaged"):
        read_weights(folder)
    assert read_weights(other)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_weights_of_a_run_that_says_it_began_otherwise_are_refused(name: str, copy: Callable[[str], Path]) -> None:
    folder, other = copy("finished-0"), copy("finished-1")
    shutil.copy(other / name, folder / name)
    with pytest.raises(BadInputError, match=name.replace(".", r"\.")):
        read_weights(folder)


def test_a_state_that_does_not_fit_the_model_is_refused() -> None:
    weight, path = torch.zeros(10, 64), Path("round-3.safetensors")
    fresh = {"params": {"weight": weight}, "velocity": {"weight": weight}}
    check_fits(path, {**fresh, "more": {}}, fresh)
    for params, why in {
        "weight": (torch.zeros(64, 10), r"'weight' is float32 \[64, 10\] there and float32 \[10, 64\] here"),
        "half": (weight.half(), r"'weight' is nothing there"),
        "velocity": (None, "is of another algorithm: it has no velocity"),
    }.items():
        tensor, sentence = why
        state: dict[str, Any] = {"params": {params: tensor}, "velocity": {}} if tensor is not None else {"params": {}}
        with pytest.raises(DamagedFileError, match=sentence):
            check_fits(path, state, fresh)
    with pytest.raises(DamagedFileError, match="'weight' is float64"):
        check_fits(path, {**fresh, "params": {"weight": weight.double()}}, fresh)


def test_a_forged_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """Even where everything else agrees, a model does not go on with the tensors of another one."""
    small = {"rounds": 4, "engine": "reference", "algorithm": "fedavg"}
    for name, model in {"line": "logistic_regression", "net": "mlp"}.items():
        with pytest.raises(KeyboardInterrupt):
            start_run(config(name=name, model=model, **small), tmp_path, StopAfter(2, interrupt))
    folder, other = tmp_path / "line", tmp_path / "net"
    run_id = RunFiles.open(folder).run_id
    shutil.rmtree(folder / "checkpoint")
    shutil.copytree(other / "checkpoint", folder / "checkpoint")
    state = unseal_json((folder / "checkpoint" / "state.json").read_bytes())
    assert state is not None
    forge(folder, "checkpoint/state.json", seal_json(state | {"run_id": run_id}))
    with pytest.raises(DamagedFileError, match=r"round-2\.safetensors is of another model"):
        resume_run(folder)


# --- runs that end, go on, and end again ----------------------------------------------------------------------------


def test_a_run_that_goes_on_has_a_new_manifest(copy: Callable[[str], Path], originals: dict[str, Path]) -> None:
    folder = copy("stopped-0")
    before = (folder / MANIFEST_FILE).read_bytes()
    assert not is_finished(folder)
    assert resume_run(folder).status == "finished"
    assert is_finished(folder)
    assert (folder / MANIFEST_FILE).read_bytes() != before
    again = content(folder)
    whole = content(originals["finished-0"])
    assert {name: again[name] for name in ("tensors", "rounds.parquet", "clients.parquet", "jobs.parquet")} == {
        name: whole[name] for name in ("tensors", "rounds.parquet", "clients.parquet", "jobs.parquet")
    }


def test_a_run_that_goes_on_does_not_tell_how_it_ended_before(copy: Callable[[str], Path]) -> None:
    folder, seen = copy("stopped-0"), []

    def look() -> None:
        run = load_run(folder)
        seen.append((run.status, run.summary["rounds_done"] >= 5, RunFiles.open(folder).is_closed))

    resume_run(folder, StopAfter(7, look))
    assert seen == [("running", True, False)]


def test_what_a_killed_closing_left_does_not_count(copy: Callable[[str], Path]) -> None:
    """Tables and summary are there, but the manifest that would make them count was not written yet."""
    folder = copy("finished-0")
    summary = (folder / "summary.json").read_bytes()
    forget_the_end(folder)
    (folder / "summary.json").write_bytes(summary)
    (folder / "rounds.parquet").write_bytes(b"half a ta")
    assert not is_finished(folder)
    assert load_run(folder).status == "interrupted"
    assert load_run(folder).rounds.num_rows == 9
    assert resume_run(folder).status == "finished"


def test_a_reader_is_not_disturbed_by_a_run_that_goes_on(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy("stopped-0")
    manifest = RunFiles.open(folder)
    forget_the_end(folder)
    found = iter([manifest])
    opened = RunFiles.open.__func__
    monkeypatch.setattr(RunFiles, "open", classmethod(lambda cls, path: next(found, None) or opened(cls, path)))
    assert load_run(folder).summary["rounds_done"] == 5


def test_temporary_files_of_a_killed_process_are_removed_when_the_run_goes_on(copy: Callable[[str], Path]) -> None:
    folder = copy("stopped-0")
    left = [".manifest.json.7.tmp", ".rounds.parquet.7.tmp", "checkpoint/.state.json.7.tmp"]
    for name in [*left, ".report.html.7.tmp"]:
        (folder / name).touch()
    resume_run(folder)
    assert [path.name for path in folder.rglob(".*.tmp")] == [".report.html.7.tmp"]


# --- earlier versions -----------------------------------------------------------------------------------------------


def as_before(folder: Path) -> None:
    """Turns a run into one of the version before, which protected nothing."""
    for name in TABLES:
        pq.write_table(pq.read_table(folder / name), folder / name)
    environment = json.loads((folder / "environment.json").read_text())
    del environment["run_id"]
    (folder / "environment.json").write_text(json.dumps(environment))
    path = folder / "checkpoint" / "state.json"
    state = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("run_id", "checksum")}
    path.write_text(json.dumps(state | {"format": 5}))
    (folder / MANIFEST_FILE).unlink()


def test_runs_of_earlier_versions_can_be_read_but_not_go_on(
    copy: Callable[[str], Path], originals: dict[str, Path]
) -> None:
    for name in ("finished-0", "stopped-0"):
        folder, now = copy(name), load_run(originals[name])
        as_before(folder)
        run = load_run(folder)
        assert (run.status, run.summary) == (now.status, now.summary)
        assert run.rounds.equals(now.rounds)
        assert run.attributes is not None
        assert run.fleet == now.fleet
        assert read_weights(folder).keys() == read_weights(originals[name]).keys()
    with pytest.raises(
        BadInputError, match="was begun by an earlier version of FedArena; it can be read, but not go on"
    ):
        resume_run(folder)


def test_a_checkpoint_of_today_in_a_run_of_before_is_refused(copy: Callable[[str], Path]) -> None:
    folder, other = copy("stopped-0"), copy("stopped-1")
    as_before(folder)
    shutil.copy(other / "checkpoint" / "state.json", folder / "checkpoint" / "state.json")
    with pytest.raises(DamagedFileError, match=r"state\.json belongs to another run"):
        load_run(folder)
    (folder / "checkpoint" / "state.json").write_bytes((other / "checkpoint" / "state.json").read_bytes() + b" ")
    with pytest.raises(DamagedFileError, match=r"state\.json is damaged"):
        load_run(folder)


# --- shortages ------------------------------------------------------------------------------------------------------


def test_too_many_open_files_are_no_damage(copy: Callable[[str], Path]) -> None:
    folder = copy("finished-0")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(CannotReadError, match=r"manifest\.json cannot be read: too many open files"):
            load_run(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    load_run(folder)


def test_a_forged_table_is_still_a_table(copy: Callable[[str], Path]) -> None:
    """The manifest guards against accidents; what was sealed is what is shown."""
    folder = copy("finished-0")
    rounds = pq.read_table(folder / "rounds.parquet")
    forge(folder, "rounds.parquet", parquet_bytes(rounds.slice(0, 3)))
    assert load_run(folder).rounds.num_rows == 3
