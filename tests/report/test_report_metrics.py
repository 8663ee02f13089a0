"""Reports of runs that lead with a metric of which less is better, with several metrics, and with different ones."""

from __future__ import annotations

import io
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clocked_runs import with_clock
from other_metrics import MAE, MSE, R2, with_metrics
from rich.console import Console
from test_report_page import Page
from typer.testing import CliRunner

from fedarena import api
from fedarena import display as report
from fedarena.analysis.leading_metric import leading_metric, leading_metrics, metrics_of
from fedarena.cli import main
from fedarena.core.console import Screen
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.display.drawing.metrics import difference_text, score_text
from fedarena.display.progress import ProgressBars
from fedarena.display.report.methods import methods_of
from fedarena.display.report.sections.headline import headline
from fedarena.display.report.tables.differences import difference_text as paired_difference_text
from fedarena.display.report.tables.reach import levels_between, reach_table
from fedarena.display.terminal import baselines, scores_tables
from fedarena.metrics.info import ACCURACY, FORMER_METRICS, LOSS
from fedarena.metrics.metric import make_metric
from fedarena.runs.config import resolve_settings
from fedarena.runs.run import start_run
from fedarena.storage.run_data import RunData
from fedarena.storage.run_files import RunFiles, parquet_bytes
from fedarena.transforms.attacks import NoAttack


@pytest.fixture(scope="module")
def errors(comparison) -> list[RunData]:
    """The three methods of the comparison, judged by an error; the one with the best accuracy has the least."""
    return [with_metrics(run) for run in comparison]


def last_clients(run: RunData):
    frame = run.clients.to_pandas()
    return frame[frame["round"] == frame["round"].max()]


def over_samples(run: RunData, metric: str = "mse") -> float:
    frame = last_clients(run)
    return (frame[metric] * frame["samples"]).sum() / frame["samples"].sum()


def finished(runs, label):
    return [run for run in runs if run.label == label and run.status == "finished"]


def evaluated(run):
    return [row for row in run.rounds.to_pylist() if row["eval_clients"] is not None]


def page_of(runs, tmp_path, **options) -> Page:
    return Page(report.write_report(runs, tmp_path / "report.html", **options).read_text())


def test_the_best_is_the_least(errors):
    found = report.final_table(errors)
    assert (found.metric, found.others) == (MSE, (LOSS,))
    assert found.winner.label == "fedyogi"
    for row in found.rows:
        seeds = finished(errors, row.label)
        assert row.score.mean == pytest.approx(statistics.mean(map(over_samples, seeds)))
        worst = [last_clients(run)["mse"].nlargest(24).mean() for run in seeds]
        assert row.score_worst_decile.mean == pytest.approx(statistics.mean(worst))
        assert row.over_baseline.mean == pytest.approx(row.score.mean - 5000 * (1 - 0.178))


@pytest.fixture(scope="module")
def clear(make_run) -> list[RunData]:
    """Two methods with so many seeds that a test tells them apart."""
    runs = [make_run(label, seed, every=20) for label in ("fedavg", "fedyogi") for seed in range(6)]
    return [with_metrics(run) for run in runs]


def test_the_least_is_bold_where_a_test_says_so(clear, errors):
    found = report.final_table(clear)
    for key in ("score", "by_client", "p10", "p90", "worst_decile"):
        assert found.column(key).best(found.rows) == {"fedyogi"}
    few = report.final_table(errors)
    assert few.winner.label == "fedyogi"
    assert few.column("score").best(few.rows) == frozenset(), "two or three seeds do not tell"


def test_numbers_have_the_digits_that_tell_something(errors):
    found = report.final_table(errors)
    (fedyogi,) = [row for row in found.rows if row.label == "fedyogi"]
    assert found.column("score").text(fedyogi) == f"{fedyogi.score.mean:.1f} ± {fedyogi.score.std:.1f}"
    assert found.column("over_baseline").text(fedyogi) == f"{fedyogi.over_baseline.mean:+.1f}"
    assert re.fullmatch(r"\d\.\d{3} ± 0\.\d{3}", found.column("loss").text(fedyogi))


def test_small_errors_are_no_zeros():
    error = make_metric("mse").info
    assert score_text(error, 0.00042, 0.00003) == "0.00042 ± 0.00003"
    assert difference_text(error, 0.00042, -0.00001) == "-0.00001"
    assert paired_difference_text(error, -0.000012) == "−0.000012"
    assert error.text(0.000031) == "0.000031"
    assert (score_text(error, 0.0), score_text(error, 0.031), error.text(float("inf"))) == ("0.000", "0.031", "inf")
    assert score_text(ACCURACY, 0.00042) == "0.000"  # of one


def test_the_headline_names_the_metric_and_its_baseline(errors):
    values = [over_samples(run) for run in finished(errors, "fedyogi")]
    assert headline(errors) == (
        f"fedyogi reached {statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} MSE over 3 seeds "
        "on the test data of 238 clients after 60 rounds; the baseline (always the mean) gives 4110.0."
    )


def test_levels_fall_from_the_baseline_to_the_best_and_cost_what_was_spent(errors):
    methods = methods_of(errors)
    levels = levels_between(methods, MSE)
    assert len(levels) >= 3
    assert levels == sorted(levels, reverse=True)
    assert levels[0] < 4110
    assert all(level % 100 == 0 for level in levels)
    checked = 0
    for row in reach_table(methods, MSE):
        for reach in row:
            costs = [first_at_most(run, reach.level) for run in finished(errors, reach.label)]
            if None in costs:
                assert reach.bytes is None
            else:
                assert reach.bytes == pytest.approx(statistics.mean(costs))
                checked += 1
    assert checked >= 4


def first_at_most(run, level):
    spent = 0
    for row in run.rounds.to_pylist():
        spent += row["bytes_down"] + row["bytes_up"]
        if row["mse"] is not None and row["mse"] <= level:
            return spent
    return None


def test_time_is_to_the_least_level_that_all_reach(errors):
    timed = [with_clock(run) for run in errors]
    found = report.final_table(timed)
    levels = levels_between(methods_of(timed), MSE)
    reached = {level for level in levels if all(first_at_most(run, level) for run in timed if run.status == "finished")}
    (level,) = found.levels
    assert level == min(reached)
    assert found.column("time_to").title == f"virtual time to {level:,.0f}"
    assert "at or below that MSE" in found.column("time_to").explanation
    assert found.column("time_to").better == "lower"


FIGURES = {
    report.metric_figure: "MSE over rounds",
    report.traffic_figure: "MSE against traffic",
    report.compute_figure: "MSE against compute",
    report.client_spread_figure: "MSE over clients",
    report.client_size_figure: "MSE against client size",
    report.hours_figure: "MSE over virtual hours",
    report.personal_figure: "Personal MSE over rounds",
}


@pytest.mark.parametrize("figure", FIGURES)
def test_figures_follow_the_metric(make_run, figure):
    runs = [with_clock(with_metrics(make_run(label, personal=0.1))) for label in ("fedavg", "fedprox")]
    drawn = figure(runs)
    assert drawn.layout.title.text == FIGURES[figure]
    axis = drawn.layout.xaxis if figure is report.client_spread_figure else drawn.layout.yaxis
    assert axis.title.text == ("personal MSE" if figure is report.personal_figure else "MSE")
    values = np.concatenate(
        [np.asarray(trace.y, dtype=float) for trace in drawn.data if trace.type == "scatter" and trace.mode == "lines"]
        or [[]]
    )
    if values.size:
        assert np.nanmin(values) > 100
    assert "accuracy" not in drawn.to_json()


def test_the_curve_is_the_mean_over_seeds_with_its_baseline(errors):
    traces = {trace.name: trace for trace in report.metric_figure(errors).data if trace.showlegend is not False}
    rows = [evaluated(run) for run in finished(errors, "fedyogi")]
    assert list(traces["fedyogi"].y) == pytest.approx([np.mean([seed[i]["mse"] for seed in rows]) for i in range(13)])
    assert list(traces["baseline"].y) == pytest.approx([4110, 4110])
    assert "baseline" not in {trace.name for trace in report.metric_figure(errors, LOSS).data}


def test_divergence_does_not_flatten_an_error_of_the_others(make_run):
    good, bad = (with_metrics(make_run(label)) for label in ("good", "bad"))
    last = {"mse": 1e9, "mse_p90": 1e12}
    rows = [row | (last if row["round"] == 60 else {}) for row in bad.rounds.to_pylist()]
    bad = replace(bad, rounds=type(bad.rounds).from_pylist(rows, schema=bad.rounds.schema))
    for draw in (report.metric_figure, report.hours_figure, report.traffic_figure):
        figure = draw([with_clock(good), with_clock(bad)])
        assert [note.text for note in figure.layout.annotations] == ["axis ends at twice the initial MSE"]
        assert figure.layout.yaxis.range[1] < 11_000


@pytest.mark.slow
def test_the_page_says_it_everywhere(errors, tmp_path):
    page = page_of([with_clock(run) for run in errors], tmp_path)
    assert page.tables["results"][0][1] == "MSE"
    assert page.tables["reach"][0][0] == "to reach MSE"
    assert "accuracy" not in page.visible.lower()
    assert "Down and to the left is better." in page.visible
    assert "First evaluated round at or below the level" in page.visible
    assert "Dashed baseline: always the mean (4110.0)." in page.visible
    assert "metrics" not in page.tables, "loss and MSE are in the table of results"
    levels = page_of(errors, tmp_path, levels=[3600, 10]).tables["reach"]
    assert levels[0] == ["to reach MSE", "3,600", "10"]
    assert all("round" in row[1] and row[2] == "not reached" for row in levels[1:])


def test_all_metrics_of_a_task_are_shown(make_run, tmp_path):
    runs = [with_metrics(make_run(label, seed), (MSE, MAE, R2)) for label in ("fedavg", "fedyogi") for seed in (0, 1)]
    page = page_of(runs, tmp_path)
    head, *rows = page.tables["metrics"]
    assert head == ["method", "MSE", "loss", "mean absolute error", "R²"]
    for row, label in zip(rows, ("fedavg", "fedyogi"), strict=True):
        for metric, cell, digits in ((MAE, row[3], 2), (R2, row[4], 3)):
            values = [over_samples(run, metric.name) for run in runs if run.label == label]
            assert cell == f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
    text = (tmp_path / "report.html").read_text()
    bold = re.findall(r"<strong>([^<]*)</strong>", text.split('class="metrics"')[1].split("</table>")[0])
    found = report.final_table(runs)
    assert bold == [
        column.text(row).split(" ± ")[0]
        for row in found.rows
        for column in found.columns
        if column.key in ("score", "loss", "other") and row.label in column.best(found.rows)
    ]
    assert "Less is better: MSE, loss, mean absolute error." in page.visible
    assert "Mean absolute error over rounds" in page.visible
    assert "R² over rounds" in page.visible
    assert "mean absolute error" not in page.tables["results"][0]


def test_metrics_without_a_value_are_dashes(make_run, tmp_path):
    run = with_metrics(make_run(), (MSE, MAE))
    rows = [row | {name: None for name in row if name.startswith("mae")} for row in run.rounds.to_pylist()]
    run = replace(run, rounds=type(run.rounds).from_pylist(rows, schema=run.rounds.schema))
    run.summary["baseline"] = None
    page = page_of([run], tmp_path)
    assert page.tables["metrics"][1][3] == "–"
    assert "vs baseline" not in page.tables["results"][0]


def shown(runs, width=200):
    console = Console(width=width, color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(*scores_tables(runs, width), *baselines(runs), sep="\n", highlight=False)
    return capture.get()


def test_the_screen_follows_the_metric(errors, clear, make_run):
    text = shown(errors)
    best = report.final_table(clear)
    cell = best.column("score").text(best.winner)
    assert re.search(rf"\x1b\[1;32m *{re.escape(cell)}", shown(clear))
    few = report.final_table(errors)
    assert not re.search(rf"\x1b\[1;32m *{re.escape(few.column('score').text(few.winner))}", text)
    assert "accuracy" not in text
    assert "Baseline, always the mean: MSE 4110.0" in text
    assert "mean absolute error" in shown([with_metrics(make_run(), (MSE, MAE))])


def test_different_metrics_are_each_compared_among_the_runs_that_have_them(make_run, tmp_path):
    classifiers = [make_run(label, seed) for label in ("fedavg", "fedyogi") for seed in (0, 1)]
    regression = with_metrics(make_run("fedprox"))
    runs = [*classifiers, regression]
    assert leading_metrics(runs) == (ACCURACY, MSE)
    text = report.write_report(runs, tmp_path / "report.html", levels=[0.3]).read_text()
    visible = Page(text).visible
    assert "The runs lead with different metrics: accuracy and MSE. Each is compared among the runs" in visible
    assert headline(runs) == f"{headline(classifiers)} {headline([regression])}"
    tables = re.findall(r'<table class="results">.*?</table>', text)
    assert [re.findall(r'class="label">([^<]*)', found) for found in tables] == [["fedavg", "fedyogi"], ["fedprox"]]
    for title in ("Accuracy over rounds", "MSE over rounds", "Accuracy over clients", "MSE over clients"):
        assert text.count(f"<h3>{title}</h3>") == 1
    heads = re.findall(r'<th scope="col">(to reach [^<]*)</th><th scope="col">([^<]*)', text)
    assert heads[0] == ("to reach accuracy", "0.3")
    assert heads[1][0] == "to reach MSE"
    colours = {trace.name: trace.line.color for trace in report.metric_figure(runs, MSE).data if trace.line.color}
    assert colours["fedprox"] == "#D9720A"
    on_screen = shown(runs)
    assert on_screen.index("accuracy") < on_screen.index("MSE")


def test_runs_that_say_what_they_measure_look_like_those_of_before(comparison, tmp_path):
    before = report.write_report(comparison, tmp_path / "before.html").read_bytes()
    said = {"metrics": [metric.to_json() for metric in FORMER_METRICS], "primary_metric": "accuracy"}
    told = {"accuracy": 0.178, "metric": "accuracy", "rule": "always the most frequent label, ' '"}
    runs = [replace(run, summary={**run.summary, **said, "baseline": told}) for run in comparison]
    assert report.write_report(runs, tmp_path / "now.html").read_bytes() == before


def test_a_run_without_a_summary_is_understood_through_the_others(make_run):
    error = with_metrics(make_run("fedavg"), (MSE, MAE))
    killed = with_metrics(make_run("fedprox", status="interrupted", stop_after=20), (MSE, MAE))
    killed = replace(killed, summary={"status": "interrupted", "rounds_done": 20})
    assert leading_metrics([killed, error]) == (MSE,)
    assert metrics_of([killed, error]) == (LOSS, MSE, MAE)
    assert [row.label for row in report.final_table([killed, error]).rows] == ["fedprox", "fedavg"]
    assert leading_metric([killed]) == LOSS
    assert report.final_table([killed]).column("score").title == "loss"
    assert leading_metric([replace(make_run(), summary={"status": "running"})]) == ACCURACY


def test_metrics_that_cannot_be_read_are_named(make_run):
    run = make_run()
    run.summary["metrics"] = [{"label": "nameless"}]
    with pytest.raises(DamagedFileError, match=r"fedavg-seed0.summary\.json is damaged: its metrics"):
        report.final_table([run])


def test_labels_of_metrics_are_text(make_run, tmp_path):
    hostile = replace(MSE, label="<img src=x onerror=alert(1)> & %{y}")
    run = with_metrics(make_run(), (hostile,))
    text = report.write_report([run], tmp_path / "report.html").read_text()
    assert "<img" not in text
    assert hostile.label in Page(text).visible
    assert "%{y}" not in str(report.metric_figure([run]).layout.title.text)


def test_bars_show_the_leading_metric():
    screen = io.StringIO()
    bars = ProgressBars(Screen(file=screen, width=100))
    config = SimpleNamespace(rounds=3, name="a", clock=SimpleNamespace(start_hour=0.0, hours=None), to_dict=dict)
    simulation = SimpleNamespace(leading_metric=MSE, attack=NoAttack(), corrupted_clients=(), engine=None)
    bars.started(SimpleNamespace(config=config, simulation=simulation), Path("a"), 0)
    row = {"end_seconds": 0.0, "mse": 12.345, "personal_mse": 1.0}
    bars.finished_round(SimpleNamespace(row=row, snapshot=SimpleNamespace(round=1)))
    assert screen.getvalue().splitlines()[-1] == "round 1 of 3, MSE 12.35, personal 1.00"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run on disk, the accuracy in its files replaced by an error."""
    settings = {"federation": "digits", "model": "logistic_regression", "rounds": 4, "evaluation": {"every": 2}}
    found = start_run(resolve_settings(settings, {}), tmp_path_factory.mktemp("runs"))
    run = with_metrics(found)
    files = RunFiles.open(run.path)
    files.write("rounds.parquet", parquet_bytes(run.rounds))
    files.write("clients.parquet", parquet_bytes(run.clients))
    files.write("summary.json", json.dumps(run.summary).encode())
    files.write_manifest()
    return run.path


def test_a_run_on_disk(folder, tmp_path):
    result = api.load(folder)
    final = result.summary["final"]["mse"]
    assert f"finished, MSE {final:.2f}, " in repr(result)
    assert result.plot().layout.title.text == "MSE over rounds"
    assert result.plot("loss").layout.title.text == "Loss over rounds"
    with pytest.raises(BadInputError, match="no metric 'msi'; did you mean 'mse'"):
        result.plot("msi")
    page = tmp_path / "report.html"
    levels = ["--level", "1", "--level", "1e4", "--level", "1"]
    printed = CliRunner().invoke(main, ["report", str(folder), "-o", str(page), *levels])
    assert printed.exit_code == 0, printed.output
    assert "MSE" in printed.output
    head, row = Page(page.read_text()).tables["reach"]
    assert head == ["to reach MSE", "10,000", "1"]
    assert (row[1].endswith("round 0"), row[2]) == (True, "not reached")


@pytest.mark.parametrize(
    ("runs", "level", "sentence"),
    [
        ("errors", -2.0, "The level -2 cannot be reached: no MSE is below 0"),
        ("comparison", 75.0, "The level 75 cannot be reached: no accuracy is above 1"),
        ("comparison", float("nan"), "The level nan cannot be reached; give a finite number"),
    ],
)
def test_levels_that_cannot_be_reached_are_refused(runs, level, sentence, request, tmp_path):
    with pytest.raises(BadInputError, match=f"^{sentence}$"):
        report.write_report(request.getfixturevalue(runs), tmp_path / "report.html", levels=[level])
    assert not list(tmp_path.iterdir())
