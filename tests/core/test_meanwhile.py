"""What a round leaves to do may be done while the next one is computed: the same files, and no round is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import config, content
from test_cohort import assert_same, make_engine, train

from fedarena.algorithms import FedAvg
from fedarena.runs.run import start_run
from fedarena.storage.checkpoint import read_state
from fedarena.storage.recorder import Recorder
from fedarena.storage.run_data import load_run
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining

ONE_WORKER = {"name": "cohort", "workers": 1}


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has other work done meanwhile; the rounds whose rows were made then."""
    found: list[int] = []
    catch_up = Recorder.catch_up

    def noted(self: Recorder) -> None:
        if self._waiting is not None:
            found.append(self._waiting[0].snapshot.round)
        catch_up(self)

    monkeypatch.setattr(Recorder, "catch_up", noted)
    monkeypatch.setattr(CohortEngine, "do_meanwhile", lambda self, work: self._other_work.append(work))
    return found


def test_rows_that_are_made_meanwhile_are_the_same(tmp_path: Path) -> None:
    start_run(config(engine=ONE_WORKER), tmp_path / "before")
    with pytest.MonkeyPatch.context() as patch:
        made = as_on_a_gpu(patch)
        start_run(config(engine=ONE_WORKER), tmp_path / "meanwhile")
    assert made == sorted(set(made)) != []
    assert content(tmp_path / "meanwhile" / "small") == content(tmp_path / "before" / "small")


@pytest.mark.parametrize("selector", ["uniform", "poisson", "shuffled", "power_of_choice"])
def test_rounds_that_are_left_to_chance_are_planned_meanwhile(tmp_path: Path, selector: str) -> None:
    settings = {"engine": ONE_WORKER, "selector": selector, "rounds": 6}
    start_run(config(**settings), tmp_path / "before")
    planned: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        as_on_a_gpu(patch)
        plan_ahead = CohortEngine.plan_ahead

        def noted(self: CohortEngine, jobs: JobArrays) -> None:
            planned.extend(set(jobs.rounds.tolist()))
            plan_ahead(self, jobs)

        patch.setattr(CohortEngine, "plan_ahead", noted)
        start_run(config(**settings), tmp_path / "meanwhile")
    assert content(tmp_path / "meanwhile" / "small") == content(tmp_path / "before" / "small")
    assert planned == ([] if selector == "power_of_choice" else sorted(set(planned)))
    assert selector == "power_of_choice" or {2, 6} & set(planned)


def test_a_round_whose_rows_cannot_be_made_is_not_recorded_at_all(tmp_path: Path, monkeypatch) -> None:
    as_on_a_gpu(monkeypatch)
    of_scores = Recorder._batch_of_scores

    def failing(self: Recorder, outcome, client_ids):
        if outcome.snapshot.round == 14:
            raise ValueError("a bad column")
        return of_scores(self, outcome, client_ids)

    monkeypatch.setattr(Recorder, "_batch_of_scores", failing)
    with pytest.raises(ValueError, match="a bad column"):
        start_run(config(engine=ONE_WORKER), tmp_path)
    kept = load_run(tmp_path / "small")
    assert kept.rounds["round"].to_pylist() == list(range(14))
    assert read_state(tmp_path / "small").round == 13


@pytest.mark.parametrize(
    "ahead",
    [
        [Job(3, 1), Job(5, 1)],
        [Job(5, 1), Job(3, 1)],
        [Job(3, 2), Job(5, 2)],
        [Job(3, 1, share=0.5), Job(5, 1)],
        [Job(3, 1, hyperparameters={"local.lr": 0.5}), Job(5, 1, hyperparameters={"local.lr": 0.5})],
        [Job(7, 1)],
    ],
    ids=["as it comes", "another order", "another round", "less work", "own settings", "somebody else"],
)
@pytest.mark.parametrize("lanes", [2, 16])
def test_what_was_planned_ahead_is_taken_only_if_it_comes_so(ahead: list[Job], lanes: int) -> None:
    found = []
    for planned in ([], ahead):
        engine = make_engine(CohortEngine, "mlp", FedAvg(), LocalTraining(epochs=2, batch_size=4), lanes=lanes)
        if planned:
            engine.plan_ahead(JobArrays.of(planned))
        found.append(train(engine, [3, 5], {"params": engine.initial_params()}, {}))
    assert_same(*found, tolerance=0)
