"""What a round leaves to do may be done later, or while the next one is computed: the same files, and nothing lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from small_runs import config, content
from test_cohort import assert_same, make_engine, train

from fedarena.algorithms import FedAvg
from fedarena.runs.run import Run, start_run
from fedarena.simulate.selectors import Uniform
from fedarena.storage import recorder, round_rows
from fedarena.storage.checkpoint import read_state
from fedarena.storage.recorder import Recorder
from fedarena.storage.run_data import load_run
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining

ONE_WORKER = {"name": "cohort", "workers": 1}


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has other work done meanwhile."""
    monkeypatch.setattr(CohortEngine, "do_meanwhile", lambda self, work: self._other_work.append(work))


def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if commits took very long, so that there is but the one of round 0 before the end."""
    monkeypatch.setattr(recorder, "_COMMIT_SHARE", 0.0)


def test_rows_of_several_rounds_are_those_of_one_after_the_other(tmp_path: Path, monkeypatch) -> None:
    made: list[list[int]] = []
    append = Recorder._append_rounds

    def noted(self: Recorder, finished) -> None:
        made.append([one.round for one in finished])
        append(self, finished)

    monkeypatch.setattr(Recorder, "_append_rounds", noted)
    for most_rows, folder in ((0, "one by one"), (40, "some at once")):
        monkeypatch.setattr(round_rows, "_MOST_WAITING_ROWS", most_rows)
        seldom(monkeypatch)
        start_run(config(engine=ONE_WORKER), tmp_path / folder)
    assert content(tmp_path / "one by one" / "small") == content(tmp_path / "some at once" / "small")
    lengths = [len(rounds) for rounds in made]
    rounds = sorted(round for some in made for round in some)
    assert max(lengths) > 1 == lengths[0]
    assert rounds == sorted(2 * list(range(len(rounds) // 2)))


def test_the_server_s_tensors_of_few_rounds_are_kept_in_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(round_rows, "_MOST_WAITING_BYTES", 0)
    seldom(monkeypatch)
    waiting: list[int] = []
    record = Recorder.record

    def noted(self: Recorder, outcome, client_ids) -> None:
        record(self, outcome, client_ids)
        waiting.append(len(self._waiting))

    monkeypatch.setattr(Recorder, "record", noted)
    start_run(config(engine=ONE_WORKER, rounds=4), tmp_path)
    assert waiting == [0] * 5


def test_rows_that_wait_are_seen_by_who_asks(tmp_path: Path, monkeypatch) -> None:
    seldom(monkeypatch)
    run = Run.create(config(engine=ONE_WORKER, rounds=6), tmp_path)
    seen: list[int] = []
    run._callbacks.append(lambda run, row: seen.append(len(run.rounds)))
    run.advance()
    assert seen == list(range(1, 8))
    run.close()


@pytest.mark.sampled(2)
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


class OwnUniform(Uniform):
    """Chooses like uniform selection, but somebody else wrote it."""


@pytest.mark.parametrize(("selector", "asked_by"), [("uniform", "another thread"), (OwnUniform, "this one")])
def test_own_parts_are_not_asked_while_others_train(
    tmp_path: Path, selector: str | type, asked_by: str, monkeypatch
) -> None:
    here: list[bool] = []
    select = Uniform.select

    def noted(self: Uniform, *given):
        here.append(threading.current_thread() is threading.main_thread())
        return select(self, *given)

    monkeypatch.setattr(Uniform, "select", noted)
    start_run(config(engine={"name": "cohort", "workers": 2}, selector=selector), tmp_path)
    assert all(here) is (asked_by == "this one")


def test_a_round_whose_rows_cannot_be_made_is_not_recorded_at_all(tmp_path: Path, monkeypatch) -> None:
    as_on_a_gpu(monkeypatch)
    seldom(monkeypatch)
    of_scores = round_rows.batch_of_scores

    def failing(finished, schemas):
        if finished.round == 14:
            raise ValueError("a bad column")
        return of_scores(finished, schemas)

    monkeypatch.setattr(round_rows, "batch_of_scores", failing)
    with pytest.raises(ValueError, match="a bad column"):
        start_run(config(engine=ONE_WORKER), tmp_path)
    kept = load_run(tmp_path / "small")
    assert kept.rounds["round"].to_pylist() == list(range(14))
    assert read_state(tmp_path / "small").round == 13


@pytest.mark.sampled(6)
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
