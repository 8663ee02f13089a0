"""Figures of the phones behind runs."""

from __future__ import annotations

import numpy as np
import pytest
from clocked_runs import fleet_statistics, with_clock

from fedarena.display import write_report
from fedarena.display.drawing.style import DARK_COLOURS
from fedarena.display.report.clock.devices import fleets_of, speeds_figure, week_figure


def moved(run, start_hours, end_hours):
    """The run between other moments of virtual time."""
    ends = np.linspace(start_hours, end_hours, run.rounds.num_rows) * 3600
    place = run.rounds.column_names.index("end_seconds")
    return type(run)(**{**vars(run), "rounds": run.rounds.set_column(place, "end_seconds", [ends])})


@pytest.fixture(scope="module")
def run(make_run):
    return with_clock(make_run())


def spans(figure):
    return {trace.name: list(trace.x) for trace in figure.data if trace.yaxis == "y2"}


def test_the_week_shows_the_share_of_available_clients(run):
    figure = week_figure(run.fleet, [run], [run])
    curve = next(trace for trace in figure.data if trace.name == "clients")
    assert list(curve.x) == [quarter / 4 for quarter in range(2 * 96)], "two days, a run of some hours"
    assert list(curve.y) == run.fleet["week"]["shares"][: 2 * 96]
    assert curve.customdata[37] == "day 0, 9:15"


@pytest.mark.parametrize(
    ("start", "end", "expected", "days"),
    [
        (8, 20, [8, 20], 2),
        (8, 60, [8, 60], 3),
        (160, 180, [160, 168, None, 0, 12], 7),
        (0, 400, [0, 168], 7),
        (200, 210, [32, 42], 7),
        (150, 168, [150, 168], 7),  # ends at midnight and does not go on
        # Short runs are drawn longer than they are, and within the week.
        (8, 8.01, [8, 8 + 0.007 * 48], 2),
        (50, 50.5, [50, 50 + 0.007 * 72], 3),
        (47.95, 47.99, [48 - 0.007 * 48, 48], 2),
        (167.99, 168.01, [168 - 0.007 * 168, 168, None, 0, 0.007 * 168], 7),
    ],
)
def test_the_time_of_a_run_is_marked_within_the_week(run, start, end, expected, days):
    figure = week_figure(run.fleet, [moved(run, start, end)], [run])
    drawn = [None if np.isnan(x) else pytest.approx(x) for x in spans(figure)["fedavg"]]
    assert drawn == expected
    assert figure.layout.xaxis.range == (0, days * 24)


def test_every_method_has_its_own_mark_in_its_colour(run, make_run):
    other = moved(with_clock(make_run("fedyogi"), "buffered"), 8, 9)
    figure = week_figure(run.fleet, [run, other], [make_run("fedprox"), run, other])
    marks = {trace.name: trace for trace in figure.data if trace.yaxis == "y2"}
    assert marks["fedyogi"].line.color == "#2A9D6E"
    assert marks["fedyogi"].hovertemplate == "fedyogi: 1.00 h from day 0, 8:00<extra></extra>"
    assert marks["fedavg"].y[0] > marks["fedyogi"].y[0]
    colours = {trace.line.color for trace in figure.data} | {figure.data[0].fillcolor}
    assert colours <= set(DARK_COLOURS)


def test_the_length_of_a_short_run_is_that_of_the_run(run):
    (mark,) = [t for t in week_figure(run.fleet, [moved(run, 8, 8.05)], [run]).data if t.yaxis == "y2"]
    assert mark.hovertemplate == "fedavg: 3.00 min from day 0, 8:00<extra></extra>"


def test_the_caption_tells_both_kinds_of_speeds(run, tmp_path):
    speeds = {**run.fleet["speeds"], "flops_per_second": [1e9] * 300 + [None] * 100}
    mixed = type(run)(**{**vars(run), "fleet": {**run.fleet, "speeds": speeds}})
    text = write_report([mixed], tmp_path / "report.html").read_text()
    assert "Each dot is a client, of the first kind alone. Training, computing of 75.0 % of clients: 1.00 GFLOP" in text
    assert "; time per sample of 25.0 % of clients: median" in text


def test_speeds_are_those_of_the_sampled_clients(run):
    (dots,) = speeds_figure(run.fleet).data
    speeds = run.fleet["speeds"]
    assert list(dots.x) == pytest.approx([1000 * seconds for seconds in speeds["seconds_per_sample"]])
    assert list(dots.y) == pytest.approx([bits / 1e6 for bits in speeds["download_bits_per_second"]])


def test_uploads_are_shown_where_they_differ(run):
    speeds = {**run.fleet["speeds"], "upload_bits_per_second": [1e5] * 400}
    figure = speeds_figure({**run.fleet, "speeds": speeds})
    assert [trace.name for trace in figure.data] == ["download", "upload"]
    assert all(trace.showlegend for trace in figure.data)


def test_phones_that_need_no_time_have_no_speeds_to_show():
    assert speeds_figure(fleet_statistics(20, "ideal")) is None


def test_a_fleet_is_shown_once(run, make_run, tmp_path):
    again = with_clock(make_run("fedavg", 1))
    elsewhere = type(run)(**{**vars(run), "label": "elsewhere", "fleet": fleet_statistics(400, "flash")})
    found = list(fleets_of([run, make_run("fedprox"), again, elsewhere]))
    assert [(fleet["name"], len(runs)) for fleet, runs in found] == [("fedscale", 2), ("flash", 1)]
    text = write_report([run, again, elsewhere], tmp_path / "report.html").read_text()
    assert text.count("<h3>Available clients: fedscale</h3>") == 1
    assert text.count("<h3>Device speeds: flash</h3>") == 1
    without = type(run)(**{**vars(run), "fleet": None})
    assert "Available clients" not in write_report([without], tmp_path / "report.html").read_text()
