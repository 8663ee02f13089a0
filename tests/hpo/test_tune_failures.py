"""Bad input is refused before the first trial; a trial that fails stops no other; nothing finished is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_studies import RATES, RUN, content, tune
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError, RunFailedError
from fedarena.hpo.tune import working
from fedarena.hpo.tune.outcome import TunedStudy
from fedarena.hpo.tune.storage import read_study

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
_CREATE_TRIAL = 4  # of the operations in a journal of Optuna
FAILING = {"algorithm": "small_studies:Fails", "search": {"algorithm.strength": [0.0, 1.0]}}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"search": None}, "nothing to search.*search: {local.lr: {from: 0.01"),
        ({"search": {}}, "search: must name settings"),
        ({"search": {"local.lr": 3}}, "must be a list of values"),
        ({"search": {"local.lrr": [1.0]}}, "search: local.lrr = 1.0 does not work: There is no setting 'local.lrr'"),
        ({"search": {"local.lr": {"from": -1.0, "to": 1.0}}}, "search: local.lr = -1.0 does not work"),
        ({"search": {"algorithm": ["fedavg", "fedavgg"]}}, "search: algorithm = 'fedavgg' does not work.*fedavg"),
        ({"search": {"algorithm": ["fedavg"], "algorithm.mu": [1.0]}}, "algorithm.mu means nothing"),
        ({"search": {"algorithm.mu": [1.0]}}, "algorithm.mu = 1.0 does not work.*has no option 'mu'"),
        ({"search": {"seed": [1, 2]}}, "a seed is no hyperparameter"),
        ({"search": {"evaluation.every": [1, 2]}}, "evaluated alike"),
        ({"search": {"federation.partition.clients": [10, 20]}}, "on the same samples"),
        ({"trials": 0}, "tune.trials: .*greater than or equal to 1"),
        ({"trials": True}, "tune.trials: .*not True"),
        ({"sampler": "tpr"}, "tune.sampler: .*'tpe'"),
        ({"pruner": "mean"}, "tune.pruner: .*'median'"),
        ({"tune": {"trails": 5}}, "no option 'trails'; did you mean 'trials'"),
        ({"objective": "acuracy"}, "no objective 'acuracy'; did you mean 'accuracy'"),
        ({"objective": []}, "tune.objective must name"),
        ({"objective": ["loss", "loss"]}, "each once"),
        ({"objective": "epsilon"}, "epsilon is known of private runs alone"),
        ({"objective": "virtual_hours"}, "where there is a fleet"),
        ({"objective": ["loss", "accuracy"], "pruner": "median"}, "is for one objective"),
        ({"objective": ["loss", "accuracy"], "sampler": "cmaes"}, "is for one objective"),
        ({"constraints": "epsilon < 8"}, "written like 'epsilon <= 8'"),
        ({"constraints": "accuracy >= much"}, "written like 'epsilon <= 8'"),
        ({"seeds": [1, 1]}, "all different"),
        ({"seeds": 0}, "tune.seeds"),
        ({"hours": 0}, "tune.hours"),
        ({"storage": "mysql://x"}, "tune.storage must be the address of an SQLite file"),
        ({"name": "a/b"}, "without slashes"),
        ({"tune": {"hold_out": 0.9}}, "cannot be taken from the 0.8 for training"),
        ({"cohort": 1000}, "cohort is 1000, but"),
        ({"fleet": "nowhere"}, "^There is no fleet called 'nowhere'"),
    ],
)
def test_bad_input(options: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=sentence):
        tune(tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_settings_that_do_not_always_fit_each_other_are_searched(tmp_path: Path) -> None:
    search = {"local.optimizer": ["adam", "sgd"], "local.momentum": [0.9, 0.0]}
    done = tune(tmp_path, search=search, trials=8, rounds=1, pruner="none")
    for trial in done.trials:
        fits = trial.configuration["local.optimizer"] == "sgd" or not trial.configuration["local.momentum"]
        assert trial.state == ("complete" if fits else "failed")
        assert fits or trial.sentence == "local: momentum is for the optimizer sgd, not for adam"
    assert {"complete", "failed"} == {trial.state for trial in done.trials}


def test_a_federation_without_validation_samples(make_federation, tmp_path: Path) -> None:
    clients = {str(n): (np.eye(4, dtype=np.float32), np.arange(4) % 2) for n in range(3)}
    federation = make_federation(clients, classes=2)
    settings = {"federation": federation, "model": "logistic_regression", "cohort": 2, "rounds": 1}
    options = {"search": RATES, "trials": 1, "runs_folder": tmp_path / "runs", "progress": False}
    with pytest.raises(BadInputError, match="has no validation samples to judge trials by; make it with some, or say"):
        fedarena.tune(settings, **options)
    with pytest.warns(UserWarning, match="judged by test samples"):
        done = fedarena.tune(settings, tune={"part": "test"}, **options)
    assert fedarena.load(done.path / "trial-0000").evaluated_part == "test"


def test_validation_samples_that_are_there_are_used(tmp_path: Path) -> None:
    federation = RUN["federation"] | {"train_fraction": 0.6, "validation_fraction": 0.2}
    done = tune(tmp_path, trials=1, federation=federation, rounds=1)
    assert done.plan.held_out == {}
    assert done.best["federation"]["validation_fraction"] == 0.2


def test_trials_that_fail_stop_no_other(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=6, **FAILING)
    assert {(trial.configuration["algorithm.strength"], trial.state) for trial in done.trials} == {
        (0.0, "complete"),
        (1.0, "failed"),
    }
    assert {trial.sentence for trial in done.trials if trial.state == "failed"} == {"ZeroDivisionError: a bug"}
    assert "ZeroDivisionError: a bug" in (done.path / "report.html").read_text()
    assert done.best_configuration == {"algorithm.strength": 0.0}


def test_divergence_is_a_failure_with_its_sentence(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=6, search={"local.lr": [0.1, 3e38]}, pruner="none")
    failed = [trial for trial in done.trials if trial.state == "failed"]
    assert failed
    for trial in failed:
        assert trial.configuration == {"local.lr": 3e38}
        assert "A smaller learning rate usually helps" in str(trial.sentence)
        assert fedarena.load(done.path / trial.runs[0]).status == "diverged"


def test_if_all_fail_so_does_the_command(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(json.dumps({**RUN, "algorithm": "small_studies:Fails", "search": {"algorithm.strength": [0.9]}}))
    result = CliRunner().invoke(main, ["tune", str(file), "--trials", "2", "--runs", str(tmp_path / "runs")])
    assert result.exit_code == 1
    assert "trial 0: failed: ZeroDivisionError: a bug" in result.output
    assert "All 2 trials that ended failed" in result.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"search": {"local.lr": {"from": 0.001, "to": 10.0, "log": True}}}, "a study of another space: local.lr is"),
        ({"rounds": 3}, "a study of another configuration: rounds is 4 there, not 3"),
        ({"objective": "accuracy"}, r"with tune.objective = \['loss'\], not \['accuracy'\]"),
        ({"sampler": "random"}, "with tune.sampler = 'tpe', not 'random'"),
    ],
)
def test_another_study_in_the_same_folder(options: dict, sentence: str, tmp_path: Path) -> None:
    tune(tmp_path, trials=1)
    before = content(tmp_path / "small")
    with pytest.raises(BadInputError, match=sentence):
        tune(tmp_path, **options)
    assert content(tmp_path / "small") == before


def test_a_folder_that_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "small" / "trial-0000").mkdir(parents=True)
    with pytest.raises(BadInputError, match="is no study and is not empty"):
        tune(tmp_path)
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["trial-0000"]


def test_other_source_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "from fedarena.algorithms import FedAvg\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "own_method_to_tune.py").write_text(source)
    options = {"algorithm": "own_method_to_tune:Mine", "trials": 1, "rounds": 1}
    tune(tmp_path / "runs", **options)
    (tmp_path / "own_method_to_tune.py").write_text(source + "# changed\n")
    monkeypatch.delitem(__import__("sys").modules, "own_method_to_tune")
    with pytest.raises(BadInputError, match=r"own_method_to_tune.py changed since"):
        tune(tmp_path / "runs", **options)


def test_half_a_line_of_a_killed_process_is_dropped(tmp_path: Path) -> None:
    tune(tmp_path, trials=2)
    journal = tmp_path / "small" / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":5,"worker')
    assert len(tune(tmp_path, trials=3).trials) == 3


def test_a_damaged_study_is_named(tmp_path: Path) -> None:
    tune(tmp_path, trials=1)
    journal, study = tmp_path / "small" / "journal.log", tmp_path / "small" / "study.yaml"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:30] + b"\n" + whole[30:])
    with pytest.raises(DamagedFileError, match=r"journal.log is damaged"):
        tune(tmp_path, trials=2)
    for line in (b"something else\n", b"\n", b"\n\n"):
        journal.write_bytes(whole + line)
        with pytest.raises(DamagedFileError, match=r"journal.log is damaged: its line \d+ is no JSON"):
            tune(tmp_path, trials=2)
    score = re.search(rb'"values":\[(\d+)\.', whole)
    assert score is not None
    journal.write_bytes(whole[: score.start(1)] + b"99" + whole[score.end(1) :])
    with pytest.raises(DamagedFileError, match=r"journal.log is damaged: .* is not what was written"):
        tune(tmp_path, trials=2)
    _without_seals(journal)
    with pytest.raises(DamagedFileError, match=r"journal.log is damaged: what trial 0 came to was changed"):
        tune(tmp_path, trials=2)
    journal.write_bytes(whole)
    study.write_text("name: small\n")
    with pytest.raises(DamagedFileError, match=r"study.yaml is damaged"):
        tune(tmp_path, trials=2)


def _without_seals(journal: Path) -> None:
    """A journal as earlier versions wrote it, or another program does."""
    journal.write_bytes(re.sub(rb',"fedarena_seal":"[^"]*"', b"", journal.read_bytes()))


def test_a_journal_is_what_was_written(tmp_path: Path) -> None:
    """Whatever line is lost, written twice, in another place or another one; only what is last can get lost."""
    done = tune(tmp_path, trials=2, rounds=1)
    journal = done.path / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    wrong = [[*lines, *lines]]
    for place in range(len(lines) - 1):
        before, line, after = lines[:place], lines[place], lines[place + 1 :]
        wrong += [[*before, *after], [*before, line, line, *after], [*before, after[0], line, *after[1:]]]
        wrong += [[*before, line.replace(b'":', b'2":', 1), *after]]
    for changed in wrong:
        journal.write_bytes(b"".join(changed))
        with pytest.raises(DamagedFileError, match=r"journal.log is damaged: .* is not what was written"):
            TunedStudy.load(done.path)
    journal.write_bytes(b"".join(lines).replace(b"\n", b"\r\n"))
    assert TunedStudy.load(done.path).table() == done.table()


def test_lines_of_other_programs_and_versions_are_sealed_by_those_that_follow(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=1, rounds=1)
    journal = done.path / "journal.log"
    _without_seals(journal)
    note = b'{"op_code":2,"worker_id":"dashboard","study_id":0,"user_attr":{"note":"good"}}\n'
    journal.write_bytes(journal.read_bytes() + note)
    assert tune(tmp_path, trials=2, rounds=1).study.user_attrs["note"] == "good"
    whole = journal.read_bytes()
    for changed in (whole.replace(b"good", b"poor"), whole.replace(b'"op_code":6,', b'"op_code":7,', 1)):
        assert changed != whole
        journal.write_bytes(changed)
        with pytest.raises(DamagedFileError, match=r"journal.log is damaged: .* is not what was written"):
            TunedStudy.load(done.path)


def test_half_a_line_that_another_process_leaves_meanwhile_is_dropped(tmp_path: Path) -> None:
    """As on a full disk, on which there is room again for the next line."""
    done = tune(tmp_path, trials=1, rounds=1)
    with (done.path / "journal.log").open("ab") as file:
        file.write(b'{"op_code":5,"worker')
    done.study.set_user_attr("note", "good")
    assert TunedStudy.load(done.path).study.user_attrs["note"] == "good"
    (done.path / "journal.log").write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"journal.log was cut off or replaced"):
        done.study.set_user_attr("note", "better")


def _without_seal(study: Path) -> dict:
    """A study's file as earlier versions wrote it."""
    described = yaml.safe_load(study.read_text())
    described.pop("seal", None)
    study.write_text(yaml.safe_dump(described))
    return described


def test_a_changed_digit_of_what_a_study_is_gets_noticed(tmp_path: Path) -> None:
    study = tune(tmp_path, trials=1, seeds=[3, 4]).path / "study.yaml"
    whole = study.read_text()
    for before, after in (("- 4\n", "- 5\n"), ("_better: false", "_better: true"), ("\nseal: ", "\nsea1: ")):
        assert before in whole
        study.write_text(after.join(whole.rsplit(before, 1)))
        with pytest.raises(DamagedFileError, match=r"study.yaml is damaged"):
            read_study(study.parent)
    study.write_text(whole.replace("\n", "\r\n"))
    assert len(tune(tmp_path, trials=2, seeds=[3, 4]).trials) == 2


@pytest.mark.parametrize(
    "damage",
    [
        *({"data": data} for data in (["federation"], None, {}, {"colour": "red"})),
        {"held_out": "x"},
        {"own_source": {"filet": {}, "fingerprints": {}, "unknown": []}},
        {"seeds": []},
        {"seeds": ["3"]},
        {"judged_by": []},
        {"settings": None},
        {"objectives": [{"info": {"name": "loss", "label": "loss", "decimals": "x"}, "kind": "metric", "metric": ""}]},
        {"objectives": [{"info": {"name": "loss", "labe1": "loss"}, "kind": "metric", "metric": ""}]},
    ],
    ids=str,
)
def test_a_study_of_an_earlier_version_is_read_unless_it_says_nonsense(tmp_path: Path, damage: dict) -> None:
    study = tune(tmp_path, trials=1, rounds=1).path / "study.yaml"
    described = _without_seal(study)
    assert len(tune(tmp_path, trials=2, rounds=1).trials) == 2
    study.write_text(yaml.safe_dump({**described, **damage}))
    with pytest.raises(DamagedFileError, match=r"study.yaml is damaged"):
        tune(tmp_path, trials=3, rounds=1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seeds": [1]}, r"with the seeds \[1\], not \[0\]"),
        ({"judged_by": ["accuracy"]}, "with the objectives .*most accuracy.*, not .*least loss"),
    ],
)
def test_a_study_of_an_earlier_version_must_be_judged_as_it_was(tmp_path: Path, change: dict, sentence: str) -> None:
    options = {"trials": 1, "rounds": 1, "constraints": "accuracy >= 0.1"}
    study = tune(tmp_path, **options).path / "study.yaml"
    study.write_text(yaml.safe_dump({**_without_seal(study), **change}))
    with pytest.raises(BadInputError, match=sentence):
        tune(tmp_path, **options)


def test_a_journal_that_maximizes_what_the_study_minimizes_is_refused(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=1, rounds=1)
    journal = done.path / "journal.log"
    whole = journal.read_text()
    assert '"directions":[1]' in whole
    journal.write_text(whole.replace('"directions":[1]', '"directions":[2]'))
    _without_seals(journal)
    for use in (lambda: tune(tmp_path, trials=2, rounds=1), lambda: TunedStudy.load(done.path)):
        with pytest.raises(DamagedFileError, match=r"journal.log is damaged: its study does not minimize"):
            use()


def test_a_study_whose_journal_is_gone_does_not_begin_anew_without_a_word(tmp_path: Path) -> None:
    tune(tmp_path, trials=1)
    journal = tmp_path / "small" / "journal.log"
    whole = journal.read_bytes()
    journal.unlink()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=r"journal.log is gone or was begun anew: .*trial-0000 is one"):
            tune(tmp_path, trials=2)
    journal.write_bytes(whole)
    assert len(tune(tmp_path, trials=2).trials) == 2


@pytest.mark.parametrize("name", ["study.yaml", "journal.log"])
def test_nobody_waits_for_a_pipe(name: str, tmp_path: Path) -> None:
    done = tune(tmp_path, trials=1, rounds=1)
    (done.path / name).unlink()
    os.mkfifo(done.path / name)
    with pytest.raises(DamagedFileError, match=rf"{name} .*neither a file nor a folder"):
        TunedStudy.load(done.path)


def _forget_the_second_trial(journal: Path) -> None:
    """As if an older journal had been put back."""
    lines = journal.read_bytes().splitlines(keepends=True)
    second = [number for number, line in enumerate(lines) if json.loads(line)["op_code"] == _CREATE_TRIAL][1]
    journal.write_bytes(b"".join(lines[:second]))


@pytest.mark.parametrize("rounds", [2, 4])  # of 4
def test_the_folder_of_other_hyperparameters_is_not_taken_for_that_of_a_trial(tmp_path: Path, rounds: int) -> None:
    done = tune(tmp_path, trials=2, sampler="random")
    folder = done.path / "trial-0001"
    config = fedarena.load(folder).config
    _forget_the_second_trial(done.path / "journal.log")
    shutil.rmtree(folder)
    fedarena.open({**config, "local": {**config["local"], "lr": 0.5}}, runs_folder=done.path).advance(rounds).close()
    with pytest.raises(DamagedFileError, match=r"trial-0001 holds a run with local.lr = 0.5 instead of .*remove that"):
        tune(tmp_path, trials=2, sampler="random")
    shutil.rmtree(folder)
    again = tune(tmp_path, trials=2, sampler="random")
    assert again.table().drop_columns(["seconds"]) == done.table().drop_columns(["seconds"])


def test_the_folder_of_the_same_hyperparameters_is_the_result_of_a_trial(tmp_path: Path) -> None:
    done = tune(tmp_path, trials=2, sampler="random")
    began = (done.path / "trial-0001" / "environment.json").read_bytes()
    _forget_the_second_trial(done.path / "journal.log")
    again = tune(tmp_path, trials=2, sampler="random")
    assert again.table().drop_columns(["seconds"]) == done.table().drop_columns(["seconds"])
    assert [trial.curve for trial in again.trials] == [trial.curve for trial in done.trials]  # pruners look at them
    assert (done.path / "trial-0001" / "environment.json").read_bytes() == began


def test_a_trial_that_kills_its_process_fails_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(self, claimed):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(working.Worker, "_run", die)
        for _ in range(working._MOST_DEATHS + 1):
            with pytest.raises(Killed):
                tune(tmp_path, trials=2)
    done = tune(tmp_path, trials=2)
    assert [trial.state for trial in done.trials] == ["failed", "complete"]
    assert "its process died 3 times" in str(done.trials[0].sentence)


@pytest.mark.slow
def test_sqlite_by_its_address(tmp_path: Path) -> None:
    import optuna

    address = f"sqlite:///{tmp_path / 'study.db'}"
    tune(tmp_path, trials=2, storage=address)
    done = tune(tmp_path, trials=3, storage=address)
    assert not (done.path / "journal.log").exists()
    kept = optuna.load_study(study_name="small", storage=address)
    assert [trial.value for trial in kept.trials] == [trial.values[0] for trial in done.trials]
    with pytest.raises(BadInputError, match="holds a study called 'small' already, which is not that of"):
        tune(tmp_path / "elsewhere", trials=3, storage=address)
    plain = tune(tmp_path / "journal", trials=3)
    assert [trial.values for trial in plain.trials] == [trial.values for trial in done.trials]
    with pytest.raises(BadInputError, match="there is no folder"):
        tune(tmp_path, name="other", storage=f"sqlite:///{tmp_path / 'nowhere' / 'study.db'}")


def test_a_full_disk_ends_the_search_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(tmp_path, trials=1)

    def full(self, stage):
        raise RunFailedError("Cannot write")

    with monkeypatch.context() as patch:
        patch.setattr(working.TrialRuns, "advance_to", full)
        with pytest.raises(RunFailedError, match="Cannot write"):
            tune(tmp_path, trials=3)
    done = tune(tmp_path, trials=3)
    assert [trial.state for trial in done.trials] == ["complete"] * 3
