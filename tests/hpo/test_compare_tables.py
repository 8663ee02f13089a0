"""The paper's optimizers on a table, as the command compares them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedarena.core.errors import BadInputError
from fedarena.hpo import Space
from fedarena.hpo.analysis.regret import grid_values
from fedarena.hpo.chosen import ALL_OPTIMIZERS
from fedarena.hpo.comparison import compare
from fedarena.hpo.cost import SystemModel
from fedarena.hpo.problems.declared import find_declared
from fedarena.hpo.problems.objective import Objective
from fedarena.hpo.search import run_search
from fedarena.hpo.tables.table import Table, write_table
from fedarena.hpo.tables.tabular import TabularProblem

SCORES = ("train_loss", "validation_loss", "test_loss", "validation_accuracy", "test_accuracy")
QUICK = "random,de,bo_kde,hyperband,bohb,dehb"


def small_table(name: str = "lr@31", best: float = 0.1) -> Table:
    """Learning curves with a known best learning rate; the largest ones diverge, and more steps are faster."""
    space = Space.parse({"local.lr": {"from": 0.001, "to": 1.0, "log": True, "bins": 7}, "local.steps": [1, 2, 4]})
    configurations = list(space.grid())
    rounds = (1, 3, 9, 27)
    losses = np.array(
        [
            [abs(math.log10(one["local.lr"] / best)) + math.exp(-round * one["local.steps"] / 10) for round in rounds]
            for one in configurations
        ]
    )
    losses[[one["local.lr"] > 0.9 for one in configurations]] = np.inf
    scores = np.stack([losses, losses, losses + 0.1, 1 / (1 + losses), 1 / (1.1 + losses)], axis=1)
    cells = (len(configurations), 1)
    return Table(
        problem=name,
        space=space,
        grid={one.name: tuple(one.grid()) for one in space},
        rates=(1.0,),
        rounds=rounds,
        scores=SCORES,
        values=scores[:, None].astype(np.float32),
        present=np.ones(cells, dtype=bool),
        work={name: np.full(cells, 5) for name in ("clients", "download_bytes", "upload_bytes", "steps")},
        seeds=(0,),
    )


def tabular(objective: str = "validation_loss", system: SystemModel | None = None, **changes) -> TabularProblem:
    return TabularProblem(small_table(**changes), Path("small"), Objective(objective), system or SystemModel(), 1_500.0)


def test_the_papers_optimizers_find_the_best_of_a_table(tmp_path: Path) -> None:
    problem = tabular()
    found = compare(problem, QUICK, repetitions=2, folder=tmp_path, progress=False)
    assert not found.failures
    best = grid_values(problem).best
    assert min(one.mean for one in found.finals["lr@31"].values()) == pytest.approx(best)
    assert [(one.first, one.second) for one in found.sign_tests()] == [
        ("bo_kde", "random"),
        ("de", "random"),
        ("bohb", "hyperband"),
        ("dehb", "hyperband"),
        ("hyperband", "random"),
        ("dehb", "de"),
        ("bohb", "bo_kde"),
    ]
    for searches in found.searches.values():
        for one in searches:
            assert one.simulated_s[-1] <= 1_500
            seconds = problem.query(one[0].configuration).cost_s / 27
            assert sum(e.cost_s for e in one) == pytest.approx(sum(longest(one).values()) * seconds)


def longest(search) -> dict[int, int]:
    """By course, the rounds that were paid for."""
    return {one.course: one.rounds for one in search}


def test_a_budget_for_most_of_a_table_is_told(tmp_path: Path) -> None:
    table = small_table()
    problem = TabularProblem(table, tmp_path / "table.parquet", Objective(), SystemModel())
    whole_s = sum(problem.query(one).cost_s for one in problem.space.grid())
    for share, told in (
        (1e-4, ["simulated seconds are too few to train anything of lr@31"]),
        (0.4, []),
        (0.6, [f"train 60% of the table of lr@31 to the end.* such as {whole_s / 10:.0f} "]),
    ):
        found = compare(
            problem, "random", budget_s=share * whole_s, repetitions=1, folder=tmp_path / str(share), progress=False
        )
        assert len(found.notes()) == len(told)
        assert all(re.search(one, note) for one, note in zip(told, found.notes(), strict=True))


def test_accuracy_is_searched_for_upwards(tmp_path: Path) -> None:
    problem = tabular("validation_accuracy")
    assert problem.maximize
    found = compare(problem, "random,dehb", repetitions=2, folder=tmp_path, progress=False)
    rows = found.table().set_index("optimizer")
    known = problem.table.score("validation_accuracy")
    assert rows.loc["dehb", "mean"] == pytest.approx(float(known.max()))
    assert rows.loc["dehb", "test_accuracy"] < rows.loc["dehb", "mean"]


def test_another_table_or_other_costs_are_another_search(tmp_path: Path) -> None:
    file = tmp_path / "one.parquet"
    kept = run_search(tabular(), "random", file=file)
    assert list(run_search(tabular(), "random", file=file)) == list(kept)
    others = (tabular(best=0.01), tabular(system=SystemModel(client_s=2.0)))
    for other in others:
        with pytest.raises(BadInputError, match="holds a search of another"):
            run_search(other, "random", file=file)
    with pytest.raises(BadInputError, match="its objective is 'validation_loss', not 'validation_accuracy'"):
        run_search(tabular("validation_accuracy"), "random", file=file)


def test_tables_of_several_problems_lie_in_a_folder(tmp_path: Path) -> None:
    for name in ("lr@31", "lr@53"):
        declared = find_declared(name)
        about = {"problem_fingerprint": declared.fingerprint}
        table = replace(small_table(name), space=declared.space, about=about)
        grid = {one.name: tuple(one.grid()[:2]) for one in declared.space}
        cells = (2 ** len(grid), 1)
        values = np.broadcast_to(table.values[:1], (cells[0], *table.values.shape[1:]))
        work = {name: np.full(cells, 5) for name in table.work}
        whole = replace(table, grid=grid, values=values, present=np.ones(cells, dtype=bool), work=work)
        write_table(whole, tmp_path / f"{name.replace('@', '_')}.parquet")
    found = compare(["lr@31", "lr@53"], "random", repetitions=1, folder=tmp_path / "c", progress=False, table=tmp_path)
    assert [len(made) for made in found.searches.values()] == [1, 1]
    with pytest.raises(BadInputError, match="has neither"):
        compare("lr@3917", "random", repetitions=1, folder=tmp_path / "c", progress=False, table=tmp_path)


@pytest.mark.slow
def test_all_ten(tmp_path: Path) -> None:
    problems = [tabular(), tabular(name="lr@53", best=0.03)]
    found = compare(problems, "all", repetitions=1, budget_s=600, folder=tmp_path, progress=False)
    assert found.labels == ALL_OPTIMIZERS
    assert not found.failures
    assert len(found.sign_tests()) == 11
    assert found.multi_fidelity == ("hyperband", "bohb", "dehb", "tpe_md", "tpe_hb")
