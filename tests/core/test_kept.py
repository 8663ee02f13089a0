"""What a run keeps beside its tables: the best model, clients' own models, predictions for every sample."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import SMALL, StopAfter, config, content, interrupt
from typer.testing import CliRunner

import fedarena
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError, RunFailedError
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.storage.run_files import RunFiles

# A rate that is too high, so that the best model is not the last one.
ROUGH = {"engine": "reference", "rounds": 12, "evaluation.every": 2, "local.lr": 60.0, "keep": "best", "seed": 1}


def rough(**settings):
    return config(**{**ROUGH, **settings})


def accuracy(model: torch.nn.Module, federation: fedarena.Federation) -> float:
    clients = federation.clients("all")
    samples = federation.samples(clients[federation.counts(clients, "test") > 0], "test").columns
    with torch.no_grad():
        scores = model(torch.from_numpy(samples["x"]).float() / (255 if samples["x"].dtype == np.uint8 else 1))
    return float((scores.argmax(1).numpy() == samples["y"]).mean())


def test_the_best_model_is_the_one_of_the_best_round(tmp_path: Path) -> None:
    start_run(rough(), tmp_path)
    result = fedarena.load(tmp_path / "small")
    best, final = result.summary["best"], result.summary["final"]
    assert best["accuracy"] > final["accuracy"]
    assert best["round"] < 12
    federation = fedarena.load_federation(result.config["federation"])
    assert accuracy(result.model("best"), federation) == pytest.approx(best["accuracy"], abs=1e-6)
    assert accuracy(result.model(), federation) == pytest.approx(final["accuracy"], abs=1e-6)
    path = tmp_path / "best.safetensors"
    call = CliRunner().invoke(main, ["export", "--best", str(tmp_path / "small"), str(path)])
    assert call.exit_code == 0, call.output
    found, expected = safetensors.torch.load_file(path), result.state_dict("best")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [p.name for p in (tmp_path / "small" / "checkpoint").glob("best-*")] == [f"best-{best['round']}.safetensors"]


def test_the_best_survives_interruptions_and_more_rounds(tmp_path: Path) -> None:
    start_run(rough(), tmp_path / "one go")
    with pytest.raises(KeyboardInterrupt):
        start_run(rough(rounds=8), tmp_path, StopAfter(3, interrupt))
    resume_run(tmp_path / "small")
    resume_run(tmp_path / "small", rounds=12)
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")
    one, other = (fedarena.load(folder / "small").state_dict("best") for folder in (tmp_path, tmp_path / "one go"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:100])])
def test_a_run_whose_best_model_is_lost_does_not_go_on(tmp_path: Path, damage) -> None:
    start_run(rough(rounds=4), tmp_path)
    (best,) = (tmp_path / "small" / "checkpoint").glob("best-*")
    damage(best)
    with pytest.raises(DamagedFileError, match=best.name):
        resume_run(tmp_path / "small", rounds=6)


def test_a_full_disk_does_not_make_a_run_seem_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "manifest.json")

    start_run(rough(rounds=4), tmp_path)
    monkeypatch.setattr(RunFiles, "reopen", full)
    with pytest.raises(RunFailedError, match=r"No space left on device\. On disk: all rounds up to 4;"):
        resume_run(tmp_path / "small", rounds=6)


def test_a_fork_takes_the_best_along(tmp_path: Path) -> None:
    run = Run.create(rough(), tmp_path).advance(8)
    fork = run.fork({"local.lr": 1e-6}, name="fork").advance()
    for one in (run, fork):
        one.close()
    before = [row for row in fedarena.load(tmp_path / "fork").rounds.to_pylist() if row["accuracy"] is not None]
    best = max(before, key=lambda row: row["accuracy"])
    assert best["round"] <= 8
    federation = fedarena.load_federation(SMALL["federation"])
    assert accuracy(fedarena.load(tmp_path / "fork").model("best"), federation) == pytest.approx(best["accuracy"])


def test_what_was_not_kept_is_told(tmp_path: Path) -> None:
    result = fedarena.run({**SMALL, "rounds": 1}, runs_folder=tmp_path, progress=False)
    with pytest.raises(BadInputError, match="did not keep its best model; run it with keep=best"):
        result.model("best")
    with pytest.raises(BadInputError, match="has no predictions"):
        result.predictions  # noqa: B018
    with pytest.raises(BadInputError, match="fedyogi has no models of clients"):
        result.model(client="0")


def test_a_damaged_best_model_is_refused(tmp_path: Path) -> None:
    start_run(rough(rounds=2), tmp_path)
    (path,) = (tmp_path / "small" / "checkpoint").glob("best-*")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFileError, match=path.name):
        fedarena.load(tmp_path / "small").model("best")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", ["ditto", "reptile", "local_only", "fedbn"])
@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_clients_own_model_scores_what_was_recorded(tmp_path: Path, algorithm, engine: str) -> None:
    if algorithm == "local_only":  # of which clients choose the second model
        algorithm = {"name": algorithm, "learning_rates": [1e-6, 0.1]}
    settings = {"algorithm": algorithm, "engine": engine, "rounds": 2, "evaluation.every": 2, "model": "mlp"}
    settings |= {"local.steps": 3}  # of every client as many, so that the cohort engine records one program
    start_run(config(**settings, cohort=20), tmp_path)  # everybody takes part
    result = fedarena.load(tmp_path / "small")
    federation = fedarena.load_federation(result.config["federation"])
    recorded = [row for row in result.clients.to_pylist() if row["round"] == 2 and row["personal_accuracy"] is not None]
    ids = federation.client_ids(np.arange(federation.num_clients))
    for row in recorded[:3]:
        own = result.model(client=row["client"])
        samples = federation.samples(np.array([ids.index(row["client"])]), "test").columns
        with torch.no_grad():
            scores = own(torch.from_numpy(samples["x"]).float() / (255 if samples["x"].dtype == np.uint8 else 1))
        assert float((scores.argmax(1).numpy() == samples["y"]).mean()) == pytest.approx(row["personal_accuracy"])
    states = [result.state_dict(client=row["client"]) for row in recorded[:2]]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(BadInputError, match="There is no client 'nobody'"):
        result.model(client="nobody")


PREDICTED = {
    "digits": ({"federation": "digits", "model": "logistic_regression"}, "accuracy"),
    "shapes_tags": ({"federation": "shapes_tags", "cohort": 3}, "micro_f1"),
    "diabetes": ({"federation": "diabetes", "model": "linear"}, "rmse"),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_come_to_the_scores(tmp_path: Path, name: str) -> None:
    settings, metric = PREDICTED[name]
    settings = {**settings, "name": name, "rounds": 2, "local.steps": 2, "evaluation.predictions": True}
    result = fedarena.run(merge({}, settings), runs_folder=tmp_path, progress=False)
    table = result.predictions
    assert len(table) == result.summary["final"]["eval_samples"]
    label, answer = (np.array(table[column].to_pylist()) for column in ("label", "prediction"))
    found = {
        "accuracy": lambda: (label == answer).mean(),
        "micro_f1": lambda: 2 * (label & answer).sum() / max(1, label.sum() + answer.sum()),
        "rmse": lambda: np.sqrt(((label - answer) ** 2).mean()),
    }[metric]()
    assert found == pytest.approx(result.summary["final"][metric], abs=1e-5)
    by_client = {row["client"]: row["samples"] for row in result.clients.to_pylist() if row["round"] == 2}
    for client, samples in list(by_client.items())[:3]:
        own = table.filter(np.array(table["client"].to_pylist()) == client)
        assert own["sample"].to_pylist() == list(range(samples))
    (result.path / "predictions.parquet").write_bytes(b"something else")
    with pytest.raises(DamagedFileError, match=r"predictions\.parquet is damaged"):
        result.predictions  # noqa: B018


def test_predictions_of_text(tmp_path: Path) -> None:
    settings = {
        "federation": {"name": "chitchat"}, "rounds": 1, "cohort": 2, "local.steps": 1, "evaluation.max_clients": 3,
        "evaluation.predictions": True, "name": "text",
    }  # fmt: skip
    result = start_run(resolve(merge({}, settings)), tmp_path)
    table = fedarena.load(result.path).predictions
    assert len(table["label"][0].as_py()) == len(table["prediction"][0].as_py()) > 1
    assert "scores" not in table.column_names
