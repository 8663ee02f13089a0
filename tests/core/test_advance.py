"""Runs in pieces: advanced, looked at, forked, stopped early; schedules; the trained model."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from logistic_clients import LOCAL, cohorts, flat, local_sgd, logistic_simulation, make_clients, plain
from small_runs import SMALL, config, content
from typer.testing import CliRunner

import fedarena
from fedarena.algorithms import FedAvg
from fedarena.cli import main
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import load_federation
from fedarena.fleet import load_fleet
from fedarena.runs.callbacks import Callback, Stop, Target
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.runs.weights import read_weights
from fedarena.simulate import simulate
from fedarena.simulate.schedules import SCHEDULES, Cosine, Exponential, Step, WarmUp
from fedarena.storage.run_data import load_run
from fedarena.train import CohortEngine, ReferenceEngine

QUICK = SMALL | {"engine": "reference", "rounds": 12, "evaluation.every": 3}
PHONES = {
    "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]},
    "protocol": {"name": "buffered", "buffer_size": 3},
    "algorithm": "scaffold",
}


def quick(**settings):
    return config(**{**{key: value for key, value in QUICK.items() if key != "name"}, **settings})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", [{}, PHONES, {"algorithm": "fedkd"}], ids=["fedyogi", "buffered", "fedkd"])
def test_pieces_give_the_bits_of_one_go(tmp_path: Path, settings) -> None:
    start_run(quick(**settings), tmp_path / "one go")
    run = Run.create(quick(**settings), tmp_path)
    rounds = []
    for piece in (0, 1, 4, 3, None):
        run.advance(piece)
        rounds.append(run.round)
        assert run.rounds["round"].to_pylist() == list(range(run.round + 1))
        assert fedarena.load(run.folder).summary["rounds_done"] == run.round  # what was advanced is on disk
    assert rounds == [0, 1, 5, 8, 12]
    assert run.is_over
    assert run.close().status == "finished"
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")


def test_a_run_that_is_closed_early_can_be_opened_again(tmp_path: Path) -> None:
    start_run(quick(), tmp_path / "one go")
    with Run.create(quick(), tmp_path) as run:
        run.advance(5)
    assert run.result().status == "interrupted"
    with pytest.raises(BadInputError, match="is closed"):
        run.advance(1)
    with fedarena.open(tmp_path / "small") as again:
        assert again.round == 5
        again.advance()
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")
    with pytest.raises(BadInputError, match=r"is finished; fedarena\.load reads it"):
        fedarena.open(tmp_path / "small")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("settings", [{"algorithm": "ditto"}, PHONES], ids=["ditto", "buffered"])
def test_a_fork_without_changes_is_the_same_run(tmp_path: Path, settings) -> None:
    run = Run.create(quick(**settings), tmp_path).advance(5)
    fork = run.fork(name="fork")
    run.advance().close()
    assert fork.round == 5
    fork.advance().close()
    one, other = (content(tmp_path / name) for name in ("small", "fork"))
    for what in ("tensors", "client states", "rounds.parquet", "clients.parquet", "jobs.parquet"):
        assert one[what] == other[what]
    environment = json.loads((tmp_path / "fork" / "environment.json").read_text())
    assert environment["forked_from"] == {"run": str((tmp_path / "small").absolute()), "round": 5}


def test_a_fork_goes_its_own_way_and_can_be_resumed(tmp_path: Path) -> None:
    start_run(quick(name="untouched"), tmp_path)
    run = Run.create(quick(), tmp_path).advance(4)
    fork = run.fork({"local.lr": 0.01}, name="careful").advance(3)
    fork.close()
    run.advance().close()
    resume_run(tmp_path / "careful")
    small, careful, untouched = (fedarena.load(tmp_path / name) for name in ("small", "careful", "untouched"))
    assert small.rounds.equals(untouched.rounds)  # what a fork does is no business of the run
    assert careful.config["local"]["lr"] == 0.01
    assert careful.rounds["train_loss"][:5].equals(small.rounds["train_loss"][:5])
    assert careful.rounds["train_loss"][5:].to_pylist() != small.rounds["train_loss"][5:].to_pylist()
    whole = start_run(quick(name="whole", **{"local.lr": 0.01}), tmp_path)
    assert careful.rounds["loss"][-1] != whole.rounds["loss"][-1]  # its first rounds had another rate


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"federation": "shapes"}, "cannot change federation"),
        ({"model": "mlp"}, "cannot change model"),
        ({"algorithm": "fedavg"}, "goes on with fedyogi"),
        ({"transforms": "clip"}, "cannot change transforms"),
        ({"lokal.lr": 1}, "cannot change lokal"),
        ({"engine.dtype": "float64"}, "would be of another kind or size"),
        ({"evaluation.part": "train"}, "cannot change evaluation.part: .* what may differ: every, predictions"),
        ({"evaluation": {"training_set": True}}, "cannot change evaluation.training_set"),
        ({"keep": "best"}, "cannot change keep: .* this run has keep=last"),
        ("another", "takes settings, .* and name='…', not 'another'"),
    ],
)
def test_forks_that_make_no_sense_are_refused(tmp_path: Path, settings, sentence: str) -> None:
    with Run.create(quick(), tmp_path) as run:
        run.advance(1)
        with pytest.raises(BadInputError, match=sentence):
            run.fork(settings, name="fork")
    assert not (tmp_path / "fork").exists()


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_a_callback_sees_every_round_and_may_stop(tmp_path: Path) -> None:
    seen = []

    def look(run, row):
        seen.append((run.round, row["round"], row.get("accuracy")))
        return Stop("enough") if row["round"] == 4 else None

    result = fedarena.run(QUICK, runs_folder=tmp_path, progress=False, callbacks=[look])
    assert [(done, round) for done, round, _ in seen] == [(n, n) for n in range(5)]
    assert [accuracy is not None for *_, accuracy in seen] == [True, False, False, True, False]
    assert result.status == "finished"
    assert result.summary["message"] == "stopped early: enough"
    assert result.rounds["round"][-1].as_py() == 4
    assert resume_run(tmp_path / "small").rounds["round"][-1].as_py() == 4  # it is over


def test_patience_ends_in_the_same_round_when_resumed(tmp_path: Path) -> None:
    settings = {"callbacks": [{"name": "patience", "evaluations": 2, "at_least": 0.5}], "evaluation.every": 1}
    whole = start_run(quick(name="whole", **settings), tmp_path)
    assert whole.rounds["round"][-1].as_py() == 2
    assert "has not become better in the last 2 evaluations" in whole.summary["message"]
    Run.create(quick(**settings), tmp_path).advance(1).close()
    assert resume_run(tmp_path / "small").rounds.equals(whole.rounds)


def test_an_end_for_good_holds_in_pieces(tmp_path: Path) -> None:
    def stop(run, row):
        return Stop("two are enough") if row["round"] == 2 else None

    run = Run.create(quick(), tmp_path, callbacks=[stop])
    for _ in range(3):
        run.advance(2)
    assert run.round == 2
    assert run.close().summary["message"] == "stopped early: two are enough"


class FourRounds(Callback):
    """Ends a run in a round that is not evaluated."""

    def on_round(self, run, row):
        run.result()  # all of it is committed before anybody knows that it is the last
        return Stop("enough") if row["round"] == 4 else None


def test_the_last_round_has_scores_though_it_ended_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"callbacks": [{"name": FourRounds}], "evaluation.predictions": True, "keep": "best"}
    result = start_run(quick(**settings), tmp_path / "one go")
    every = start_run(quick(name="every", **settings | {"evaluation.every": 1}), tmp_path)
    assert result.summary["final"] == every.summary["final"]
    assert result.summary["final"]["round"] == 4
    assert result.summary["best"]["round"] == 4
    told = fedarena.load(tmp_path / "one go" / "small")
    answers = told.predictions.to_pandas()
    assert (answers.label == answers.prediction).mean() == pytest.approx(result.summary["final"]["accuracy"])
    now, best = told.state_dict(), told.state_dict("best")
    assert all(torch.equal(best[name], tensor) for name, tensor in now.items())

    Run.create(quick(**settings), tmp_path).advance(2).close()
    resume_run(tmp_path / "small")
    assert content(tmp_path / "small") == content(tmp_path / "one go" / "small")
    killed = Run.create(quick(**settings), tmp_path / "killed")
    with monkeypatch.context() as patch:
        patch.setattr("fedarena.runs.run.evaluate_now", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            killed.advance()
    assert load_run(tmp_path / "killed" / "small").rounds["eval_clients"].to_pylist()[-1] is None
    resume_run(tmp_path / "killed" / "small")
    assert content(tmp_path / "killed" / "small") == content(tmp_path / "one go" / "small")


def test_a_callback_cannot_close_its_run(tmp_path: Path) -> None:
    run = Run.create(quick(), tmp_path, callbacks=[lambda run, row: run.close()])
    with pytest.raises(BadInputError, match="A callback cannot advance or close"):
        run.advance(1)
    assert fedarena.load(tmp_path / "small").status == "failed"


def test_leaving_a_block_never_hides_what_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Run.create(quick(), tmp_path):
        raise ZeroDivisionError
    with fedarena.open(tmp_path / "small"):
        pass
    assert resume_run(tmp_path / "small").status == "finished"


def test_a_fork_may_be_evaluated_more_often(tmp_path: Path) -> None:
    with Run.create(quick(), tmp_path) as run:
        run.advance(4)
        with run.fork({"evaluation.every": 1, "keep": "last"}, name="fork") as fork:
            assert fork.advance(2).rounds["eval_clients"].is_valid().to_pylist() == [
                True,
                False,
                False,
                True,
                False,
                True,
                True,
            ]


def test_a_fork_may_have_a_smaller_cohort(tmp_path: Path) -> None:
    with Run.create(quick(**PHONES, cohort=8), tmp_path) as run:
        run.advance(3)
        with run.fork({"cohort": 4}, name="fork") as fork:
            assert fork.advance().round == 12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["cosine", {"name": "warm_up", "rounds": 3, "final": 0.0}])
@pytest.mark.parametrize("algorithm", ["scaffold", "qfedavg"])
def test_rates_that_fall_to_nothing_leave_the_last_round_something(tmp_path: Path, algorithm: str, schedule) -> None:
    run = start_run(quick(algorithm=algorithm, client_lr_schedule=schedule, server_lr_schedule=schedule), tmp_path)
    assert run.status == "finished"


def test_targets_and_time(tmp_path: Path) -> None:
    reached = start_run(quick(name="target", callbacks={"name": "target", "level": 0.3}), tmp_path)
    scores = [score for score in reached.rounds["accuracy"].to_pylist() if score is not None]
    assert scores[-1] >= 0.3
    assert all(score < 0.3 for score in scores[:-1])
    late = start_run(quick(name="late", callbacks={"name": "wall_time", "seconds": 1e-6}), tmp_path)
    assert late.status == "interrupted"
    assert "seconds are over" in late.summary["message"]
    for settings, sentence in (
        ({"callbacks": "patients"}, "did you mean 'patience'"),
        ({"callbacks": {"name": "wall_time", "seconds": 0}}, "must be above 0"),
        ({"callbacks": {"name": "target"}}, "level is missing"),
        ({"callbacks": {"name": "target", "level": 90}}, "target has level 90, and no accuracy is above 1"),
        ({"callbacks": {"name": "target", "level": -0.1}}, "target has level -0.1, and no accuracy is below 0"),
    ):
        with pytest.raises(BadInputError, match=sentence):
            start_run(quick(name="refused", **settings), tmp_path)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("callback", [lambda run, row: Stop("enough"), {"name": "target", "level": 0.0}, FourRounds])
def test_one_callback_needs_no_list(tmp_path: Path, callback) -> None:
    run = fedarena.run(QUICK, runs_folder=tmp_path, progress=False, callbacks=callback)
    assert run.summary["rounds_done"] < QUICK["rounds"]


@pytest.mark.parametrize("rounds", [1.5, "3", -1])
def test_a_run_is_advanced_by_whole_rounds(tmp_path: Path, rounds) -> None:
    run = Run.create(quick(), tmp_path)
    with pytest.raises(BadInputError, match="by 0 rounds or more, a whole number, not by"):
        run.advance(rounds)
    run.advance(np.int64(1))
    assert run.round == 1


def test_a_target_that_is_handed_in_must_be_reachable(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="target has level 90"):
        fedarena.run(QUICK, runs_folder=tmp_path, progress=False, callbacks=[Target(level=90)])
    assert not list(tmp_path.iterdir())


def test_a_callback_that_fails_loses_no_round(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_round(self, run, row):
            if row["round"] == 2:
                raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        fedarena.run(QUICK, runs_folder=tmp_path, progress=False, callbacks=[Broken()])
    assert fedarena.load(tmp_path / "small").rounds["round"].to_pylist() == [0, 1, 2]


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_have_the_factors_they_promise() -> None:
    assert [Exponential(decay=0.5).scale(round) for round in (1, 2, 3)] == [1, 0.5, 0.25]
    assert [Step(rounds=2, decay=0.1).scale(round) for round in (1, 2, 3, 5)] == pytest.approx([1, 1, 0.1, 0.01])
    cosine = Cosine(final=0.2)
    cosine.prepare(5)
    assert [cosine.scale(round) for round in (1, 6, 9)] == pytest.approx([1, 0.2, 0.2])
    assert 0.2 < cosine.scale(5) < cosine.scale(3) < 1  # the last round is not lost
    warm_up = WarmUp(rounds=4, final=0.0)
    warm_up.prepare(7)
    assert [warm_up.scale(round) for round in (1, 2, 4, 6, 8)] == pytest.approx([0.25, 0.5, 1, 0.5, 0], abs=1e-12)
    for name in SCHEDULES.names():
        schedule = SCHEDULES.get(name)()
        schedule.prepare(10)
        assert all(0 <= schedule.scale(round) <= 1 for round in range(1, 30))


@pytest.mark.parametrize("engine_kind", [CohortEngine, ReferenceEngine])
def test_rates_that_change_beside_plain_sgd(make_federation, engine_kind) -> None:
    federation = make_federation(make_clients(), 3, name="rates")
    simulation = logistic_simulation(federation, FedAvg(), LOCAL, engine_kind)
    schedules = {"client_lr_schedule": Exponential(decay=0.7), "server_lr_schedule": Exponential(decay=0.9)}
    first, *rounds = simulate(replace(simulation, **schedules))
    w = flat(first.snapshot.state["params"])
    sizes = np.array([len(x) for x, _ in make_clients().values()], dtype=float)
    for (round, cohort), outcome in zip(cohorts(), rounds, strict=True):
        local = replace(LOCAL, lr=LOCAL.lr * 0.7 ** (round - 1))
        changes = np.array([local_sgd(w, c, round, plain, local)[0] - w for c in cohort])
        w = w + 0.9 ** (round - 1) * (sizes[cohort] @ changes / sizes[cohort].sum())
        np.testing.assert_allclose(flat(outcome.snapshot.state["params"]), w, atol=1e-10)


def test_a_horizon_is_apart_from_the_budget(tmp_path: Path) -> None:
    settings = {"client_lr_schedule": "cosine", "algorithm": "fedkd"}
    whole = start_run(quick(name="whole", rounds=8, **settings), tmp_path)
    short = start_run(quick(name="short", rounds=4, horizon=8, **settings), tmp_path)
    other = start_run(quick(name="other", rounds=4, **settings), tmp_path)
    assert short.rounds["train_loss"].to_pylist() == whole.rounds["train_loss"][:5].to_pylist()
    assert other.rounds["train_loss"].to_pylist() != short.rounds["train_loss"].to_pylist()


# --- the trained model, and parts that are handed in -----------------------------------------------------------------


def test_the_trained_model_is_a_plain_module(tmp_path: Path) -> None:
    run = Run.create(quick(), tmp_path).advance()
    now = run.model()
    run.close()
    result = fedarena.load(tmp_path / "small")
    model = result.model()
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), now.parameters(), strict=True))
    federation = load_federation("digits", {"partition": {"name": "dirichlet", "clients": 20}})
    clients = federation.clients("all")
    samples = federation.samples(clients[federation.counts(clients, "test") > 0], "test").columns
    with torch.no_grad():
        scores = model(torch.from_numpy(samples["x"]).float() / (255 if samples["x"].dtype == np.uint8 else 1))
    right = float((scores.argmax(1).numpy() == samples["y"]).mean())
    assert right == pytest.approx(result.summary["final"]["accuracy"], abs=1e-6)


def test_export_writes_the_model(tmp_path: Path) -> None:
    start_run(quick(), tmp_path)
    path = tmp_path / "model.safetensors"
    call = CliRunner().invoke(main, ["export", str(tmp_path / "small"), str(path)])
    assert call.exit_code == 0, call.output
    assert "Exported" in call.output
    found = safetensors.torch.load_file(path)
    model = fedarena.load(tmp_path / "small").model()
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in model.state_dict().items()}
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in found.items())
    run = str(tmp_path / "small")
    for arguments in ([run, str(path)], [run, "model.zip"], ["nowhere", "model.safetensors"]):
        assert CliRunner().invoke(main, ["export", *arguments]).exit_code == 2


def test_a_changed_number_of_an_exported_model_is_noticed(tmp_path: Path) -> None:
    start_run(quick(), tmp_path)
    path = tmp_path / "model.safetensors"
    assert CliRunner().invoke(main, ["export", str(tmp_path / "small"), str(path)]).exit_code == 0
    whole, weights = path.read_bytes(), read_weights(path)
    for place in range(8, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(DamagedFileError):
            found = read_weights(path)
            assert found.keys() == weights.keys()
            assert all(torch.equal(t, weights[name]) for name, t in found.items())
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match=r"model.safetensors is damaged: its weights do not match"):
        read_weights(path)


def test_objects_are_not_loaded_again_and_found_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = load_federation("digits", {"partition": {"name": "dirichlet", "clients": 20}})
    fleet = load_fleet({"name": "uniform", "seconds_per_sample": [0.01, 0.4]}, 20)
    named = {key: value for key, value in QUICK.items() if key != "federation"}
    named |= {"protocol": "synchronous"}
    by_name = fedarena.run(
        {**named, "federation": QUICK["federation"], "fleet": {"name": "uniform", "seconds_per_sample": [0.01, 0.4]}},
        runs_folder=tmp_path / "by name", progress=False,
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("fedarena.runs.opening.load_federation", None)
        patch.setattr("fedarena.runs.virtual_time.load_fleet_with_notes", None)
        run = fedarena.open(named, federation=federation, fleet=fleet, runs_folder=tmp_path).advance(4)
        run.close()
    resumed = fedarena.resume(tmp_path / "small", progress=False)
    assert resumed.rounds["accuracy"].to_pylist() == by_name.rounds["accuracy"].to_pylist()
    assert resumed.rounds["end_seconds"].to_pylist() == by_name.rounds["end_seconds"].to_pylist()


def test_exiting_in_a_callback_loses_no_round(tmp_path: Path) -> None:
    def leave(run, row):
        if row["round"] == 4:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        start_run(quick(), tmp_path, callbacks=[leave])
    stopped = fedarena.load(tmp_path / "small")
    assert (stopped.status, stopped.summary["rounds_done"]) == ("interrupted", 4)
    assert resume_run(tmp_path / "small").status == "finished"


def test_wall_time_is_that_of_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedarena.runs.callbacks.time.monotonic", lambda: now[0])

    def three_seconds(run, row):
        now[0] += 3.0

    run = Run.create(quick(callbacks=[{"name": "wall_time", "seconds": 7}]), tmp_path, callbacks=[three_seconds])
    reached = [run.advance().round for _ in range(3)]
    assert reached[2] - reached[1] == reached[1] - reached[0] > 1
    run.close()


def test_a_fork_cannot_deal_out_samples_anew(tmp_path: Path) -> None:
    with Run.create(quick(training="iid"), tmp_path) as run:
        run.advance(1)
        with pytest.raises(BadInputError, match="training=iid cannot change the seed"):
            run.fork({"seed": 5})


class StopsAfterTwo(Callback):
    def on_round(self, run, row):
        return Stop("two are enough") if run.round == 2 else None


def test_a_callback_may_be_a_class(tmp_path: Path) -> None:
    for number, callback in enumerate((StopsAfterTwo, {"name": StopsAfterTwo}, StopsAfterTwo())):
        settings = {**QUICK, "name": str(number)}
        run = fedarena.run(settings, runs_folder=tmp_path, progress=False, callbacks=[callback])
        assert run.rounds.num_rows == 3  # and that of the untrained model
    with fedarena.open(QUICK, runs_folder=tmp_path) as run:
        run.advance(1)
    with pytest.raises(BadInputError, match="must be objects, not names or classes"):
        fedarena.open(tmp_path / "small", callbacks=[StopsAfterTwo])
