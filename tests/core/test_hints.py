"""Sentences where people stumble: they say what was probably meant, and that works."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry, nearest
from fedarena.runs import hints
from fedarena.runs.building import prepare
from fedarena.runs.config import SECTIONS, RunConfig, resolve
from fedarena.runs.observer import Observer


@pytest.mark.parametrize(
    ("setting", "value", "meant"),
    [
        ("lr", 0.1, "local.lr"),
        ("learning_rate", 0.1, "local.lr"),
        ("epochs", 5, "local.epochs"),
        ("batch_size", 8, "local.batch_size"),
        ("batch-size", 8, "local.batch_size"),
        ("momentum", 0.9, "local.momentum"),
        ("dataset", "digits", "federation"),
        ("lr_scheduler", "cosine", "client_lr_schedule"),
        ("clients_per_round", 3, "cohort"),
        ("num_rounds", 3, "rounds"),
        ("device", "cpu", "engine.device"),
        ("ALGORITHM", "fedavg", "algorithm"),
    ],
)
def test_what_others_call_it_leads_to_the_setting(setting: str, value: object, meant: str) -> None:
    with pytest.raises(BadInputError, match=f"There is no setting '{setting}'; did you mean '{meant}'\\?"):
        resolve({setting: value})
    outer, _, inner = meant.partition(".")
    resolve({outer: {inner: value} if inner else value})  # and that is right


def test_every_hint_names_a_setting() -> None:
    for meant in hints._MEANT.values():
        outer, _, inner = meant.partition(".")
        assert outer in RunConfig.model_fields
        if outer in SECTIONS and inner:
            assert inner in [field.name for field in fields(SECTIONS[outer])]
    for section, meanings in hints._MEANT_WITHIN.items():
        assert set(meanings.values()) <= {field.name for field in fields(SECTIONS[section])}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"evaluation": {"split": "test"}}, "'evaluation.split' is called 'evaluation.part' now"),
        ({"local": {"learning_rate": 1}}, "did you mean 'local.lr'"),
        ({"seed": [0, 1]}, r"seed is one number, not \[0, 1\]; several seeds make a suite"),
        ({"seeds": [0, 1]}, "several seeds make a suite"),
        ({"rounds": [5, 10]}, r"several values make a suite, as a matrix with rounds: \[5, 10\]"),
    ],
)
def test_sentences(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        resolve(settings)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run federation digits", "write federation=digits, without spaces"),
        ("run rounds = 3", "write rounds=3, without spaces"),
        ("run federation=digits rounds 3 seed=1", "write rounds=3, without spaces"),
        ("run federation=digits rounds", "'rounds' has no value; write rounds=…"),
        ("run --rounds 3 federation=digits", "'--rounds' is not an option; settings have no dashes: rounds=3"),
        ("run federation=digits --lr 0.5", "settings have no dashes: local.lr=0.5"),
        ("suite quickstart --job 3", "There is no option '--job'; --help shows"),
        ("run federation=digits algorithm.lr=0.5", "valid: server_lr. Or do you mean the setting 'local.lr'?"),
        ("run digits", "There is no file digits, but a federation of that name; write federation=digits"),
        ("run quickstart", "write: fedarena suite quickstart"),
        ("run nowhere.yaml", "There is no file nowhere.yaml"),
        ("run suite.yaml", "write: fedarena suite suite.yaml"),
        (
            "describe nowhere",
            "There is no federation called 'nowhere' and no folder of that name; valid: amazon",
        ),
        ("run federation=digits algorithm=nowhere_mine:Own", "there is no module 'nowhere_mine' in the current folder"),
    ],
)
def test_commands(words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("suite.yaml").write_text("base: {rounds: 1}")
    call = CliRunner().invoke(main, words.split())
    assert call.exit_code == 2
    assert sentence in call.output


def test_a_suggestion_never_names_what_was_refused() -> None:
    assert "fedavg" not in nearest("fedavg", ["fedavg", "scaffold"])
    registry: Registry[object] = Registry("gadget")
    registry.register("spoon")(dict)
    for name in ("Spoon", "spooon"):
        with pytest.raises(BadInputError, match="did you mean 'spoon'"):
            registry.get(name)


def test_modules_in_the_current_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("from fedarena.algorithms import FedAvg\nclass Own(FedAvg): pass\n")
    (tmp_path / "needs_more.py").write_text("import nowhere_else\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert resolve({"algorithm": "found_here:Own"}).algorithm["name"] == "found_here:Own"
    with pytest.raises(BadInputError, match=r"No module named 'nowhere_else' \(.*needs_more\.py, line 1\)"):
        resolve({"algorithm": "needs_more:Own"})
    sys.modules.pop("found_here")


def test_one_round_is_one_round(tmp_path: Path) -> None:
    call = CliRunner().invoke(
        main, ["run", "federation=digits", "model=logistic_regression", "rounds=1", "--runs", str(tmp_path)]
    )
    assert "1 round, 0 done" in call.output
    fedarena.load(tmp_path / "digits-fedavg-seed0")


def test_settings_of_a_network_are_of_no_effect_in_a_simulation_and_that_is_said() -> None:
    settings = {"federation": "digits", "rounds": 1, "cohort": 2}
    told = prepare(resolve(settings | {"deploy": {"min_clients": 3, "max_samples": 9}}), Observer()).warnings
    about_it = next(line for line in told if "deploy" in line)
    assert about_it.startswith("deploy.min_clients and deploy.max_samples: of no effect in a simulation")
    assert not any("deploy" in line for line in prepare(resolve(settings), Observer()).warnings)


_TOLD = (
    "changes nothing",
    "no round of",
    "does not ask for",
    "asks who",
    "asks how",
    "asks candidates",
    "would be late do less, but",
)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"client_lr_schedule": "step"}, "client_lr_schedule=step changes nothing in 10 rounds"),
        ({"client_lr_schedule": "step", "horizon": 31}, None),
        ({"server_lr_schedule": {"name": "warm_up", "rounds": 50}}, "no round of 10 has more than 0.2 of the server's"),
        ({"server_lr_schedule": {"name": "warm_up", "rounds": 10}}, None),
        ({"aggregator": {"name": "mean", "rescale": True}}, "aggregator.rescale changes nothing: with fleet=ideal"),
        ({"aggregator": {"name": "median", "staleness_exponent": 1}}, "aggregator.staleness_exponent changes nothing"),
        ({"aggregator": {"name": "mean", "rescale": True}, "protocol": "staleness_aware"}, "no update is stale"),
        (
            {"aggregator": {"name": "mean", "rescale": True}, "protocol": "staleness_aware", "fleet": "uniform"},
            None,
        ),
        ({"aggregator": {"name": "mean", "rescale": True}, "protocol": "buffered", "fleet": "uniform"}, None),
        (
            {
                "aggregator": {"name": "by_age", "staleness_exponent": 1},
                "protocol": "staleness_aware",
                "fleet": "uniform",
            },
            "aggregator.staleness_exponent changes nothing: merging=surgery leaves updates their length",
        ),
        (
            {"algorithm": {"name": "fedprox", "partial_work": True}},
            "fedprox that would be late do less, but with fleet=ideal nobody is ever late: all do whole jobs",
        ),
        (
            {"algorithm": "timelyfl", "fleet": "uniform", "protocol": "buffered"},
            "protocol=buffered there is no deadline",
        ),
        ({"algorithm": {"name": "fedprox", "partial_work": True}, "fleet": "uniform", "protocol": "deadline"}, None),
        ({"algorithm": "timelyfl", "fleet": "uniform", "protocol": "readiness"}, None),
        (
            {"algorithm": {"name": "timelyfl", "whole_jobs": 0.9}, "fleet": "uniform", "protocol": "deadline"},
            "algorithm.whole_jobs changes nothing",
        ),
        ({"selector": {"name": "oort", "alpha": 5}}, "selector.alpha changes nothing: with fleet=ideal no job takes"),
        ({"selector": {"name": "oort", "alpha": 5}, "fleet": "uniform", "protocol": "synchronous"}, None),
        ({"policy": {"name": "by_speed", "usual": 7}}, "no time passes, so that everybody takes policy.usual=7 steps"),
        (
            {"policy": {"name": "fedex", "bound": 5, "judged_on": "train"}},
            "policy.bound changes nothing: it is for private runs",
        ),
        (
            {"policy": {"name": "personalized_fedex", "code_size": 3, "judged_on": "train"}},
            "policy.code_size changes nothing: with code=labels",
        ),
        (
            {"policy": {"name": "personalized_fedex", "code": "random", "code_size": 3, "judged_on": "train"}},
            None,
        ),
        ({"selector": "power_of_choice"}, "asks candidates for the loss of the current model, 2 times as many"),
        ({"selector": {"name": "power_of_choice", "losses": "latest"}}, None),
        ({"policy": "by_speed", "fleet": "uniform"}, None),
        (
            {"clock": {"leaving": "pause"}, "fleet": "uniform", "protocol": "synchronous"},
            "clock.leaving=pause changes nothing: no phone of 'uniform' ever leaves",
        ),
        (
            {"clock": {"leaving": "pause"}, "fleet": {"name": "uniform", "share": 0.9}, "protocol": "synchronous"},
            None,
        ),
        ({"selector": "leaving_soon"}, "selector=leaving_soon asks who leaves first, and with fleet=ideal"),
        ({"selector": "leaving_soon", "fleet": "fedscale", "protocol": "synchronous"}, None),
        ({"algorithm": "minibatch_sgd", "local": {"epochs": 3}}, "minibatch_sgd does not ask for local.epochs"),
        ({"algorithm": "minibatch_sgd", "local": {"steps": 3}}, "minibatch_sgd does not ask for local.steps"),
        ({"algorithm": "minibatch_sgd", "local": {"lr": 0.5}}, None),
        ({"algorithm": "local_only", "local": {"lr": 0.5}}, "local_only does not ask for local.lr"),
        ({"algorithm": "local_only", "local": {"epochs": 3}}, None),
    ],
)
def test_settings_without_an_effect_are_told(settings: dict[str, object], sentence: str | None) -> None:
    run = {"federation": "digits", "model": "logistic_regression", "rounds": 10, "cohort": 3, **settings}
    told = " ".join(prepare(resolve(run), Observer()).warnings)
    if sentence is None:
        assert not any(found in told for found in _TOLD)
    else:
        assert sentence in told
