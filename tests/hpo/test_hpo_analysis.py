"""Statistics of searches against cases that were computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from analytic_problem import BEST, Halves, Valley
from small_problem import SETTINGS
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.hpo import Result, Space
from fedarena.hpo.analysis.finals import final
from fedarena.hpo.analysis.importance import grid_importance
from fedarena.hpo.analysis.landscape import landscape
from fedarena.hpo.analysis.privacy import best_under_budgets
from fedarena.hpo.analysis.published import PAPER_NAMES, TABLE_2, TABLE_3, published_results, published_test
from fedarena.hpo.analysis.ranks import best_over_time, budget_shares, mean_ranks_over_time, ranks
from fedarena.hpo.analysis.regret import GridValues, ecdf, grid_values, normalized_regret
from fedarena.hpo.analysis.sample_rates import NETWORKS, best_rates, study_sample_rates
from fedarena.hpo.analysis.signs import AGAINST_BASELINES, AGAINST_SINGLE_FIDELITY, sign_test
from fedarena.hpo.cost import RoundWork
from fedarena.hpo.problems.courses import Course, pause_courses
from fedarena.hpo.search import run_search
from fedarena.hpo.trajectory import Evaluation, Searched, Trajectory

DATASETS = ("31", "53", "3917", "10101", "146818", "146821", "146822")
PAPER_PROBLEMS = [f"{model}@{data}" for model in ("lr", "mlp") for data in DATASETS]
PAPER_PROBLEMS += ["bert@sst2", "bert@cola", "gnn@cora", "gnn@citeseer", "gnn@pubmed", "cnn@femnist"]


def trajectory(*steps: tuple[float, int, float], budget_s: float = 100.0, **metrics: float) -> Trajectory:
    """A search from (simulated seconds, rounds, value)."""
    searched = Searched("p", "tabular", "validation_loss", False, {"lr": [1, 2]}, 1, 9, 1.0, {"name": "x"}, 0)
    evaluations = [
        Evaluation(place, {"lr": 1}, rounds, value, metrics, 1.0, 1.0, seconds, 0.0)
        for place, (seconds, rounds, value) in enumerate(steps)
    ]
    return Trajectory(searched, budget_s, evaluations, True)


def made_grid(search: dict[str, list], function) -> tuple[Space, GridValues]:
    space = Space.parse(search)
    configurations = tuple(space.grid())
    return space, GridValues("made", configurations, np.array([function(**one) for one in configurations], dtype=float))


# ---- regret ----


def test_regret_lies_between_the_best_and_the_worst_of_the_table() -> None:
    assert normalized_regret([2.0, 4.0, 3.0, math.inf], 2.0, 4.0).tolist() == [0.0, 1.0, 0.5, 1.0]
    assert normalized_regret([5.0, 5.0], 5.0, 5.0).tolist() == [0.0, 0.0]
    assert normalized_regret([1.9], 2.0, 4.0).tolist() == [0.0]  # a surrogate may find better than its table


def test_grid_values_know_best_and_worst_among_what_is_finite() -> None:
    problem = Valley()
    found = grid_values(problem)
    assert len(found.values) == 7 * 4 * 3
    assert found.best_configuration == BEST
    assert found.best == problem.query(BEST).value
    assert np.isinf(found.values).sum() == 4 * 3  # the largest learning rate diverges
    assert found.worst == problem.query({"local.lr": 0.001, "local.steps": 1, "local.batch_size": 8}).value
    assert found.regret_of([found.best, found.worst, math.inf]).tolist() == [0.0, 1.0, 1.0]


def test_a_grid_of_nothing_but_diverged_courses_is_refused() -> None:
    class Hopeless(Valley):
        def _answer(self, configuration, fidelity, seed):
            return Result(math.nan, {}, 1.0, fidelity)

    with pytest.raises(BadInputError, match="No configuration of valley comes to a finite validation_loss"):
        grid_values(Hopeless())


def test_ecdf_counts_what_is_at_most_as_large() -> None:
    values, shares = ecdf([0.2, 0.0, 1.0, 0.2])
    assert values.tolist() == [0.0, 0.2, 1.0]
    assert shares.tolist() == [0.25, 0.75, 1.0]


# ---- ranks ----


def test_equal_values_share_ranks_and_those_who_know_nothing_share_the_last() -> None:
    assert ranks([[0.2, 0.2], [0.1, 0.2], [math.inf, 0.2], [math.inf, 0.1]]).T.tolist() == [
        [2.0, 1.0, 3.5, 3.5],
        [3.0, 3.0, 3.0, 1.0],
    ]


def test_mean_ranks_over_time_by_hand() -> None:
    early = trajectory((10, 9, 0.5), (60, 9, 0.3))
    late = trajectory((50, 9, 0.4))
    never = trajectory()
    contests = {
        "one": [{"early": early, "late": late, "never": never}, {"early": late, "late": late, "never": late}],
        "two": [{"early": early, "late": late, "never": never}],
    }
    shares = [0.05, 0.2, 0.5, 1.0]
    found = mean_ranks_over_time(contests, ["early", "late", "never"], shares)
    # Problem one, first repetition: nobody; early; late before early; early again. Second: always a tie.
    first = np.array([[2, 1, 2, 1], [2, 2.5, 1, 2], [2, 2.5, 3, 3]])
    by_hand = ((first + 2) / 2 + first) / 2
    assert found.tolist() == by_hand.tolist()
    assert found.sum(axis=0).tolist() == [6.0] * 4


def test_budgets_are_compared_by_their_share() -> None:
    large = trajectory((100, 9, 0.5), budget_s=1_000)
    small = trajectory((10, 9, 0.5))
    for share in (0.05, 0.1, 0.5):
        assert best_over_time(large, [share]).tolist() == best_over_time(small, [share]).tolist()
    shares = budget_shares(100)
    assert shares[-1] == 1.0
    assert np.allclose(np.diff(np.log(shares)), np.log(shares[1] / shares[0]))


def test_ranks_follow_the_incumbent_and_not_the_smallest_value() -> None:
    fooled = trajectory((10, 81, 0.50), (20, 3, 0.45), (30, 9, 2.0))
    other = trajectory((10, 81, 0.48))
    found = mean_ranks_over_time({"p": [{"a": fooled, "b": other}]}, ["a", "b"], [0.25, 1.0])
    assert found.tolist() == [[2.0, 2.0], [1.0, 1.0]]


# ---- sign tests ----


def test_sign_test_by_hand() -> None:
    # Of 10 decided problems 8 are won: (C(10,8) + C(10,9) + C(10,10)) / 2^10 = 56 / 1024.
    finals = {f"w{n}": {"a": 0.1, "b": 0.2} for n in range(8)}
    finals |= {f"l{n}": {"a": 0.3, "b": 0.2} for n in range(2)} | {"t": {"a": 0.1 + 0.2, "b": 0.3}}
    found = sign_test("a", "b", finals)
    assert (found.counts, found.p_value) == ("8/1/2", pytest.approx(56 / 1024))
    assert sign_test("b", "a", finals).p_value == pytest.approx(1 - 11 / 1024)


def test_sign_test_leaves_out_what_is_not_there_and_lets_those_lose_who_found_nothing() -> None:
    finals = {"1": {"a": 0.1, "b": math.inf}, "2": {"a": 0.1}, "3": {"a": math.inf, "b": math.inf}}
    assert sign_test("a", "b", finals).counts == "1/1/0"
    assert sign_test("a", "b", {}).p_value == 1.0


def test_the_papers_pairs_are_all_there() -> None:
    assert [(one.first, one.second) for one in TABLE_2] == list(AGAINST_BASELINES)
    assert [(one.first, one.second) for one in TABLE_3] == list(AGAINST_SINGLE_FIDELITY)


# ---- final results ----


def test_final_results_are_means_and_sample_deviations_of_incumbents() -> None:
    searches = [trajectory((10, 9, value), (20, 3, 0.01), test_accuracy=value) for value in (0.2, 0.4, 0.9)]
    found = final(searches)
    assert found.values == (0.2, 0.4, 0.9)
    assert found.mean == pytest.approx(0.5)
    assert found.std == pytest.approx(math.sqrt((0.09 + 0.01 + 0.16) / 2))
    assert found.test_metrics == {"test_accuracy": pytest.approx(0.5)}
    assert final(searches[:1]).std is None
    nothing = final([*searches, trajectory()])
    assert (nothing.mean, nothing.std) == (math.inf, None)


# ---- landscapes ----


def test_landscape_keeps_the_others_at_their_best() -> None:
    problem = Valley()
    found = landscape(problem.space, grid_values(problem), "local.lr", "local.steps")
    assert found.fixed == {"local.batch_size": 16}
    assert found.values.shape == (4, 7)
    for row, steps in enumerate(found.y_values):
        for column, lr in enumerate(found.x_values):
            asked = problem.query({"local.lr": lr, "local.steps": steps, "local.batch_size": 16}).value
            assert found.values[row, column] == asked
    other = landscape(problem.space, grid_values(problem), "local.lr", "local.steps", {"local.batch_size": 8})
    finite = np.isfinite(found.values)
    assert np.allclose(other.values[finite] - found.values[finite], 0.02)


@pytest.mark.parametrize(("x", "y", "problem"), [("local.lrr", "local.steps", "did you mean"), ("b", "b", "no hyper")])
def test_landscapes_of_what_is_not_there(x, y, problem) -> None:
    valley = Valley()
    with pytest.raises(BadInputError, match=problem):
        landscape(valley.space, grid_values(valley), x, y)


# ---- importance ----


def test_importance_of_a_sum_by_hand() -> None:
    # f = 3 a + b over a, b in {-1, 1}: variance 9 + 1, nothing together, nothing of c.
    space, found = made_grid({"a": [-1, 1], "b": [-1, 1], "c": [0, 1]}, lambda a, b, c: 3 * a + b)
    shares = grid_importance(space, found, of="values")
    assert shares.single == {"a": pytest.approx(0.9), "b": pytest.approx(0.1), "c": pytest.approx(0.0)}
    assert shares.most_important == ("a", "b", "c")
    assert all(share == pytest.approx(0) for share in shares.pairs.values())


def test_importance_of_a_product_belongs_to_the_pair() -> None:
    space, found = made_grid({"a": [-1, 1], "b": [-1, 1]}, lambda a, b: a * b + a)
    shares = grid_importance(space, found, of="values")
    assert shares.single == {"a": pytest.approx(0.5), "b": pytest.approx(0.0)}
    assert shares.pairs == {("a", "b"): pytest.approx(0.5)}


def test_importance_by_ranks_is_not_all_about_what_diverges() -> None:
    space, found = made_grid(
        {"a": [1, 2, 3, 4], "b": [0, 1]}, lambda a, b: 1e9 if (a, b) == (4, 1) else 10 * b + 0.1 * a
    )
    assert grid_importance(space, found).single["b"] > 0.7
    assert grid_importance(space, found, of="values").single["b"] < 0.2
    found.values[found.values > 1e8] = math.inf
    assert grid_importance(space, found).single["b"] > 0.7


def test_importance_needs_the_whole_grid() -> None:
    space, found = made_grid({"a": [1, 2], "b": [0, 1]}, lambda a, b: a + b)
    part = GridValues("part", found.configurations[:3], found.values[:3])
    with pytest.raises(BadInputError, match="The grid of part is not complete"):
        grid_importance(space, part)
    constant = GridValues("flat", found.configurations, np.ones(4))
    assert set(grid_importance(space, constant).single.values()) == {0.0}


# ---- privacy budgets ----


def test_best_configuration_under_each_budget() -> None:
    problems = {20.0: Valley(), 1.0: Valley(shift=-1.0), 10.0: Valley(shift=0.5)}
    found = best_under_budgets(problems, seeds=(0, 1))
    assert [one.epsilon for one in found] == [1.0, 10.0, 20.0]
    assert found[2].configuration == BEST
    assert found[1].configuration["local.lr"] == pytest.approx(10**-1.5)  # half a step to the left
    mean, std = found[2].metrics["test_accuracy"]
    assert (mean, std) == (problems[20.0].query(BEST).metrics["test_accuracy"], 0.0)
    assert best_under_budgets(problems)[0].metrics["test_loss"][1] is None
    told: list[tuple[int, int]] = []
    best_under_budgets({1.0: Valley()}, seeds=(0, 1), progress=lambda *now: told.append(now))
    assert told[0] == (1, len(told))
    assert told[-1] == (len(told), len(told)) == (2 * len(list(Valley().space.grid())),) * 2


def test_the_command_trains_under_every_budget_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps(SETTINGS))
    grid = ["--grid", "local.lr=[0.1,0.5]", "--grid", "local.batch_size=16", "--grid", "local.weight_decay=0.0"]
    command = ["hpo", "privacy", str(tmp_path / "own.yaml"), "--runs", str(tmp_path / "runs"), *grid]
    command += ["--seeds", "0,1", "--rounds", "2"]
    said = CliRunner().invoke(main, [*command, "--epsilons", "1000000,0.001"])
    assert said.exit_code == 0, said.output
    rows = [line.split() for line in said.output.splitlines() if "±" in line]
    assert [row[0] for row in rows] == ["0.001", "1e+06"]
    assert [float(row[-3]) for row in rows] == pytest.approx([0.13, 0.45], abs=0.15)  # accuracy ± its spread
    assert sum(path.is_dir() for path in (tmp_path / "runs").glob("own-*")) == 2 * 2 * 2
    pause_courses(tmp_path / "runs")
    monkeypatch.setattr(Course, "_open", None)  # nothing is trained again
    again = CliRunner().invoke(main, [*command, "--epsilons", "1000000,0.001"])
    assert [line.split() for line in again.output.splitlines() if "±" in line] == rows
    said = CliRunner().invoke(main, [*command, "--epsilons", "few"])
    assert said.exit_code == 2
    assert "--epsilons must be numbers" in said.output


# ---- sample rates ----


class Networked(Valley):
    """A round with few clients takes less time where the network is bad, and leaves more to learn everywhere."""

    def __init__(self, seconds_per_client: float):
        super().__init__()
        self.seconds_per_client = seconds_per_client

    def _answer(self, configuration, fidelity, seed):
        answer = super()._answer(configuration, fidelity, seed)
        cost = fidelity.rounds * (1 + self.seconds_per_client * fidelity.client_sample_rate)
        return Result(answer.value, answer.metrics, cost, fidelity)


def test_few_clients_for_bad_networks_and_many_for_good_ones() -> None:
    conditions = {"bad": Networked(100.0), "good": Networked(0.0)}
    outcomes = study_sample_rates(conditions, [0.5, 1.0], optimizer="analytic_problem:Halves", courses=6)
    assert [(one.condition, one.client_sample_rate) for one in outcomes] == [
        (condition, rate) for condition in ("bad", "good") for rate in (0.2, 1.0)
    ]
    assert best_rates(outcomes) == {"bad": 0.2, "good": 1.0}
    by_hand = [
        run_search(conditions["good"], Halves, 6 * 27.0, seed=seed, client_sample_rate=1.0).best.value
        for seed in range(5)
    ]
    assert outcomes[3].final == outcomes[3].best[-1] == pytest.approx(np.mean(by_hand))
    with pytest.raises(BadInputError, match="knows a single client sample rate"):
        study_sample_rates(conditions, [1.0], rates=[0.2])


def test_the_networks_are_those_of_the_paper() -> None:
    bad, good = NETWORKS["bad network"], NETWORKS["good network"]
    assert (bad.upload_bytes_per_second, bad.download_bytes_per_second) == (250e3, 750e3)
    assert (good.upload_bytes_per_second, good.download_bytes_per_second) == (250e6, 750e6)
    few, many = (RoundWork(clients, 750_000, 250_000, 1) for clients in (1, 100))
    assert bad.round_s(many) - bad.round_s(few) == pytest.approx(99.0)  # seconds, a client after the other
    assert good.round_s(many) - good.round_s(few) == pytest.approx(0.099 + sum(1 / n for n in range(2, 101)))


# ---- what the paper says ----


def test_published_numbers_as_printed() -> None:
    assert published_results("lr@31")["random"].mean == 0.6821
    assert published_results("lr@31")["tpe_hb"].std == 0.0460
    assert published_results("gnn@pubmed-fedopt")["dehb"].mean == 0.4318
    assert published_results("mlp@146822")["tpe_hb"].mean == 0.2755
    assert published_results("cnn@femnist", "surrogate")["tpe_hb"].mean == 0.0458
    assert published_results("lr@31", "raw") == published_results("lr@own") == {}
    assert published_test("bohb", "bo_kde").p_value == 0.0106
    assert published_test("cma_es", "random") is None


def test_published_tables_are_whole() -> None:
    for suffix, number in {"": 20, "-fedopt": 19}.items():
        found = [published_results(name + suffix) for name in PAPER_PROBLEMS]
        assert sum(map(bool, found)) == number
        assert all(set(one) == set(PAPER_NAMES) for one in found if one)


def test_p_values_of_the_paper_are_not_those_of_a_sign_test() -> None:
    by_counts = {}
    for one in (*TABLE_2, *TABLE_3):
        assert one.wins + one.ties + one.losses == 20
        by_counts.setdefault((one.wins, one.losses), set()).add(one.p_value)
    assert len(by_counts[13, 7]) > 1
    # Nor do the counts follow from the means of Table 13.
    means = {
        name: {label: one.mean for label, one in published_results(name).items()}
        for name in PAPER_PROBLEMS
        if published_results(name)
    }
    assert sign_test("bo_gp", "random", means).counts == "15/0/5"
