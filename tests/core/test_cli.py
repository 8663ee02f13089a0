"""The command line as a user meets it: output, files, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedarena import __version__
from fedarena.cli import main
from warm_processes import WarmProcess

# The reference engine is at work sooner.
FAST = ["federation=digits", "rounds=3", "cohort=5", "model=logistic_regression", "engine=reference"]


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, code: int = 0) -> str:
    """What a command prints; it must end with this exit code and, where that is not 0, with a single sentence."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if code == 2:
        assert result.stderr.startswith("Error: ")
        assert "Traceback" not in result.output
        assert len(result.stderr.strip().splitlines()) == 1
    return result.output


def test_run_writes_a_folder_and_shows_scores() -> None:
    output = call("run", *FAST, "name=first")
    assert "fedavg" in output
    assert "Baseline, always the most frequent label" in output
    assert {"config.yaml", "summary.json", "rounds.parquet", "report.html"} <= {
        p.name for p in Path("runs/first").iterdir()
    }
    assert f"Report: {Path('runs/first/report.html')}" in output


def test_a_file_and_settings_that_override_it() -> None:
    Path("mine.yaml").write_text("federation: digits\nalgorithm: {name: fedprox, mu: 0.3}\nrounds: 9\n")
    printed = yaml.safe_load(call("run", "mine.yaml", "rounds=2", "--print-config"))
    assert (printed["rounds"], printed["algorithm"]["mu"], printed["model"]["name"]) == (2, 0.3, "cnn")
    assert not Path("runs").exists()


def test_a_printed_configuration_is_a_configuration_file() -> None:
    Path("all.yaml").write_text(call("run", *FAST, "--print-config"))
    assert call("run", "all.yaml", "--print-config") == Path("all.yaml").read_text()


def test_resume_of_a_finished_run_shows_it() -> None:
    first = call("run", *FAST, "name=first")
    again = call("resume", "runs/first")
    assert first.splitlines()[-6:] == again.splitlines()[-6:]


def test_report_of_several_runs() -> None:
    call("run", *FAST, "name=a")
    call("run", *FAST, "name=b", "algorithm=fedprox")
    output = call("report", "runs/a", "runs/b", "-o", "both.html")
    assert "fedprox" in output
    page = Path("both.html").read_text()
    assert "fedavg" in page
    assert "fedprox" in page
    call("report", "runs")
    assert Path("runs/report.html").exists()


def test_describe_prints_and_draws() -> None:
    output = call(
        "describe", "digits", "partition=dirichlet", "partition.alpha=0.1", "partition.clients=12", "-o", "picture.html"
    )
    assert "1,797" in output
    assert "plotly" in Path("picture.html").read_text()
    call("describe", "digits", "--verify")
    assert Path("digits.html").exists()


def test_describe_opens_a_store_by_its_folder(cache: Path) -> None:
    call("describe", "digits")
    store = next(cache.glob("digits-*"))
    assert "1,797" in call("describe", str(store))


LISTED = {
    "federations": "chitchat",
    "models": "leaf_cnn",
    "algorithms": "fedyogi",
    "engines": "reference",
    "partitioners": "dirichlet",
    "suites": "quickstart",
}


@pytest.mark.parametrize("kind", LISTED)
def test_list(kind: str) -> None:
    assert LISTED[kind] in call("list", kind)


def test_list_of_everything() -> None:
    listed = call("list")
    assert all(name in listed for name in LISTED.values())


def test_version_and_help() -> None:
    assert call("--version").strip() == f"fedarena {__version__}"
    assert "describe" in call("--help")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "cohrot=3"], "did you mean 'cohort'?"),
        (["run", "rounds=three"], "rounds: input should be a valid integer"),
        (["run", "rounds=-1"], "rounds: input should be greater than or equal to 1, not -1"),
        (["run", "federation=digits", "cohort=31"], "cohort is 31, but the federation 'digits' has only 30 clients"),
        (["run", "federation=digitz"], "did you mean 'digits'?"),
        (["run", "model=lstn"], "did you mean 'lstm'?"),
        (["run", "algorithm=fedavgg"], "did you mean 'fedavg'?"),
        (["run", "federation=digits", "model=lstm"], "The model 'lstm' needs a federation of text"),
        (["run", "federation=digits", "federation.partition.alpha=-1"], "federation.partition.alpha"),
        (["run", "federation=digits", "algorithm=pathlib:PurePath"], "'pathlib:PurePath' must be a subclass"),
        (["run", "missing.yaml"], "There is no file missing.yaml"),
        (["resume", "runs/none"], "runs/none is not a run folder"),
        (["report", "runs/none"], "There is no run folder runs/none"),
        (["report", "."], ". is not a run folder and holds none"),
        (["suite", "quikstart"], "did you mean 'quickstart'?"),
        (["list", "model"], "did you mean 'models'?"),
        (["describe", "digit"], "did you mean 'digits'?"),
        (["describe", "digits", "partition=dirichle"], "did you mean 'dirichlet'?"),
        (["describe", "digits", "-o", "picture.bmp"], "picture.bmp"),
        (["describe", "."], "federation.json"),
    ],
    ids=str,
)
def test_bad_input(arguments: list[str], sentence: str, in_empty_folder: Path) -> None:
    assert sentence in " ".join(call(*arguments, code=2).split())
    assert list(in_empty_folder.iterdir()) == []


@pytest.mark.parametrize("path", ["folder", "loop", "x" * 300, "/dev/null", "file/x", "~nobody-of-that-name/x.csv"])
@pytest.mark.parametrize(
    "command",
    ["run", "suite", "resume", "report", "describe", "fleet", "leaf-plot", "correlate", "data verify", "data stats"],
)
def test_paths_to_something_else(command: str, path: str) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    call(*command.split(), path, code=2)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "summary.json", "rounds.parquet"])
@pytest.mark.parametrize("content", ["", "5", "[]", "{}", "a: [", "algorithm: 5", "{" * 1000, '{"status": 5}'])
def test_damaged_run_folders(name: str, content: str, finished: Path) -> None:
    shutil.copytree(finished, "damaged")
    Path("damaged", name).write_text(content)
    assert "damaged" in call("report", "damaged", code=2)
    assert "damaged" in call("leaf-metrics", "damaged", "out", code=2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    call("run", *FAST, "name=finished", "--runs", str(folder))
    return folder / "finished"


def test_a_file_that_is_not_yaml() -> None:
    Path("bad.yaml").write_text("rounds: [1, 2")
    assert "bad.yaml is not valid YAML" in call("run", "bad.yaml", code=2)


def test_an_existing_run_is_not_overwritten() -> None:
    call("run", *FAST, "name=first")
    before = {p: p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}
    assert "exists; go on with it" in call("run", *FAST, "name=first", "rounds=5", code=2)
    assert before == {p: p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}


def test_a_damaged_store_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDARENA_CACHE", str(tmp_path / "cache"))
    call("describe", "digits")
    samples = next((tmp_path / "cache").glob("digits-*")) / "samples.arrow"
    samples.write_bytes(samples.read_bytes()[:-100])
    assert "samples.arrow" in call("run", *FAST, code=2)
    assert not Path("runs").exists()


def test_divergence_is_not_success() -> None:
    output = call("run", *FAST, "model=mlp", "local.lr=1e30", "name=wild", code=1)
    assert "The training loss became" in output
    assert json.loads(Path("runs/wild/summary.json").read_text())["status"] == "diverged"


SUITE = """
name: small
base: {federation: digits, rounds: 2, cohort: 5, model: logistic_regression, engine: reference}
matrix:
  local.lr: [0.1, 0.5]
  method:
    avg: {algorithm: fedavg}
    prox: {algorithm: fedprox, algorithm.mu: 0.5}
seeds: [0, 1]
"""


def test_suite_runs_the_whole_matrix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("suite.yaml").write_text(SUITE)
    output = call("suite", "suite.yaml")
    names = {p.name for p in Path("runs/small").iterdir() if p.is_dir()}
    assert names == {
        f"lr{lr}-{method}-seed{seed}" for lr in (0.1, 0.5) for method in ("avg", "prox") for seed in (0, 1)
    }
    assert "lr=0.1 avg" in output
    config = yaml.safe_load(Path("runs/small/lr0.5-prox-seed1/config.yaml").read_text())
    assert (config["local"]["lr"], config["algorithm"]["mu"], config["seed"]) == (0.5, 0.5, 1)
    singles = [p / "report.html" for p in Path("runs/small").iterdir() if p.is_dir()]
    assert all(single.exists() for single in singles)
    for single in singles:
        single.unlink()
    before = {p: p.stat().st_mtime_ns for p in Path("runs/small").rglob("*.parquet")}
    monkeypatch.setattr("fedarena.display.running._MOST_SINGLE_REPORTS", len(singles) - 1)
    assert "`fedarena report runs/small/…` makes a report" in call("suite", "suite.yaml")
    assert not any(single.exists() for single in singles)
    assert before == {p: p.stat().st_mtime_ns for p in Path("runs/small").rglob("*.parquet")}


def test_a_changed_suite_does_not_mix_with_its_old_runs() -> None:
    Path("suite.yaml").write_text(SUITE.replace("[0, 1]", "[0]").replace("[0.1, 0.5]", "[0.1]"))
    call("suite", "suite.yaml")
    assert "holds a run with rounds = 2 instead of 3" in call("suite", "suite.yaml", "rounds=3", code=2)


@pytest.mark.slow
def test_a_diverging_run_does_not_stop_a_suite() -> None:
    Path("suite.yaml").write_text(
        "base: {federation: digits, rounds: 2, cohort: 5, model: mlp}\nmatrix: {local.lr: [1.0e+30, 0.1]}\n"
    )
    output = call("suite", "suite.yaml", code=1)
    assert "Failed: lr1e+30-seed0: The training loss became" in " ".join(output.split())
    statuses = {p.parent.name: json.loads(p.read_text())["status"] for p in Path("runs/suite").glob("*/summary.json")}
    assert statuses == {"lr1e+30-seed0": "diverged", "lr0.1-seed0": "finished"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("matrx: {}", "a suite has no key 'matrx'; did you mean 'matrix'?"),
        ("matrix: {local.lr: 3}", "matrix.local.lr must be a list of values or labelled variants, not 3"),
        ("seeds: 3", "seeds must be a list of different numbers such as [0, 1, 2], not 3"),
        ("seeds: [1, 1]", "seeds must be a list of different numbers such as [0, 1, 2], not [1, 1]"),
        ("seeds: [true]", "seeds must be a list of different numbers"),
        ("base: {seed: 3}", "seed cannot be set for the runs of a suite; use seeds: [0, 1, 2]"),
        ("matrix: {seed: [3, 4]}", "seed cannot be set for the runs of a suite"),
        ("name: ../x", "name must be 1 to 100 printable characters"),
        ("matrix: {cohort: [2, 100]}\nbase: {federation: digits}", "cohort is 100, but the federation"),
        ("base: 3", "base must hold settings, not 3"),
        ("base: {rounds: 0}", "rounds: input should be greater than or equal to 1"),
        ("matrix: {local.lr: [0.1, 0.1]}", "two runs would be called 'lr0.1-seed0'"),
    ],
)
def test_bad_suites(content: str, sentence: str) -> None:
    Path("suite.yaml").write_text(content)
    assert sentence in " ".join(call("suite", "suite.yaml", code=2).split())
    assert not Path("runs").exists()


# --- in processes of their own --------------------------------------------------------------------------------------


def wait_for_a_round(folder: Path) -> None:
    deadline = time.monotonic() + 60
    state = folder / "checkpoint" / "state.json"
    while not state.exists() or json.loads(state.read_text())["round"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_saves_and_resume_goes_on(number: int, code: int) -> None:
    process = WarmProcess([sys.executable, "-m", "fedarena", "run", *FAST, "name=long", "rounds=100000"])
    wait_for_a_round(Path("runs/long"))
    process.send_signal(number)
    finished = process.finish(timeout=60)
    assert finished.returncode == code
    assert "fedarena resume runs/long" in finished.stderr
    summary = json.loads(Path("runs/long/summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["rounds_done"] > 0
    assert json.loads(Path("runs/long/checkpoint/state.json").read_text())["round"] == summary["rounds_done"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write here")
def test_a_read_only_folder() -> None:
    # The first run imports everything, because the other user may not be allowed to read the Python installation.
    program = """if True:
        import os, sys
        from fedarena.cli import main
        main(["run", *sys.argv[1:], "--runs", "warm"], standalone_mode=False)
        os.chmod(".", 0o555)
        os.setuid(65534)
        main(["run", *sys.argv[1:]])"""
    command = [sys.executable, "-c", program, *FAST, "name=x"]
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        environment = os.environ | {"FEDARENA_CACHE": f"{folder}/cache"}
        result = WarmProcess(command, cwd=folder, env=environment).finish()
        assert result.returncode == 1, result.stderr
        assert "Error: Cannot create the run folder runs/x: Permission denied" in result.stderr
        assert "Traceback" not in result.stderr
        assert not Path(folder, "runs").exists()


def test_a_crash_in_somebodys_own_method_is_a_failure() -> None:
    Path("mine.py").write_text(
        "from fedarena.algorithms import FedAvg\n\n\nclass Broken(FedAvg):\n"
        "    def server_step(self, state, mean_update, round):\n"
        "        if round == 3:\n            raise RuntimeError('a bug of mine')\n"
        "        return super().server_step(state, mean_update, round)\n"
    )
    command = [sys.executable, "-m", "fedarena", "run", *FAST, "rounds=9", "name=own", "algorithm=mine:Broken"]
    result = WarmProcess(command).finish()
    assert result.returncode == 1
    assert "RuntimeError: a bug of mine" in result.stderr
    summary = json.loads(Path("runs/own/summary.json").read_text())
    assert (summary["status"], summary["rounds_done"], summary["message"]) == ("failed", 2, "a bug of mine")
