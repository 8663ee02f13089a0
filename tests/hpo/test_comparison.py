"""Optimizers beside each other: what is kept, what fails, what several processes do, and what tables say."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from analytic_problem import Halves, Uniform, Valley, best_value

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.hpo import comparison as comparison_module
from fedarena.hpo import search_worker, searching
from fedarena.hpo.analysis.ranks import budget_shares
from fedarena.hpo.chosen import ALL_OPTIMIZERS, choose_optimizers
from fedarena.hpo.comparison import OptimizerComparison, compare
from fedarena.hpo.optimizers import OPTIMIZERS
from fedarena.hpo.search import run_search
from fedarena.hpo.trajectory import read_trajectory

UNIFORM, HALVES = "analytic_problem:Uniform", "analytic_problem:Halves"
VALLEY, BROKEN = "analytic_problem:Valley", "test_comparison:Broken"
NONSENSE = "test_comparison:Nonsense"


class Broken(Uniform):
    """Fails after a few questions."""

    def ask(self):
        if self.courses == 3 and self.seed == 1:
            raise ZeroDivisionError("nobody thought of that")
        return super().ask()


class Nonsense(Uniform):
    """Proposes something else after a few courses."""

    def ask(self):
        return "the best one" if self.courses == 3 else super().ask()


class Deadly(Uniform):
    """Takes its process with it, the first time that it is asked with this seed."""

    def ask(self):
        fuse = Path("fuse")
        if self.seed == 1 and fuse.exists():
            fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ask()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> OptimizerComparison:
    problems = [Valley("one"), Valley("two", shift=0.5)]
    folder = tmp_path_factory.mktemp("comparison")
    return compare(problems, [UNIFORM, HALVES], budget_s=600, repetitions=3, folder=folder, progress=False)


def test_everything_is_searched_as_often_as_asked(found: OptimizerComparison) -> None:
    assert found.labels == (UNIFORM, HALVES)
    assert (found.black_box, found.multi_fidelity) == ((UNIFORM,), (HALVES,))
    assert {key: len(made) for key, made in found.searches.items()} == {
        (problem, label): 3 for problem in ("one", "two") for label in (UNIFORM, HALVES)
    }
    alone = run_search(Valley("two", shift=0.5), Halves, 600, seed=2)
    assert found.searches["two", HALVES][2].values.tolist() == alone.values.tolist()
    files = sorted(path.name for path in (found.folder / "searches" / "one").iterdir())
    assert files[0] == "analytic_problem_Halves-0.parquet"
    assert len(files) == 6


def test_final_results_and_table(found: OptimizerComparison) -> None:
    values = [run_search(Valley("one"), Uniform, 600, seed=seed).best.value for seed in range(3)]
    assert found.finals["one"][UNIFORM].mean == pytest.approx(np.mean(values))
    table = found.table().set_index(["problem", "optimizer"])
    row = table.loc["one", UNIFORM]
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["std"] == pytest.approx(np.std(values, ddof=1))
    worst = Valley().query({"local.lr": 0.001, "local.steps": 1, "local.batch_size": 8}).value
    best = best_value(Valley())
    assert row["regret"] == pytest.approx((np.mean(values) - best) / (worst - best))
    assert row["evaluations"] == row["courses"]
    assert table.loc["one", HALVES]["evaluations"] > table.loc["one", HALVES]["courses"]
    assert table.loc["one"]["mean_rank"].sum() == 3  # of two optimizers


def test_mean_ranks_regrets_and_signs(found: OptimizerComparison) -> None:
    shares = budget_shares(20)
    ranked = found.mean_ranks(shares=shares)
    assert ranked.shape == (2, 20)
    assert np.allclose(ranked.sum(axis=0), 3.0)
    regrets = found.regrets("one", HALVES, shares)
    assert regrets[0] == 1.0  # nothing is known yet
    assert regrets[-1] < 0.5
    test = found.sign_test(HALVES, UNIFORM)
    means = found.finals
    assert test.wins == sum(means[name][HALVES].mean < means[name][UNIFORM].mean for name in means)
    assert found.sign_tests() == []  # none of the paper's optimizers is here
    labels, configuration = found.best_configuration("one")
    best = min(one.best.value for made in (found.searches["one", each] for each in found.labels) for one in made)
    assert Valley("one").query(configuration).value == best
    finders = [label for label in found.labels if any(one.best.value == best for one in found.searches["one", label])]
    assert labels == finders


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    problem = Valley()
    first = compare(problem, UNIFORM, budget_s=400, repetitions=2, folder=tmp_path, progress=False)
    asked = len(problem.asked)
    again = compare(problem, UNIFORM, budget_s=400, repetitions=2, folder=tmp_path, progress=False)
    assert len(problem.asked) == asked
    assert again.table().equals(first.table())
    more = compare(problem, [UNIFORM, HALVES], budget_s=400, repetitions=3, folder=tmp_path, progress=False)
    assert [len(more.searches["valley", label]) for label in (UNIFORM, HALVES)] == [3, 3]
    (tmp_path / "searches" / "valley" / "analytic_problem_Uniform-1.parquet").write_bytes(b"half a file")
    found = compare(problem, UNIFORM, budget_s=400, repetitions=2, folder=tmp_path, progress=False)
    assert "analytic_problem_Uniform-1.parquet is damaged" in found.failures["valley analytic_problem:Uniform 1"]
    assert len(found.searches["valley", UNIFORM]) == 1


def test_what_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    found = compare(Valley(), [BROKEN, UNIFORM], budget_s=800, repetitions=3, folder=tmp_path, progress=False)
    assert found.failures == {f"valley {BROKEN} 1": "ZeroDivisionError: nobody thought of that"}
    assert not found.refused
    assert [one.searched.seed for one in found.searches["valley", BROKEN]] == [0, 2]
    assert len(found.searches["valley", UNIFORM]) == 3
    # Ranks are of repetitions that all have.
    assert [contest[UNIFORM].searched.seed for contest in found.contests("valley")] == [0, 2]


def test_nothing_but_failures_is_a_failure(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Uniform, "ask", lambda self: 1 / 0)
    with pytest.raises(RunFailedError, match=r"No search succeeded; valley .*Uniform 0: ZeroDivisionError"):
        compare(Valley(), UNIFORM, budget_s=400, repetitions=2, folder=tmp_path, progress=False)


def test_an_optimizer_that_proposes_nonsense_is_bad_input_and_what_it_tried_is_kept(tmp_path: Path) -> None:
    settings = {"budget_s": 800, "repetitions": 1, "folder": tmp_path, "progress": False}
    sentence = f"The optimizer {NONSENSE} must propose a Proposal, not 'the best one'"
    with pytest.raises(BadInputError, match=f"No search succeeded; valley {NONSENSE} 0: {sentence}"):
        compare(Valley(), NONSENSE, **settings)
    kept = read_trajectory(tmp_path / "searches" / "valley" / "test_comparison_Nonsense-0.parquet")
    assert (len(kept), kept.is_complete) == (3, False)
    found = compare(Valley(), [NONSENSE, UNIFORM], **settings)
    assert found.failures == {f"valley {NONSENSE} 0": sentence}
    assert found.refused == {f"valley {NONSENSE} 0"}


@pytest.mark.slow  # what one process does with both is a fast test
def test_several_processes_tell_nonsense_from_bugs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    settings = {"budget_s": 800, "repetitions": 2, "folder": tmp_path, "progress": False}
    found = compare(VALLEY, [NONSENSE, BROKEN, UNIFORM], jobs=2, **settings)
    assert set(found.failures) == {f"{VALLEY} {NONSENSE} 0", f"{VALLEY} {NONSENSE} 1", f"{VALLEY} {BROKEN} 1"}
    assert found.refused == {f"{VALLEY} {NONSENSE} 0", f"{VALLEY} {NONSENSE} 1"}


@pytest.mark.slow
def test_several_processes_give_the_same_and_one_that_dies_takes_one_search(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    settings = {"budget_s": 600, "repetitions": 2, "progress": False}
    deadly = "test_comparison:Deadly"
    alone = compare(VALLEY, [HALVES, deadly], folder="alone", **settings)
    Path("fuse").touch()
    together = compare(VALLEY, [HALVES, deadly], folder="together", jobs=2, **settings)
    assert list(together.failures) == [f"{VALLEY} {deadly} 1"]
    assert "its process was killed by signal 9" in together.failures[f"{VALLEY} {deadly} 1"]
    again = compare(VALLEY, [HALVES, deadly], folder="together", jobs=2, **settings)
    assert not again.failures
    for key, made in alone.searches.items():
        for one, other in zip(made, again.searches[key], strict=True):
            assert one.values.tolist() == other.values.tolist()
            assert one.simulated_s.tolist() == other.simulated_s.tolist()


def test_a_worker_reads_tasks_and_tells_what_happens(tmp_path: Path, monkeypatch, capfd) -> None:
    """The protocol of a process, in this one."""
    tasks = [
        searching.PlannedSearch(
            "a", HALVES, VALLEY, "tabular", {"floor": 0.5}, {"name": HALVES}, 0, 300.0, 1.0, str(tmp_path / "a.parquet")
        ),
        searching.PlannedSearch(
            "b", UNIFORM, "no@problem", "tabular", {}, {"name": UNIFORM}, 0, 300.0, 1.0, str(tmp_path / "b.parquet")
        ),
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(asdict(task)) + "\n" for task in tasks)))
    monkeypatch.setattr(sys, "argv", ["search_worker", json.dumps([[], ["fedarena", "hpo", "compare"], []])])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    out = os.dup(1)
    monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(1), "w"))
    try:
        search_worker.main()
    finally:
        os.dup2(out, 1)
        os.close(out)
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert next(event["failure"] for event in events if event["event"] == "ended") is None
    assert "There is no problem called 'no@problem'" in events[-1]["failure"]
    assert [event["event"] for event in events[-2:]] == ["refused", "ended"]
    assert events[0]["event"] == "evaluated"
    assert read_trajectory(tmp_path / "a.parquet").best.value > 0.5


def test_searches_at_the_same_time_do_not_share_runs(tmp_path: Path, monkeypatch) -> None:
    given = []

    def note(planned, jobs, observer):
        given.extend(planned)
        return {search.name: RunFailedError("not today") for search in planned}

    monkeypatch.setattr(comparison_module, "search_at_once", note)
    options = {"mode": "raw", "runs_folder": tmp_path / "runs", "repetitions": 2, "folder": tmp_path}
    monkeypatch.setattr(comparison_module, "open_problem", lambda name, mode, options: Valley(name))
    with pytest.raises(RunFailedError, match="not today"):
        compare("one", [UNIFORM, HALVES], jobs=2, progress=False, **options)
    folders = [search.problem_options["runs_folder"] for search in given]
    assert len(set(folders)) == len(given) == 4
    assert folders[0] == str(tmp_path / "runs" / "analytic_problem_Uniform-0")


def test_a_problem_is_let_go_of_after_every_search(tmp_path: Path) -> None:
    class Holding(Valley):
        pauses = 0

        def pause(self) -> None:
            self.pauses += 1

    problem = Holding()
    chosen = [BROKEN, UNIFORM]
    found = compare(problem, chosen, budget_s=800, repetitions=2, folder=tmp_path, progress=False)
    assert len(found.failures) == 1
    assert problem.pauses == 4


def test_names_of_optimizers() -> None:
    chosen = choose_optimizers(f"{UNIFORM}, {HALVES}(width=2) ,{HALVES}")
    assert [one.label for one in chosen] == [UNIFORM, f"{HALVES}(width=2)", HALVES]
    assert [one.settings.get("width") for one in chosen] == [None, 2, 3]
    assert choose_optimizers({"name": HALVES, "width": 4})[0].label == f"{HALVES}(width=4)"
    assert choose_optimizers([Uniform])[0].name == UNIFORM
    assert len(ALL_OPTIMIZERS) == 10


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (UNIFORM + "," + UNIFORM, "is named twice"),
        ("", "Name at least one optimizer"),
        ("nothing", "There is no optimizer called 'nothing'"),
        (f"{HALVES}(width)", "written as eta=4, not as 'width'"),
        (f"{HALVES}(width=2", "written as hyperband"),
        (f"{HALVES}(depth=2)", "no option 'depth'"),
        (f"{HALVES}(width=wide)", "width"),
    ],
)
def test_names_of_optimizers_that_are_none(given: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        choose_optimizers(given)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"repetitions": 0}, "repetitions must be a whole number from 1 on"),
        ({"jobs": 0}, "jobs must be a whole number from 1 on"),
        ({"jobs": 2}, "Other processes cannot find the object valley"),
        ({"budget_s": -1}, "A budget must be"),
        ({"client_sample_rate": 0.3}, "knows the client sample rates"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        compare(Valley(), UNIFORM, folder=tmp_path, progress=False, **settings)
    assert not any(tmp_path.iterdir())


def test_problems_that_are_none(tmp_path: Path) -> None:
    for problems, sentence in (
        ([], "at least one problem"),
        ([Valley(), Valley()], "named twice"),
        (f"{VALLEY}x", "Cannot import the problem"),
        ("test_comparison:Broken", "must be a subclass of"),
    ):
        with pytest.raises(BadInputError, match=sentence):
            compare(problems, UNIFORM, folder=tmp_path, progress=False)
    with pytest.raises(BadInputError, match="cannot be made with these options"):
        compare(VALLEY, UNIFORM, folder=tmp_path, progress=False, depth=3)


def test_without_a_table_regret_is_between_what_searches_found(tmp_path: Path) -> None:
    problem = Valley(on_grid=False)
    problem.mode = "raw"
    found = compare(problem, [UNIFORM, HALVES], budget_s=900, repetitions=2, folder=tmp_path, progress=False)
    assert found.grids == {}
    best, worst = found.extremes("valley")
    seen = [one.values[one.rounds == 27] for made in found.searches.values() for one in made]
    finite = np.concatenate(seen)[np.isfinite(np.concatenate(seen))]
    assert (best, worst) == (finite.min(), finite.max())
    assert found.table()["regret"].between(0, 1).all()


def test_a_table_with_a_gap_still_has_results(tmp_path: Path) -> None:
    class Gappy(Valley):
        def _answer(self, configuration, fidelity, seed):
            if configuration == {"local.lr": 0.001, "local.steps": 1, "local.batch_size": 8}:
                raise BadInputError("The table lacks the cell")
            return super()._answer(configuration, fidelity, seed)

    found = compare(Gappy(), UNIFORM, budget_s=600, repetitions=1, folder=tmp_path, progress=False)
    assert not found.failures
    assert found.grids == {}
    assert found.table()["regret"].between(0, 1).all()


def test_larger_is_better_where_the_metric_says_so(tmp_path: Path) -> None:
    class Accurate(Valley):
        objective, maximize = "validation_accuracy", True

        def _answer(self, configuration, fidelity, seed):
            answer = super()._answer(configuration, fidelity, seed)
            return replace(answer, value=-1 / (1 + answer.value))

    found = compare(Accurate(), UNIFORM, budget_s=900, repetitions=2, folder=tmp_path, progress=False)
    row = found.table().iloc[0]
    assert row["metric"] == "validation_accuracy"
    assert 0 < row["mean"] <= 1
    assert found.searches["valley", UNIFORM][0].searched.maximize
    assert not math.isnan(row["std"])


def test_the_papers_ten_are_registered() -> None:
    assert set(ALL_OPTIMIZERS) <= set(OPTIMIZERS.names())


def test_the_benchmark_at_a_small_size(tmp_path: Path, monkeypatch, run_benchmark) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    script = Path(__file__).parents[2] / "benchmarks" / "hpo_compare.py"
    words = ["--problem", VALLEY, "--optimizers", f"{UNIFORM},{HALVES}", "--budget", "300", "--repetitions", "1"]
    output = tmp_path / "found.json"
    done = run_benchmark(script, *words, "--jobs", "1", "--questions", "9", "--no-surrogate", "--output", str(output))
    rows = json.loads(output.read_text())["targets"]
    assert [row["unit"] for row in rows] == ["µs", "s"]
    assert "Comparing optimizers" in done.stdout
