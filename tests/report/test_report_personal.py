"""Runs whose clients have models of their own, beside runs without."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedarena.display import final_table, metric_figure, personal_figure, write_report
from fedarena.display.report.sections.headline import headline
from fedarena.display.terminal import scores_tables

PERSONAL_COLUMNS = ["personal", "personal by client", "personal worst decile"]


@pytest.fixture
def mixed(make_run):
    return [make_run("fedavg"), make_run("own", personal=0.2), make_run("own", 1, personal=0.2)]


def last_personal(run):
    frame = run.clients.to_pandas()
    return frame[frame["round"] == frame["round"].max()]


def test_columns_are_there_only_when_somebody_has_personal_models(make_run, mixed):
    assert not {column.title for column in final_table([make_run()]).columns} & set(PERSONAL_COLUMNS)
    assert [c.title for c in final_table(mixed).columns if c.title.startswith("personal")] == PERSONAL_COLUMNS


def test_values_are_those_of_the_clients_tables(mixed):
    without, own = final_table(mixed).rows
    assert without.personal_score is None
    frames = [last_personal(run) for run in mixed[1:]]
    by_sample = [(f["personal_accuracy"] * f["samples"]).sum() / f["samples"].sum() for f in frames]
    assert own.personal_score.mean == pytest.approx(sum(by_sample) / 2)
    by_client = [f["personal_accuracy"].mean() for f in frames]
    assert own.personal_score_by_client.mean == pytest.approx(sum(by_client) / 2)
    worst = [f["personal_accuracy"].nsmallest(24).mean() for f in frames]
    assert own.personal_score_worst_decile.mean == pytest.approx(sum(worst) / 2)


def test_the_curve_shows_personal_models_in_their_methods_colour(make_run, mixed):
    assert personal_figure([make_run()]) is None
    figure = personal_figure(mixed)
    lines = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in lines] == ["own"]
    expected = sum(last_rounds(run) for run in mixed[1:]) / 2
    assert lines[0].y[-1] == pytest.approx(expected)
    global_line = next(trace for trace in metric_figure(mixed).data if trace.name == "own" and trace.line.width > 2)
    assert lines[0].line.color == global_line.line.color


def last_rounds(run) -> float:
    return run.rounds.to_pylist()[-1]["personal_accuracy"]


def test_a_run_that_stopped_has_its_cross(make_run):
    stopped = make_run("own", personal=0.2, stop_after=20, status="diverged")
    figure = personal_figure([make_run("fedavg"), stopped])
    assert [trace.x[0] for trace in figure.data if trace.marker.symbol == "x"] == [20]


def test_page_and_screen_show_them(mixed, make_run, tmp_path):
    text = write_report(mixed, tmp_path / "report.html").read_text()
    assert "Personal accuracy over rounds" in text
    assert "personal worst decile" in text
    assert "With a model for every client, own reached 0." in headline(mixed)
    assert "With a model" not in headline([make_run()])
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(*scores_tables(mixed, 100))
    shown = capture.get()
    assert "personal" in shown.splitlines()[1]
    assert "–" in next(line for line in shown.splitlines() if "fedavg" in line)
