from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena import display as report
from fedarena.display.drawing import marks as drawing
from fedarena.display.drawing.style import DARK_COLOURS
from fedarena.display.report.figures import clients as client_figures
from fedarena.display.report.figures import curves
from fedarena.metrics.info import LOSS


def loss_figure(runs):
    return report.metric_figure(runs, LOSS)


ALL = [
    report.metric_figure,
    loss_figure,
    report.traffic_figure,
    report.compute_figure,
    report.client_spread_figure,
    report.client_size_figure,
    report.speed_figure,
]


def legend_traces(figure):
    return {trace.name: trace for trace in figure.data if trace.showlegend is not False}


def evaluated(run):
    return [row for row in run.rounds.to_pylist() if row["accuracy"] is not None]


def finished(runs, label):
    return [run for run in runs if run.label == label and run.status == "finished"]


@pytest.mark.parametrize(("figure", "metric"), [(report.metric_figure, "accuracy"), (loss_figure, "loss")])
def test_thick_lines_are_means_over_finished_seeds(comparison, figure, metric):
    traces = legend_traces(figure(comparison))
    for label in ("fedavg", "fedprox", "fedyogi"):
        seeds = [evaluated(run) for run in finished(comparison, label)]
        expected = [sum(rows[i][metric] for rows in seeds) / len(seeds) for i in range(len(seeds[0]))]
        assert list(traces[label].x) == [row["round"] for row in seeds[0]]
        assert list(traces[label].y) == pytest.approx(expected)


def test_bands_span_the_percentiles_over_clients(comparison):
    bands = {trace.name: trace for trace in report.metric_figure(comparison).data if trace.fill == "toself"}
    assert set(bands) == {"fedavg", "fedprox", "fedyogi"}
    rows = [evaluated(run) for run in finished(comparison, "fedyogi")]
    highs = [np.mean([seed[i]["accuracy_p90"] for seed in rows]) for i in range(len(rows[0]))]
    lows = [np.mean([seed[i]["accuracy_p10"] for seed in rows]) for i in range(len(rows[0]))]
    assert list(bands["fedyogi"].y) == pytest.approx(highs + lows[::-1])


def test_more_bands_than_a_reader_can_tell_apart_are_left_out(make_run):
    runs = [make_run(f"method {index}") for index in range(curves.MAX_BANDS + 1)]
    assert not [trace for trace in report.metric_figure(runs).data if trace.fill]
    assert [trace for trace in report.metric_figure(runs[1:]).data if trace.fill]


def test_single_seeds_are_thin_and_a_diverged_one_ends_in_a_cross(comparison):
    data = report.metric_figure(comparison).data
    thin = [trace for trace in data if trace.mode == "lines" and trace.line.width == 1]
    assert len(thin) == len(comparison)
    (cross,) = [trace for trace in data if trace.marker.symbol == "x"]
    last = evaluated(comparison[5])[-1]
    assert (cross.name, list(cross.x), list(cross.y)) == ("fedprox", [last["round"]], [last["accuracy"]])


def test_the_baseline_is_a_dashed_line(comparison):
    for figure in (report.metric_figure, report.traffic_figure, report.compute_figure):
        baseline = legend_traces(figure(comparison))["baseline"]
        assert baseline.line.dash == "dash"
        assert list(baseline.y) == [0.178, 0.178]


def test_costs_accumulate_in_the_units_the_axis_names(make_run):
    run = make_run()
    for figure, unit, columns in (
        (report.traffic_figure, ("GB", 1e9), ("bytes_down", "bytes_up")),
        (report.compute_figure, ("TFLOP", 1e12), ("flops",)),
    ):
        drawn = figure([run])
        assert drawn.layout.xaxis.title.text.endswith(f"({unit[0]})")
        rows = run.rounds.to_pylist()
        spent = [sum(row[column] for row in rows[: row["round"] + 1] for column in columns) for row in evaluated(run)]
        assert list(legend_traces(drawn)["fedavg"].x) == pytest.approx([amount / unit[1] for amount in spent])


def test_boxes_have_quartiles_and_whiskers_from_10_to_90(comparison):
    boxes = {trace.name: trace for trace in report.client_spread_figure(comparison).data if trace.type == "box"}
    for label, box in boxes.items():
        finals = [evaluated(run)[-1] for run in finished(comparison, label)]
        drawn = [box.lowerfence[0], box.q1[0], box.median[0], box.q3[0], box.upperfence[0], box.mean[0]]
        names = ("p10", "p25", "p50", "p75", "p90", "by_client")
        assert drawn == pytest.approx([np.mean([final[f"accuracy_{name}"] for final in finals]) for name in names])
    assert [boxes[label].y[0] for label in ("fedavg", "fedprox", "fedyogi")] == [2, 1, 0]


def test_the_size_line_averages_clients_of_similar_size(make_run):
    run = make_run(clients=200)
    line = legend_traces(report.client_size_figure([run]))["fedavg"]
    frame = run.clients.to_pandas().query("round == 60")
    edges = [frame["samples"].quantile(tenth / 10) for tenth in range(1, 10)]
    bins = [[] for _ in range(10)]
    for samples, accuracy in zip(frame["samples"], frame["accuracy"], strict=True):
        bins[sum(edge < samples for edge in edges)].append((samples, accuracy))
    assert list(line.x) == [np.median([samples for samples, _ in members]) for members in bins]
    assert list(line.y) == pytest.approx([np.mean([accuracy for _, accuracy in members]) for members in bins])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300))
def test_size_bins_are_ordered_and_never_split_clients_of_one_size(sizes):
    samples = np.array(sizes, dtype=np.float64)
    bins = client_figures._bins_of_similar_size(samples)
    ranges = sorted((samples[bins == index].min(), samples[bins == index].max()) for index in set(bins))
    assert len(ranges) <= 10
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ranges))
    if len(set(sizes)) == len(sizes) >= 20:
        assert min(np.bincount(bins)) >= 9


def test_speed_is_the_mean_over_seeds_round_by_round(comparison):
    line = legend_traces(report.speed_figure(comparison))["fedavg"]
    seeds = [run.timings.to_pylist() for run in finished(comparison, "fedavg")]
    assert list(line.x) == list(range(1, 61))
    assert list(line.y) == pytest.approx(
        [np.mean([rows[r]["clients_per_second"] for rows in seeds]) for r in range(1, 61)]
    )


@pytest.mark.parametrize("figure", ALL)
def test_a_method_has_one_colour_everywhere_and_a_dark_partner(comparison, figure):
    expected = {"fedavg": "#2457C5", "fedprox": "#D9720A", "fedyogi": "#2A9D6E"}
    used = set()
    for trace in figure(comparison).data:
        for colour in (trace.line.color, trace.marker.color):
            if colour is not None and trace.name != "baseline":
                assert colour == expected[trace.name]
                used.add(trace.name)
        assert {trace.line.color, trace.marker.color, trace.fillcolor} - {None} <= set(DARK_COLOURS)
    assert used == set(expected)


@pytest.mark.parametrize("figure", ALL)
def test_figures_survive_runs_with_little_in_them(make_run, figure):
    early = make_run(stop_after=0, status="failed")
    before = make_run("none yet", status="running")
    before = type(before)(
        **{**vars(before), **{t: getattr(before, t).slice(0, 0) for t in ("rounds", "clients", "timings")}}
    )
    diverged = make_run(
        "diverged", stop_after=5, status="diverged", final_metrics={"loss": math.nan, "accuracy": math.nan}
    )
    infinite = make_run("infinite", stop_after=5, status="diverged", final_metrics={"loss": math.inf})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([early], [before], [diverged], [infinite], [early, before, diverged, infinite]):
            figure(runs).to_json()


def test_divergence_does_not_flatten_the_loss_of_the_others(make_run):
    runs = [make_run("good"), make_run("bad", final_metrics={"loss": 1e9, "loss_p90": 1e12})]
    figure = loss_figure(runs)
    starts = [evaluated(run)[0]["loss_p90"] for run in runs]
    assert figure.layout.yaxis.range[1] == pytest.approx(2 * max(starts))
    assert [note.text for note in figure.layout.annotations] == ["axis ends at twice the initial loss"]
    assert loss_figure(runs[:1]).layout.yaxis.range is None


def test_labels_are_text_and_not_markup(make_run):
    run = make_run("<b>bold</b> & %{x}", status="diverged")
    for figure in ALL:
        names = {trace.name for trace in figure([run]).data if trace.name != "baseline"}
        assert names == {"&lt;b&gt;bold&lt;/b&gt; &amp; &#37;{x}"}


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (2, 24, [2, 5, 10, 20]),
        (3, 990, [5, 10, 20, 50, 100, 200, 500]),
        (1, 99_999, [1, 10, 100, 1000, 10_000]),
        (7, 7, []),
    ],
)
def test_sizes_have_round_ticks(low, high, ticks):
    assert drawing.logarithmic_ticks(low, high) == ticks


@pytest.mark.parametrize(
    ("sizes", "ticks"),
    [((7, 7), [7]), ((21, 49), [20, 25, 30, 35, 40, 45, 50]), ((1, 1), [1]), ((2, 24), [2, 5, 10, 20])],
)
def test_sizes_always_have_ticks(sizes, ticks):
    assert drawing.whole_ticks(np.array(sizes, dtype=float)) == ticks


def test_points_are_capped_and_keep_their_ends(make_run, monkeypatch):
    monkeypatch.setattr(drawing, "MAX_LINE_POINTS", 100)
    long = [make_run("fedavg", seed, rounds=105, every=1, clients=2) for seed in (0, 1)]
    lines = [trace for trace in report.metric_figure(long).data if trace.name == "fedavg" and not trace.fill]
    assert len(lines) == 3
    for line in lines:
        assert len(line.x) == 100
        assert (line.x[0], line.x[-1]) == (0, 105)
    wide = [make_run(label, rounds=1, every=1, clients=4_000) for label in ("a", "b", "c")]
    dots = [trace for trace in report.client_size_figure(wide).data if trace.mode == "markers"]
    assert 4_900 < sum(len(trace.x) for trace in dots) <= client_figures.MAX_SCATTER_POINTS
    strips = [trace for trace in report.client_spread_figure(wide).data if trace.type == "scatter"]
    assert [len(trace.x) for trace in strips] == [client_figures.MAX_STRIP_POINTS] * 3
