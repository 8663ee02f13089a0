"""The command and the report of a comparison, as a reader meets them."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analytic_problem import Uniform, Valley
from typer.testing import CliRunner

from fedarena.cli import main
from fedarena.display.drawing.style import DARK_COLOURS
from fedarena.display.hpo.figures import (
    ecdf_figure,
    importance_figure,
    landscape_figure,
    ranks_figure,
    regret_figure,
    sample_rates_figure,
)
from fedarena.display.hpo.looks import looks_of
from fedarena.display.hpo.page import headline, write_comparison
from fedarena.display.hpo.tables import finals_on_page, finals_on_terminal, signs_on_page, value_text
from fedarena.hpo.analysis.importance import grid_importance
from fedarena.hpo.analysis.landscape import landscape
from fedarena.hpo.analysis.regret import grid_values
from fedarena.hpo.analysis.sample_rates import RateOutcome
from fedarena.hpo.analysis.signs import SignTest
from fedarena.hpo.chosen import ChosenOptimizer
from fedarena.hpo.comparison import OptimizerComparison, compare
from fedarena.hpo.cost import RoundWork, SystemModel
from fedarena.hpo.trajectory import read_trajectory

UNIFORM, HALVES, VALLEY = (f"analytic_problem:{name}" for name in ("Uniform", "Halves", "Valley"))
HOSTILE = "<img src=x onerror=alert(1)>"


class Broken(Uniform):
    def ask(self):
        raise ZeroDivisionError(HOSTILE)


class Nonsense(Uniform):
    def ask(self):
        return None if self.courses == 2 else super().ask()


class Networked(Valley):
    """A round takes as long as a model of the system says."""

    def __init__(self, *, system: SystemModel):
        super().__init__()
        self.system = system

    def _answer(self, configuration, fidelity, seed):
        work = RoundWork(round(100 * fidelity.client_sample_rate), 750_000, 250_000, 1)
        seconds = fidelity.rounds * float(self.system.round_s(work))
        return replace(super()._answer(configuration, fidelity, seed), cost_s=seconds)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> OptimizerComparison:
    problems = [Valley("lr@31"), Valley("mlp@own", shift=0.5)]
    chosen = [UNIFORM, HALVES, {"name": HALVES, "width": 2}]
    folder = tmp_path_factory.mktemp("comparison")
    return compare(problems, chosen, budget_s=600, repetitions=2, folder=folder, progress=False)


@pytest.fixture(scope="module")
def page(found: OptimizerComparison) -> Path:
    return write_comparison(found, found.folder / "report.html")


def test_the_page_has_every_section_and_no_word_from_outside_is_markup(found: OptimizerComparison, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Results",
        "Rank over time",
        "Regret over time",
        "Problems",
        "Evaluations and overhead",
        "Settings",
    ]
    figures = [json.loads(one) for one in re.findall(r'<script type="application/json" id="figure-\d+">(.*?)<', text)]
    # Ranks of all, of the multi-fidelity ones and of two families; regrets; the distribution, importance, landscapes.
    assert len(figures) == 4 + 2 + 1 + 4
    assert len(text) > 1_000_000  # the plots' script is in the file

    class Parser(HTMLParser):
        def error(self, message: str) -> None:
            raise AssertionError(message)

    Parser().feed(text)


def test_results_are_beside_the_papers_where_the_problem_is_theirs(found: OptimizerComparison) -> None:
    text = finals_on_page(found, looks_of(found.optimizers))
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", text)
    assert heads == ["optimizer", "mean rank", "lr@31", "lr@31, paper&#x27;s", "mlp@own"]
    value = value_text(found, "lr@31", found.finals["lr@31"][UNIFORM])
    assert value in text
    final = found.finals["lr@31"][UNIFORM]
    assert value == f"{final.mean:.4f} ± {final.std:.4f}"


def test_the_terminal_sums_up_many_problems(tmp_path: Path) -> None:
    problems = [Valley(f"lr@{number}-fedopt", shift=number / 10) for number in range(4)]
    many = compare(problems, [UNIFORM, HALVES], budget_s=600, repetitions=2, folder=tmp_path, progress=False)
    shown = finals_on_terminal(many)
    assert [str(column.header) for column in shown.columns][2:4] == ["best on", "mean regret"]
    cells = [list(column.cells) for column in shown.columns]
    assert sum(int(number) for number in cells[2]) >= 4
    regrets = {str(label): float(regret) for label, regret in zip(cells[0], cells[3], strict=True)}
    by_hand = np.mean([many.regrets(problem.name, HALVES, [1.0])[0] for problem in problems])
    assert regrets[HALVES] == pytest.approx(by_hand, abs=1e-4)
    text = write_comparison(many, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "lr@0-fedopt, lr@1-fedopt, lr@2-fedopt and lr@3-fedopt" in text
    assert "Mean rank on" not in text  # all are of one family


def test_sign_tests_are_beside_the_papers() -> None:
    text = signs_on_page([SignTest("bohb", "bo_kde", 5, 1, 1, 0.1094), SignTest("x", "random", 1, 0, 0, 0.5)])
    cells = re.findall(r"<td>(.*?)</td>", text)
    assert cells == ["5/1/1", "0.1094", "16/0/4", "0.0106", "1/0/0", "0.5000", "–", "–"]


def test_the_headline_says_who_is_best(found: OptimizerComparison) -> None:
    ranks = dict(zip(found.labels, found.mean_ranks(shares=[1.0])[:, 0], strict=True))
    best = [label for label, rank in ranks.items() if rank == min(ranks.values())]
    assert all(label in headline(found) for label in best)
    assert f"{min(ranks.values()):.2f} of 3" in headline(found)


def test_failures_are_told_on_the_page(tmp_path: Path) -> None:
    chosen = ["test_compare_report:Broken", UNIFORM]
    found = compare(Valley(), chosen, budget_s=400, repetitions=1, folder=tmp_path, progress=False)
    text = write_comparison(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Some searches failed" in text
    assert HOSTILE not in text
    assert "&lt;img src=x" in text


def test_lines_of_optimizers_are_told_apart() -> None:
    names = (
        "random",
        "bo_gp",
        "bo_rf",
        "bo_kde",
        "de",
        "hyperband",
        "bohb",
        "dehb",
        "tpe_md",
        "tpe_hb",
        "cma_es",
        "asha",
    )
    several = ("hyperband", "bohb", "dehb", "tpe_md", "tpe_hb", "asha")
    chosen = [ChosenOptimizer(name, {"name": name}, name in several) for name in names]
    chosen += [ChosenOptimizer(f"mine {number}", {"name": "m:M"}, False) for number in range(8)]
    looks = looks_of(chosen)
    assert len(set(looks.values())) == len(chosen)
    assert looks["random"].colour == looks["hyperband"].colour
    assert (looks["random"].dash, looks["hyperband"].dash) == ("solid", "dash")
    assert {style.colour for style in looks.values()} <= set(DARK_COLOURS)


def test_figures_show_what_was_computed(found: OptimizerComparison) -> None:
    ranks = ranks_figure(found, found.labels, "Ranks")
    assert np.allclose([line.y for line in ranks.data], found.mean_ranks())
    assert ranks.layout.xaxis.type == "log"
    regrets = regret_figure(found, "lr@31")
    assert len(regrets.data) == 3
    grids = ecdf_figure(found.grids)
    assert [line.name for line in grids.data] == ["lr@31", "mlp@own"]
    assert grids.data[0].y[-1] == 1.0


def test_landscape_tells_good_from_bad_and_names_what_diverged() -> None:
    problem = Valley()
    grid = grid_values(problem)
    figure = landscape_figure(landscape(problem.space, grid, "local.lr", "local.steps"), "validation_loss")
    heat = figure.data[0]
    best = np.unravel_index(np.nanargmax(heat.z), np.shape(heat.z))
    assert heat.text[best[0]][best[1]] == f"{grid.best:.2f}"
    assert [row[-1] for row in heat.text] == ["×"] * 4
    assert "diverged" in heat.customdata[0][-1]
    shares = grid_importance(problem.space, grid)
    bars = importance_figure("valley", shares).data
    assert [bar.name for bar in bars][-1] == "local.lr"


def test_landscape_of_accuracies_shows_accuracies() -> None:
    problem = Valley()
    found = landscape(problem.space, grid_values(problem), "local.lr", "local.steps")
    figure = landscape_figure(found, "validation_accuracy", maximize=True)
    assert all(cell.startswith("-") or cell == "×" for row in figure.data[0].text for cell in row)


def test_sample_rates_figure_starts_where_all_know_something() -> None:
    outcomes = [RateOutcome("bad", rate, np.array([np.inf, 0.5 - rate / 10, 0.4]), 0.4) for rate in (0.2, 1.0)]
    figure = sample_rates_figure(outcomes, [0.1, 0.5, 1.0], "bad")
    assert [list(line.x) for line in figure.data] == [[0.5, 1.0]] * 2
    assert sample_rates_figure(outcomes, [0.1, 0.5, 1.0], "good").data == ()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["hpo", "compare", VALLEY, "--optimizers", f"{UNIFORM},{HALVES}(width=2)", "--budget", "500"]
    result = CliRunner().invoke(main, [*words, "--repetitions", "2", "-o", "deep/found"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "deep" / "found" / "report.html").is_file()
    searches = sorted((tmp_path / "deep" / "found" / "searches").rglob("*.parquet"))
    assert len(searches) == 4
    assert "Report: deep/found/report.html" in result.output
    rows = pd.read_csv(tmp_path / "deep" / "found" / "results.csv")
    assert rows["optimizer"].tolist() == [UNIFORM, f"{HALVES}(width=2)"]
    assert {"mean", "std", "mean_rank", "regret", "test_accuracy", "overhead_seconds"} <= set(rows)
    before = [path.stat().st_mtime_ns for path in searches]
    assert CliRunner().invoke(main, [*words, "--repetitions", "2", "-o", "deep/found"]).exit_code == 0
    assert [path.stat().st_mtime_ns for path in searches] == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lr@3l"], "There is no problem called 'lr@3l'"),
        ([VALLEY, "--optimizers", "rndom"], "There is no optimizer called 'rndom'; did you mean 'random'?"),
        ([VALLEY, "--budget", "0", "--optimizers", UNIFORM], "A budget must be"),
        ([VALLEY, VALLEY, "--optimizers", UNIFORM], "is named twice"),
        ([VALLEY, "--optimizers", UNIFORM, "-o", "a_file"], "a_file is a file"),
        ([VALLEY, "lr@31", "--table", "t.parquet"], "--table is a file of a single problem"),
        ([VALLEY, "--optimizers", UNIFORM, "--rate", "0.5"], "client sample rates 0.2, 1, not 0.5"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a_file").touch()
    result = CliRunner().invoke(main, ["hpo", "compare", *words])
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_command_with_failures_keeps_the_rest_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = f"test_compare_report:Broken,{UNIFORM}"
    result = CliRunner().invoke(main, ["hpo", "compare", VALLEY, "--optimizers", chosen, "--repetitions", "1"])
    assert result.exit_code == 1
    assert "Failed: " in result.output
    assert (tmp_path / "comparison" / "report.html").is_file()


@pytest.mark.parametrize("beside", ["", f",{UNIFORM}", f",{UNIFORM},test_compare_report:Broken"])
def test_a_command_with_an_optimizer_that_proposes_nonsense(tmp_path: Path, monkeypatch, beside: str) -> None:
    monkeypatch.chdir(tmp_path)
    nonsense = "test_compare_report:Nonsense"
    words = ["hpo", "compare", VALLEY, "--optimizers", nonsense + beside, "--repetitions", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f"The optimizer {nonsense} must propose a Proposal, not None" in " ".join(result.output.split())
    assert "Traceback" not in result.output
    kept = tmp_path / "comparison" / "searches" / "analytic_problem_Valley" / "test_compare_report_Nonsense-0.parquet"
    assert len(read_trajectory(kept)) == 2
    assert (tmp_path / "comparison" / "report.html").is_file() == bool(beside)


def test_the_command_about_sample_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["hpo", "rates", "test_compare_report:Networked", "--optimizer", HALVES, "--repetitions", "3"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "a client sample rate of 0.2 (bad network) and 1 (good network)" in " ".join(result.output.split())
    text = (tmp_path / "rates.html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>(.*?)</h3>", text) == ["bad network", "good network"]
    refused = CliRunner().invoke(main, [*words, "-o", "rates.png"])
    assert (refused.exit_code, "end the name with .html" in refused.output) == (2, True)


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_in_a_browser(page: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
    if path is None:
        pytest.skip("no Chromium or Chrome is installed")
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        window = browser.new_page()
        window.on("console", lambda message: complaints.append(message.text))
        window.on("pageerror", lambda error: complaints.append(str(error)))
        for width, scheme in ((1280, "light"), (390, "dark")):
            window.set_viewport_size({"width": width, "height": 900})
            window.emulate_media(media="screen", color_scheme=scheme)
            window.goto(page.as_uri())
            window.wait_for_load_state()
            assert window.locator(".main-svg .bglayer").count() == 11
            assert window.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert complaints == []
