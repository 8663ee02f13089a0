"""A search of a configuration: what it finds, that it is repeatable, and what it leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from small_studies import RATES, RUN, content, tune
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.yaml_files import read_yaml
from fedarena.display.tuning.page import write_tuning_report
from fedarena.hpo.tune import working
from fedarena.hpo.tune.outcome import TunedStudy

HELD_OUT = {"federation.train_fraction": 0.7, "federation.validation_fraction": 0.1}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    with pytest.warns(UserWarning, match="held out to judge trials by"):
        return tune(tmp_path_factory.mktemp("runs"), trials=6, pruner="asha")


@pytest.fixture(autouse=True)
def quiet(recwarn: pytest.WarningsRecorder) -> None:
    """That samples are held out is a warning, which most tests are not about."""


def test_finds_the_best_of_a_grid(tmp_path: Path) -> None:
    grid = [0.01, 0.1, 1.0, 10.0]
    by_hand = {
        rate: fedarena.run(
            RUN | HELD_OUT,
            **{"local.lr": rate, "evaluation.part": "validation"},
            runs_folder=tmp_path / "grid",
            progress=False,
        ).rounds["loss"][-1].as_py()
        for rate in grid
    }  # fmt: skip
    searched = tune(tmp_path, search={"local.lr": grid}, trials=12, pruner="none")
    best = min(by_hand, key=lambda rate: by_hand[rate])
    assert searched.best_configuration == {"local.lr": best}
    assert searched.best_value == by_hand[best]
    tried = {trial.configuration["local.lr"]: trial.values[0] for trial in searched.trials}
    assert tried.items() <= by_hand.items()
    # A repetition would give the same bits, so it is not run again.
    assert len([run for run in (tmp_path / "small").iterdir() if run.name.startswith("trial-")]) == len(tried)
    assert sum(trial.sentence is not None for trial in searched.trials) == 12 - len(tried)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes"])
def test_finds_as_good_as_a_grid_in_a_range(sampler: str, tmp_path: Path) -> None:
    grid = tune(tmp_path / "grid", search={"local.lr": [0.01, 0.1, 1.0, 10.0]}, trials=12, pruner="none")
    between = tune(tmp_path / "between", sampler=sampler, trials=20, pruner="none")
    assert grid.best_configuration == {"local.lr": 1.0}
    assert between.best_value < grid.best_value
    assert between.best_trial.number >= 5  # it learned something, and did not only draw well


def test_trials_are_runs_judged_on_validation_samples(found) -> None:
    for trial in found.trials:
        (name,) = trial.runs
        run = fedarena.load(found.path / name)
        assert run.config["local"]["lr"] == trial.configuration["local.lr"]
        assert run.evaluated_part == "validation"
        if trial.state == "complete":
            assert run.status == "finished"
            assert trial.values == (run.rounds["loss"][-1].as_py(),)
            assert trial.curve == {2: run.rounds["loss"][2].as_py(), 4: run.rounds["loss"][4].as_py()}
        else:
            assert trial.state == "pruned"
            assert run.status == "interrupted"
            assert run.summary["message"] == f"pruned by asha after round {trial.rounds} of 4"
    table = found.table()
    complete = [value for value in table["loss"].to_pylist() if value is not None]
    assert found.best_value == min(complete)
    assert table["trial"].to_pylist() == list(range(6))
    assert {"complete", "pruned"} == set(table["state"].to_pylist())


def test_the_best_file_is_the_best_trial_on_test_samples(found) -> None:
    settings = read_yaml(found.path / "best.yaml")
    assert settings == found.best
    assert settings["evaluation"]["part"] == "test"
    again = fedarena.run(found.path / "best.yaml", runs_folder=found.path.parent / "best", progress=False)
    trial = fedarena.load(found.path / found.best_trial.runs[0])
    assert again.rounds["train_loss"].equals(trial.rounds["train_loss"])
    assert not again.rounds["loss"].equals(trial.rounds["loss"])


def test_same_seed_same_trials_in_one_go_or_several(found, tmp_path: Path) -> None:
    for trials in (2, 5, 6):
        tune(tmp_path, trials=trials, pruner="asha")
    assert content(tmp_path / "small") == content(found.path)
    before = (tmp_path / "small" / "journal.log").read_bytes()
    assert tune(tmp_path, trials=6, pruner="asha").best_value == found.best_value
    assert (tmp_path / "small" / "journal.log").read_bytes() == before  # nothing was left to do


def test_another_seed_is_another_search(found, tmp_path: Path) -> None:
    other = tune(tmp_path, trials=2, tune={"seed": 1})
    assert other.trials[0].configuration != found.trials[0].configuration


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "sampler",
    ["cmaes", *(pytest.param(name, marks=pytest.mark.slow) for name in ("random", "gp", "nsga2"))],
)
def test_other_samplers_go_on_the_same(sampler: str, tmp_path: Path) -> None:
    search = RATES | {"algorithm": ["fedavg", "fedprox"], "algorithm.mu": {"from": 0.0, "to": 1.0}}
    trials = 14 if sampler == "gp" else 6  # which begins with ten at random
    options = {"search": search, "sampler": sampler, "tune": {"population": 4}, "rounds": 1, "local.steps": 1}
    one = tune(tmp_path / "one", trials=trials, **options, pruner="none")
    for number in (trials - 2, trials):
        two = tune(tmp_path / "two", trials=number, **options, pruner="none")
    assert [trial.configuration for trial in one.trials] == [trial.configuration for trial in two.trials]
    assert len({trial.configuration["local.lr"] for trial in one.trials}) >= 4
    for trial in one.trials:  # an option of a part that was not chosen is no hyperparameter of the trial
        assert ("algorithm.mu" in trial.configuration) == (trial.configuration["algorithm"] == "fedprox")


def test_mappings_can_be_chosen(tmp_path: Path) -> None:
    choices = [{"name": "fedprox", "mu": 0.5}, "fedavg"]
    done = tune(tmp_path, search={"algorithm": choices}, trials=6, rounds=1, pruner="none")
    seen = [trial.configuration["algorithm"] for trial in done.trials]
    assert all(choice in seen for choice in choices)
    names = {run.config["algorithm"]["name"] for run in fedarena.compare(tmp_path / "small")}
    assert names == {"fedprox", "fedavg"}


@pytest.mark.slow
def test_several_seeds_count_by_their_mean(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=2, seeds=2, seed=5)
    for trial in done.trials:
        runs = [fedarena.load(done.path / name) for name in trial.runs]
        assert [run.config["seed"] for run in runs] == [5, 6]
        assert trial.values[0] == pytest.approx(np.mean([run.rounds["loss"][-1].as_py() for run in runs]))
    assert done.best["seed"] == 5


@pytest.mark.slow
def test_hyperband_and_asha_are_not_median(tmp_path: Path) -> None:
    options = {"trials": 14, "rounds": 9, "evaluation.every": 1, "local.steps": 2}
    seen = {name: tune(tmp_path / name, pruner=name, **options) for name in ("none", "median", "hyperband", "asha")}
    ends = {name: tuple(trial.rounds for trial in done.trials) for name, done in seen.items()}
    assert set(ends["none"]) == {9}
    assert len(set(ends.values())) == 4
    assert {1, 3} & set(ends["asha"])  # the rungs of thirds


@pytest.mark.slow
def test_time_that_is_over_pauses_and_the_command_goes_on(
    found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"trials": 6, "pruner": "asha"}
    with pytest.raises(RunFailedError, match="is complete yet"):
        tune(tmp_path, **options, hours=1e-9)
    assert not [path for path in (tmp_path / "small").iterdir() if path.name.startswith("trial")]
    questions = iter([False, True, True])  # it is late after the first evaluation of the first trial
    with monkeypatch.context() as patch:
        patch.setattr(working.Worker, "_is_late", lambda worker: next(questions))
        with pytest.raises(RunFailedError, match="is complete yet"):
            tune(tmp_path, **options)
    paused = fedarena.load(tmp_path / "small" / "trial-0000")
    assert paused.summary["message"] == "paused because the hours of the search were over after round 2 of 4"
    tune(tmp_path, **options, hours=100.0)
    assert content(tmp_path / "small") == content(found.path)


def test_stopped_by_the_user_it_has_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance, stages = working.TrialRuns.advance_to, iter(range(5))

    def interrupted(runs, stage: int) -> None:
        if next(stages, None) is None:
            raise KeyboardInterrupt
        advance(runs, stage)

    with monkeypatch.context() as patch:
        patch.setattr(working.TrialRuns, "advance_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune(tmp_path)
    assert [trial.state for trial in TunedStudy.load(tmp_path / "small").trials] == ["complete"] * 2 + ["unfinished"]
    assert (tmp_path / "small" / "best.yaml").exists()
    assert (tmp_path / "small" / "report.html").exists()
    tune(tmp_path)
    tune(tmp_path / "whole")
    assert content(tmp_path / "small") == content(tmp_path / "whole" / "small")


def test_optuna_can_open_the_journal(found) -> None:
    backend = optuna.storages.journal.JournalFileBackend(str(found.path / "journal.log"))
    study = optuna.load_study(study_name="small", storage=optuna.storages.JournalStorage(backend))
    assert study.best_params == found.best_configuration
    assert study.best_value == found.best_value


def test_ranges_may_be_nested_or_given_with_the_command(tmp_path: Path) -> None:
    nested = tune(tmp_path / "a", search={"local": {"lr": [0.1, 0.5], "batch_size": [4]}}, trials=1, rounds=1)
    assert nested.plan.space.names == ("local.lr", "local.batch_size")
    given = tune(tmp_path / "b", trials=1, rounds=1, **{"search.local.lr": [0.5], "search.cohort": [2, 3]})
    assert given.plan.space.described() == {"local.lr": [0.5], "cohort": [2, 3]}


def test_what_is_searched_cannot_be_set_for_all_trials(tmp_path: Path) -> None:
    for given in ({"local.lr": 0.3}, {"local": {"lr": 0.3}}):
        with pytest.raises(BadInputError, match=r"local\.lr is searched, so it cannot be set for all trials"):
            tune(tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_other_scores(tmp_path: Path) -> None:
    last = tune(tmp_path / "last", trials=2, objective="accuracy", pruner="none")
    best = tune(tmp_path / "best", trials=2, objective="accuracy", pruner="none", tune={"score": "best"})
    for one, other in zip(last.trials, best.trials, strict=True):
        accuracies = fedarena.load(best.path / other.runs[0]).rounds["accuracy"].to_pylist()
        assert other.values == (max(accuracies[2], accuracies[4]),)
        assert one.values == (accuracies[4],)
    assert last.best_value == max(trial.values[0] for trial in last.trials)  # larger is better


def test_the_report(found, tmp_path: Path) -> None:
    page = (found.path / "report.html").read_text()
    for words in ("Best settings", "History", "Hyperparameters", "Trials", "best so far", "pruned by asha"):
        assert words in page
    assert f"fedarena run {found.path / 'best.yaml'}" in page
    both = tune(
        tmp_path,
        trials=6,
        search=RATES | {"local.batch_size": [4, 16]},
        objective=["accuracy", "std", "bytes_up"],
        rounds=2,
    )
    page = write_tuning_report(both).read_text()
    assert "Pareto front" in page
    assert "Importance" in page
    assert "Hyperparameters together" in page
    assert sum(both.importances().values()) == pytest.approx(1.0)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(RUN | {"search": RATES, "tune": {"trials": 3, "sampler": "random"}}))
    command = ["tune", str(file), "--runs", str(tmp_path / "runs"), "rounds=1", "tune.pruner=none"]
    result = CliRunner().invoke(main, [*command, "--trials", "2", "--objective", "accuracy"])
    assert result.exit_code == 0, result.output
    assert "Trial" in result.output
    assert "local.lr" in result.output
    folder = tmp_path / "runs" / "mine"
    assert f"fedarena run {folder / 'best.yaml'}" in result.output
    assert len(list(folder.glob("trial-*"))) == 2
    assert read_yaml(folder / "study.yaml")["tune"]["sampler"] == "random"
    again = CliRunner().invoke(main, [*command, "--objective", "accuracy"])  # as many as the file says
    assert again.exit_code == 0
    assert "2 of 3 trials are done, best accuracy" in again.output
    assert math.isfinite(json.loads((folder / "trial-0002" / "summary.json").read_text())["final"]["accuracy"])
    ran = CliRunner().invoke(main, ["run", str(file)])
    assert ran.exit_code == 2
    assert "fedarena tune" in ran.output


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(BadInputError, match=r"pip install 'fedarena\[hpo\]'"):
        tune(tmp_path)
