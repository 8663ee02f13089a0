"""Kill -9 while a search goes on, and several processes that work on one study."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import small_studies
from small_studies import RATES, content, tune
from typer.testing import CliRunner

import warm_processes
from fedarena.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Some trials are pruned, so that deciding that is interrupted, too.
OPTIONS = {"trials": 5, "pruner": "asha"}


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_as_if_it_never_had_been(tmp_path: Path) -> None:
    tune(tmp_path / "whole", **OPTIONS)
    for number in (2, 12, 33, 64):  # the study's own file, a new trial, rounds, several trials later
        process = warm_processes.CONTEXT.Process(
            target=small_studies.tune_and_die, args=(number, tmp_path / "killed", OPTIONS)
        )
        process.start()
        process.join(100)
        assert process.exitcode == -signal.SIGKILL
    tune(tmp_path / "killed", **OPTIONS)
    assert content(tmp_path / "killed" / "small") == content(tmp_path / "whole" / "small")


@pytest.mark.slow
def test_two_processes_share_the_trials_of_one_study(tmp_path: Path) -> None:
    options = {"trials": 8, "sampler": "random", "pruner": "none", "rounds": 3}
    processes = [
        warm_processes.CONTEXT.Process(target=small_studies.tune_in_process, args=(tmp_path, options)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    done = tune(tmp_path, **options)
    assert [trial.state for trial in done.trials] == ["complete"] * 8
    assert sorted(path.name for path in done.path.glob("trial-*")) == [f"trial-{n:04d}" for n in range(8)]
    alone = tune(tmp_path / "alone", **options)
    assert [trial.configuration for trial in done.trials] == [trial.configuration for trial in alone.trials]
    assert [trial.values for trial in done.trials] == [trial.values for trial in alone.trials]


@pytest.mark.slow
def test_jobs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({**small_studies.RUN, "search": RATES, "tune": {"sampler": "random"}}))
    command = ["tune", str(file), "--trials", "4", "--jobs", "2", "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    alone = tune(tmp_path, trials=4, sampler="random")
    found = content(tmp_path / "runs" / "mine")
    assert [trial["loss"] for trial in found["trials"]] == [trial.values[0] for trial in alone.trials]
