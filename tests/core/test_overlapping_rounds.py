"""A round may begin before anybody has looked at the one before: same files, same errors, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import config, content

import fedarena
from fedarena.core.errors import DivergedError
from fedarena.runs.callbacks import Stop
from fedarena.runs.run import Run, resume_run, start_run
from fedarena.simulate import loop
from fedarena.train import CohortEngine
from fedarena.train.late import LateArray, LateChecks, concatenated, copied_numbers

ENGINE = {"name": "cohort", "workers": 1}


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets rounds overlap as on a GPU; what happened, in order."""
    happened: list[str] = []
    play, outcome = loop._Round._play, loop._Round.outcome

    def noted_play(self, checks):
        happened.append(f"{'begin' if checks is not None else 'look at'} {self._before.round + 1}")
        return play(self, checks)

    def noted_outcome(self, watch):
        happened.append(f"finish {self.after.round}")
        return outcome(self, watch)

    monkeypatch.setattr(loop._Round, "_play", noted_play)
    monkeypatch.setattr(loop._Round, "outcome", noted_outcome)
    monkeypatch.setattr(CohortEngine, "computes_beside_host", True)
    return happened


def test_rounds_overlap_and_files_are_the_same(tmp_path: Path, order: list[str]) -> None:
    start_run(config(engine=ENGINE, rounds=4), tmp_path / "overlapping")
    begun = ["begin 1", "begin 2", "finish 1", "begin 3", "finish 2", "begin 4", "finish 3", "finish 4"]
    assert order == begun
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CohortEngine, "computes_beside_host", False)
        start_run(config(engine=ENGINE, rounds=4), tmp_path / "before")
    assert content(tmp_path / "overlapping" / "small") == content(tmp_path / "before" / "small")


PRIVATE = {"name": "gaussian", "noise_multiplier": 0.2, "clipping": "adaptive"}


def test_private_rounds_overlap_and_files_are_the_same(tmp_path: Path, order: list[str]) -> None:
    settings = {"engine": ENGINE, "rounds": 3, "privacy": PRIVATE, "selector": "poisson"}
    for overlaps in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CohortEngine, "computes_beside_host", overlaps)
            start_run(config(**settings), tmp_path / str(overlaps))
    assert order[:3] == ["begin 1", "begin 2", "finish 1"]
    assert content(tmp_path / "True" / "small") == content(tmp_path / "False" / "small")
    norms = fedarena.load(tmp_path / "True" / "small").rounds["clip_norm"].to_pylist()[1:]
    assert len(set(norms)) == 3, "it adapts"


def test_small_tensors_are_copied_and_large_ones_stay() -> None:
    large, small = torch.zeros(2000), torch.tensor(1.0)
    read = copied_numbers({"clipping": {"norm": small}, "other": {"all": large}})
    found = read()
    assert found["clipping"]["norm"] == 1
    assert found["other"]["all"] is large


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "scaffold"},
        {"algorithm": "ditto"},
        {"algorithm": {"name": "qfedavg", "q": 1.0}},
        {"selector": "power_of_choice"},
        {"transforms": [{"name": "top_k", "share": 0.1}]},
        {"engine": {"name": "reference"}},
    ],
    ids=lambda settings: str(next(iter(settings.values()))),
)
def test_rounds_that_depend_on_each_other_do_not(tmp_path: Path, order: list[str], settings: dict) -> None:
    start_run(config(**{"engine": ENGINE, "rounds": 2, **settings}), tmp_path)
    assert order == ["look at 1", "finish 1", "look at 2", "finish 2"]


def test_a_run_that_was_paused_goes_on_with_the_same_bits(tmp_path: Path, order: list[str]) -> None:
    start_run(config(engine=ENGINE, rounds=5), tmp_path / "one go")
    run = Run.create(config(engine=ENGINE, rounds=5), tmp_path / "pieces")
    assert run.advance(2).round == 2
    run.close()
    resume_run(tmp_path / "pieces" / "small")
    assert content(tmp_path / "pieces" / "small") == content(tmp_path / "one go" / "small")


def test_a_callback_ends_the_run_where_it_says(tmp_path: Path, order: list[str]) -> None:
    def enough(run: Run, row: dict) -> Stop | None:
        return Stop("enough") if row["round"] == 3 else None

    found = start_run(config(engine=ENGINE, rounds=6), tmp_path, callbacks=[enough])
    assert found.rounds["round"].to_pylist() == [0, 1, 2, 3]


def test_what_diverges_is_said_of_its_own_round(tmp_path: Path, order: list[str]) -> None:
    said = []
    settings = {"engine": ENGINE, "rounds": 6, "local": {"lr": 1e30}}
    for overlaps in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CohortEngine, "computes_beside_host", overlaps)
            with pytest.raises(DivergedError) as error:
                start_run(config(**settings), tmp_path / str(overlaps))
        said.append(str(error.value))
    assert said[0] == said[1]
    first = order.index("finish 1")
    assert order[first + 1 :][0] == "look at 1"


def test_late_numbers_are_read_when_they_are_looked_at() -> None:
    read = []

    def slow() -> np.ndarray:
        read.append(1)
        return np.array([1.0, 2.0])

    late = LateArray(slow)
    both = concatenated([late, np.array([3.0])])
    assert read == []
    assert np.asarray(both).tolist() == [1, 2, 3]
    assert late[1] == 2
    assert read == [1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_late_checks_find_what_is_not_finite(bad: float) -> None:
    for groups, array, fine in (
        ({"params": {"w": torch.ones(3)}}, np.ones(2), True),
        ({"params": {"w": torch.tensor([1.0, bad])}}, np.ones(2), False),
        ({"params": {"w": torch.ones(3)}}, np.array([1.0, bad]), False),
        ({}, np.ones(0), True),
    ):
        checks = LateChecks()
        checks.note(groups)
        checks.note_array(array)
        checks.seal()
        assert checks.found_nothing() is fine


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("dense", ["written", "factored"])
def test_rounds_that_overlap_on_a_gpu_have_the_same_bits(tmp_path: Path, dense: str, monkeypatch) -> None:
    engine = {"name": "cohort", "device": "cuda", "compile": False, "dense": dense}
    start_run(config(engine=engine, model="mlp", rounds=6), tmp_path / "overlapping")
    monkeypatch.setattr(CohortEngine, "computes_beside_host", False)
    start_run(config(engine=engine, model="mlp", rounds=6), tmp_path / "before")
    assert content(tmp_path / "overlapping" / "small") == content(tmp_path / "before" / "small")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")
@pytest.mark.parametrize("privacy", [None, PRIVATE], ids=["plain", "private"])
def test_nobody_waits_for_a_gpu_while_it_is_told_of_a_round(tmp_path: Path, privacy, monkeypatch) -> None:
    """Only what a round came to is waited for, which does not wait for the next one."""
    make, described = loop._Round.__init__, loop._Round._described

    def strictly(method, is_usual):
        def checked(self, *arguments):
            if not is_usual(self, arguments):
                return method(self, *arguments)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return method(self, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return checked

    # In the first rounds, programs are made and samples come, of everybody; in the last one, there are test samples.
    monkeypatch.setattr(loop._Round, "__init__", strictly(make, lambda _, given: 4 < given[3].round < 7))
    monkeypatch.setattr(loop._Round, "_described", strictly(described, lambda round, _: round.after.round > 4))
    engine = {"name": "cohort", "device": "cuda", "compile": False, "dense": "factored"}
    settings = {"engine": engine, "model": "mlp", "rounds": 8, "cohort": 20, "evaluation": {"every": 100}}
    if privacy is not None:
        settings |= {"privacy": privacy}
    start_run(config(**settings), tmp_path)
