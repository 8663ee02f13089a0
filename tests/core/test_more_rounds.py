"""More rounds for a run: the same bits as if it had had them from the start, or a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_runs import SMALL, config, content
from typer.testing import CliRunner

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.runs.run import Run, resume_run, start_run

QUICK = {"engine": "reference", "rounds": 4, "evaluation.every": 3}
PHONES = {"fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}, "protocol": "buffered"}


def quick(**settings):
    return config(**{**QUICK, **settings})


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "ditto"},
        {**PHONES, "protocol": {"name": "buffered", "buffer_size": 3}, "algorithm": "scaffold"},
        {"training": "centralized", "cohort": None},
        {"training": "iid", "selector": "oort"},
        {"client_lr_schedule": "cosine", "horizon": 9},
        {"client_lr_schedule": "exponential"},
        {"evaluation.every": 2, "evaluation.training_set": True},
    ],
    ids=["fedyogi", "ditto", "buffered", "centralized", "oort", "horizon", "exponential", "evaluated"],
)
def test_the_same_bits_as_from_the_start(tmp_path: Path, settings) -> None:
    start_run(quick(**settings, rounds=9), tmp_path / "one go")
    start_run(quick(**settings), tmp_path)
    resume_run(tmp_path / "small", rounds=9)
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")
    assert json.loads((tmp_path / "small" / "environment.json").read_text())["rounds_before"] == [4]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fedavg", "secure_aggregation": {"name": "bonawitz", "range": 0.02}},
        {"edges": {"name": "by_chance", "number": 3}},
        {"algorithm": "fedbn", "model": "mlp"},
    ],
    ids=["secure sums", "edges", "personal models"],
)
def test_the_round_that_was_the_last_one_loses_its_scores_alone(tmp_path: Path, settings) -> None:
    start_run(quick(**settings, rounds=5), tmp_path / "one go")
    start_run(quick(**settings), tmp_path)
    resume_run(tmp_path / "small", rounds=5)
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")


@pytest.mark.filterwarnings("ignore:Privacy")
@pytest.mark.parametrize("formula", ["paper", "fedhpo"])
def test_noise_that_follows_from_the_number_of_rounds_allows_no_more_of_them(tmp_path: Path, formula: str) -> None:
    start_run(quick(algorithm="fedavg", privacy={"name": "nbafl", "formula": formula}), tmp_path)
    before = content(tmp_path / "small")
    with pytest.raises(BadInputError, match="has the noise that 4 rounds need, so the run cannot have 9 instead"):
        resume_run(tmp_path / "small", rounds=9)
    assert content(tmp_path / "small") == before


def test_runs_that_were_stopped_can_have_more(tmp_path: Path) -> None:
    start_run(quick(rounds=9), tmp_path / "one go")
    Run.create(quick(), tmp_path).advance(2).close()
    with fedarena.open(tmp_path / "small", rounds=7) as run:
        assert run.advance().round == 7
    assert fedarena.resume(tmp_path / "small", rounds=9, progress=False).status == "finished"
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")


def test_from_the_command_line(tmp_path: Path) -> None:
    start_run(quick(), tmp_path)
    folder = str(tmp_path / "small")
    call = CliRunner().invoke(main, ["resume", folder, "rounds=6"])
    assert call.exit_code == 0, call.output
    assert fedarena.load(folder).summary["rounds_done"] == 6
    assert CliRunner().invoke(main, ["resume", folder, "rounds=6"]).exit_code == 0  # nothing to do
    for arguments, sentence in (
        (["rounds=3"], "has 6 rounds; give more, not 3"),
        (["rounds=many"], "rounds: input should be a valid integer"),
        (["local.lr=1"], "local.lr of a run that is there cannot be changed, only rounds"),
    ):
        refused = CliRunner().invoke(main, ["resume", folder, *arguments])
        assert refused.exit_code == 2
        assert sentence in refused.output


def test_what_is_refused_because_of_the_engine_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    start_run(quick(), tmp_path)
    before = content(tmp_path / "small")
    for call in (resume_run, Run.reopen):
        with pytest.raises(BadInputError, match="Only a run with engine=ray"):
            call(tmp_path / "small", rounds=9, elsewhere={"workers": 2})
        assert content(tmp_path / "small") == before


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("engine=cohort", "Only a run with engine=ray can go on elsewhere"),
        ("engine.workers=1", "Only a run with engine=ray can go on elsewhere"),
        ("rounds=4.0", "rounds: input should be a valid integer, not 4.0"),
        ("rounds=", "rounds= says nothing; give it a value, or leave it out"),
        ("engine=", "engine= says nothing; give it a value, or leave it out"),
    ],
)
@pytest.mark.parametrize("rounds_done", [2, 4])
def test_a_finished_run_refuses_the_same_settings_as_one_that_goes_on(
    tmp_path: Path, setting: str, sentence: str, rounds_done: int
) -> None:
    Run.create(quick(), tmp_path).advance(rounds_done).close()
    refused = CliRunner().invoke(main, ["resume", str(tmp_path / "small"), setting])
    assert refused.exit_code == 2
    assert sentence in refused.output
    assert fedarena.load(tmp_path / "small").summary["rounds_done"] == rounds_done


class Slower(FedAvg):
    """Looks at how long the run is meant to be."""

    def prepare(self, population, local, horizon=1):
        super().prepare(population, local, horizon)
        self.pace = 1 / horizon


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"client_lr_schedule": "cosine"}, r"client_lr_schedule \(cosine\) goes by the length of a run"),
        ({"algorithm": "fedkd"}, "The algorithm fedkd goes by the length of a run"),
        ({"algorithm": Slower}, "Slower goes by the length of a run"),
        ({"callbacks": {"name": "target", "level": 0.01}}, "ended after 0 rounds: stopped early"),
        ({**PHONES, "protocol": "synchronous", "clock.hours": 1e-4}, "its hours of virtual time were over"),
    ],
)
def test_what_would_have_been_another_run_is_refused(tmp_path: Path, settings, sentence: str) -> None:
    start_run(quick(**settings), tmp_path)
    before = content(tmp_path / "small")
    with pytest.raises(BadInputError, match=sentence):
        resume_run(tmp_path / "small", rounds=9)
    assert content(tmp_path / "small") == before
    assert fedarena.load(tmp_path / "small").status == "finished"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moved", [0, 1, 3, 5])
def test_a_crash_leaves_the_old_run_or_the_longer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    start_run(quick(rounds=9), tmp_path / "one go")
    start_run(quick(), tmp_path)

    class Crash(BaseException):
        pass

    replace, left = os.replace, moved

    def failing(source, target):
        nonlocal left
        if Path(source).parent.name == "changes" and not Path(source).name.startswith("."):
            if left == 0:
                raise Crash
            left -= 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(Crash):
            resume_run(tmp_path / "small", rounds=9)
    assert fedarena.load(tmp_path / "small").summary["rounds"] == 9
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")
    assert not (tmp_path / "small" / "checkpoint" / "changes").exists()


def test_a_crash_before_all_is_written_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_run(quick(), tmp_path)
    before = content(tmp_path / "small")
    with monkeypatch.context() as patch:
        patch.setattr("fedarena.storage.changes._READY", "nowhere/ready")
        with pytest.raises(Exception):  # noqa: B017, PT011
            resume_run(tmp_path / "small", rounds=9)
    assert content(tmp_path / "small") == before
    assert fedarena.load(tmp_path / "small").status == "finished"
    assert resume_run(tmp_path / "small", rounds=9).summary["rounds_done"] == 9


def test_open_takes_no_other_settings_of_a_run_that_is_there(tmp_path: Path) -> None:
    start_run(quick(), tmp_path)
    with pytest.raises(BadInputError, match="cohort of a run that is already there cannot be changed"):
        fedarena.open(tmp_path / "small", cohort=3)
    with pytest.raises(BadInputError, match="There is no run folder and no file"):
        fedarena.open(tmp_path / "nowhere")
    assert SMALL["rounds"] != 9
