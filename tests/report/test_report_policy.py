"""What the report and the terminal say about policies that decide with which hyperparameters clients train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedarena.display.report.methods import methods_of
from fedarena.display.report.page import write_report
from fedarena.display.report.policy.figures import entropy_figure, probabilities_figure, setting_figure
from fedarena.display.report.policy.told import has_policy, tables_of
from fedarena.display.terminal import policy_lines
from fedarena.runs.config import resolve
from fedarena.runs.merging import merge
from fedarena.runs.run import start_run
from fedarena.storage.run_data import RunData

BASE = {
    "federation": {"name": "digits", "train_fraction": 0.6, "validation_fraction": 0.2},
    "model": "logistic_regression",
    "rounds": 3,
    "cohort": 5,
    "local": {"steps": 2, "lr": 0.1},
    "engine": "reference",
    "evaluation": {"every": 3},
}
SEARCH = {"local.lr": {"from": 0.01, "to": 1.0, "log": True}, "local.steps": [1, 3]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunData]:
    folder = tmp_path_factory.mktemp("policies")
    chosen: dict[str, dict[str, Any]] = {
        "many arms": {"policy": {"name": "fedex", "search": SEARCH, "arms": 9}},
        "two tables": {"policy": {"name": "fedex", "search": SEARCH, "arms": 4, "tables": "separate"}},
        "beliefs": {"policy": {"name": "fts", "search": SEARCH}},
        "nothing": {},
    }
    return [
        start_run(resolve(merge({}, BASE | settings | {"label": label, "name": label})), folder)
        for label, settings in chosen.items()
    ]


def test_arms_have_lines_and_the_least_likely_share_one(runs: list[RunData]) -> None:
    (method,) = methods_of(runs[:1])
    (table,) = tables_of(runs[0])
    figure = probabilities_figure(method, table)
    assert len(figure.data) == 8
    assert figure.data[-1].name == "2 other arms together"
    ends = [trace.y[-1] for trace in figure.data]
    assert ends[:7] == sorted(ends[:7], reverse=True)
    for place in range(3):
        assert sum(trace.y[place] for trace in figure.data) == pytest.approx(1)
    likeliest = runs[0].summary["policy"]["best"]
    assert figure.data[0].name == f"local.lr={likeliest['local.lr']:.4g} local.steps={likeliest['local.steps']}"


def test_every_table_has_a_picture(runs: list[RunData]) -> None:
    (method,) = methods_of(runs[1:2])
    rates, steps = tables_of(runs[1])
    assert [len(rates.arms), len(steps.arms)] == [4, 2]
    assert probabilities_figure(method, steps).layout.title.text == "local.steps of two tables over rounds"
    np.testing.assert_allclose(np.stack(steps.probabilities(runs[1]))[:, 1:].sum(0), 1)


def test_settings_over_rounds_are_those_of_the_jobs(runs: list[RunData]) -> None:
    figure = setting_figure(runs, "local.lr")
    assert [trace.name for trace in figure.data] == ["many arms", "two tables", "beliefs"]
    jobs = runs[2].jobs
    first = [
        lr for lr, round in zip(jobs["local.lr"].to_pylist(), jobs["round"].to_pylist(), strict=True) if round == 1
    ]
    assert figure.data[2].y[0] == pytest.approx(np.exp(np.log(first).mean()))
    assert [trace.name for trace in entropy_figure(runs).data] == ["many arms", "two tables"]
    assert setting_figure(runs[3:], "local.lr") is None


def test_the_page_has_a_section_where_there_is_a_policy(runs: list[RunData], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "all.html").read_text()
    assert "Hyperparameters of clients" in page
    assert "local.lr and local.steps" in page
    plain = write_report(runs[3:], tmp_path / "plain.html").read_text()
    assert "Hyperparameters of clients" not in plain
    assert [has_policy(run) for run in runs] == [True, True, True, False]


def test_the_terminal_says_what_was_found(runs: list[RunData]) -> None:
    best, chance = runs[0].summary["policy"]["best"], max(runs[0].summary["policy"]["probabilities"][0])
    found = f"local.lr={best['local.lr']:.4g} local.steps={best['local.steps']}"
    assert policy_lines(runs[:1]) == [f"Policy fedex found {found}, probability {chance:.2f}"]
    lines = policy_lines(runs)
    assert len(lines) == 3
    assert lines[2].startswith("beliefs: Policy fts found local.lr=")
