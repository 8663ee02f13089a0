"""Figures of runs in virtual time, against plain loops over their jobs."""

from __future__ import annotations

import math
import statistics
import warnings
from collections import Counter

import numpy as np
import pytest
from clocked_runs import with_clock

from fedarena import display as report
from fedarena.display.drawing.style import DARK_COLOURS
from fedarena.display.report.clock import round_time, staleness, timeline
from fedarena.metrics import OUTCOMES

COMPARING = [
    report.hours_figure,
    report.round_time_figure,
    report.failures_figure,
    report.wasted_figure,
    report.participation_figure,
    report.staleness_figure,
]


@pytest.fixture(scope="module")
def timed(make_run):
    return [
        with_clock(make_run("fedavg", 0)),
        with_clock(make_run("fedavg", 1)),
        make_run("fedprox"),
        with_clock(make_run("fedyogi", 0), "buffered", energy=True),
    ]


def changed(run, **columns):
    return type(run)(**{**vars(run), **columns})


def named(figure):
    return {trace.name: trace for trace in figure.data if trace.showlegend is not False}


def outcomes(*runs):
    return Counter(outcome for run in runs for outcome in run.jobs["outcome"].to_pylist())


@pytest.mark.parametrize("figure", COMPARING)
def test_nothing_is_drawn_without_a_clock(make_run, figure):
    assert figure([make_run()]) is None
    assert report.timeline_figure(make_run()) is None


def test_accuracy_over_hours_is_drawn_at_the_mean_time_of_the_seeds(timed):
    figure = report.hours_figure(timed)
    lines = named(figure)
    assert set(lines) == {"fedavg", "fedyogi", "baseline"}
    rows = [[row for row in run.rounds.to_pylist() if row["accuracy"] is not None] for run in timed[:2]]
    hours = [statistics.mean(seed[i]["end_seconds"] / 3600 - 8 for seed in rows) for i in range(len(rows[0]))]
    assert list(lines["fedavg"].x) == pytest.approx(hours)
    assert list(lines["fedavg"].y) == pytest.approx(
        [statistics.mean(seed[i]["accuracy"] for seed in rows) for i in range(len(rows[0]))]
    )
    assert figure.layout.xaxis.title.text == "virtual time (hours)"
    longest = max(run.rounds.to_pylist()[-1]["end_seconds"] for run in timed[:2])
    assert lines["baseline"].x[1] == pytest.approx(longest / 3600 - 8)


def test_less_than_an_hour_is_shown_in_minutes(make_run):
    run = with_clock(make_run(rounds=2, every=1))
    figure = report.hours_figure([run])
    assert figure.layout.xaxis.title.text == "virtual time (minutes)"
    assert named(figure)["fedavg"].x[-1] == pytest.approx(run.rounds.to_pylist()[-1]["end_seconds"] / 60 - 8 * 60)


def test_failures_stack_to_the_share_of_jobs_that_were_not_used(timed):
    figure = report.failures_figure(timed)
    groups = [timed[:2], timed[3:]]
    found = [outcomes(*runs) for runs in groups]
    assert {trace.name for trace in figure.data} == (set(found[0]) | set(found[1])) - {"used"}
    assert figure.layout.barmode == "stack"
    for trace in figure.data:
        assert list(trace.x) == pytest.approx([total[trace.name] / total.total() for total in found])
    assert list(figure.data[0].y) == [1, 0], "the first method is on top"
    notes = [note.text for note in figure.layout.annotations]
    for total in found:
        assert f"{1 - total['used'] / total.total():.1%} of {total.total():,} jobs" in notes


def test_without_failures_there_is_nothing_to_draw(timed):
    run = timed[0]
    place = run.jobs.column_names.index("outcome")
    fine = changed(run, jobs=run.jobs.set_column(place, "outcome", [["used"] * run.jobs.num_rows]))
    assert report.failures_figure([fine]) is None
    assert report.wasted_figure([fine]) is None
    assert list(report.failures_figure([timed[3], changed(fine, label="fine")]).data[0].x)[1] == 0


def test_reasons_have_their_usual_order_and_unknown_ones_come_last(timed):
    run = timed[0]
    names = run.jobs["outcome"].to_pylist()
    names[0] = "eaten <by> a dog"
    place = run.jobs.column_names.index("outcome")
    jobs = run.jobs.set_column(place, "outcome", [names])
    drawn = [trace.name for trace in report.failures_figure([changed(run, jobs=jobs)]).data]
    assert drawn[-1] == "eaten &lt;by&gt; a dog"
    assert [name for name in OUTCOMES if name in drawn] == drawn[:-1]


def test_wasted_work_is_a_share_of_time_traffic_and_energy(timed):
    bars = {trace.name: trace for trace in report.wasted_figure(timed).data}

    def shares(run, cost):
        spent = [(job["outcome"] == "used", cost(job)) for job in run.jobs.to_pylist()]
        return sum(amount for used, amount in spent if not used) / sum(amount for _, amount in spent)

    def seconds(job):
        return job["end_seconds"] - job["begin_seconds"]

    def traffic(job):
        return job["bytes_down"] + job["bytes_up"]

    assert list(bars["fedavg"].x) == pytest.approx(
        [statistics.mean(shares(run, cost) for run in timed[:2]) for cost in (seconds, traffic)]
    )
    assert list(bars["fedyogi"].x) == pytest.approx(
        [shares(timed[3], cost) for cost in (seconds, traffic, lambda job: job["joules"])]
    )
    assert [text.split(" ")[0] for text in bars["fedyogi"].text] == ["phones'", "traffic", "energy"]


@pytest.mark.parametrize("knowing", [0, 1])
def test_energy_that_one_seed_alone_knows_is_that_of_this_seed(make_run, knowing):
    runs = [with_clock(make_run("fedavg", seed), energy=seed == knowing) for seed in (0, 1)]
    (both,) = report.wasted_figure(runs).data
    (alone,) = report.wasted_figure([runs[knowing]]).data
    assert both.text[2] == alone.text[2]
    assert both.text[2].startswith("energy")
    assert both.x[0] != alone.x[0], "time is the mean of both"


def test_participation_counts_clients_that_were_never_invited(timed):
    lines = named(report.participation_figure(timed))
    (name,) = [name for name in lines if name.startswith("fedyogi")]
    counts = Counter(timed[3].jobs["index"].to_pylist())
    per_client = sorted(counts.get(client, 0) for client in range(400))
    for share, jobs in zip(lines[name].x, lines[name].y, strict=True):
        assert jobs == pytest.approx(sum(per_client[: round(share * 400)]) / sum(per_client), abs=2e-3)
    assert name == f"fedyogi (Gini {timed[3].summary['participation']['gini']:.2f})"
    assert list(lines["all equally often"].y) == [0, 1]


def test_a_run_that_is_going_on_learns_its_clients_from_the_fleet(timed):
    going_on = changed(timed[0], status="running", summary={"status": "running"}, fleet={"clients": 800})
    (name, _) = named(report.participation_figure([going_on]))
    gini = timed[0].summary["participation"]["gini"]
    assert name == f"fedavg (Gini {1 - (1 - gini) / 2:.2f})", "as many again who never took part"
    assert report.participation_figure([changed(going_on, fleet=None)]) is None


def test_staleness_is_shown_for_methods_that_use_old_updates(timed):
    lines = named(report.staleness_figure(timed))
    used = [job["staleness"] for job in timed[3].jobs.to_pylist() if job["outcome"] == "used"]
    assert list(lines) == [f"fedyogi (mean {statistics.mean(used):.1f})"]
    (line,) = lines.values()
    last = int(line.x[-1])
    assert 0.98 * len(used) <= sum(age <= last for age in used)
    assert sum(age < last for age in used) < 0.98 * len(used)
    assert list(line.x) == list(range(last + 1))
    assert list(line.y[:-1]) == pytest.approx([used.count(age) / len(used) for age in range(last)])
    assert line.y[-1] == pytest.approx(sum(age >= last for age in used) / len(used))
    assert line.customdata[-1] == f"{last} or more"
    assert report.staleness_figure(timed[:2]) is None


def test_high_staleness_is_binned(timed):
    run = timed[3]
    place = run.jobs.column_names.index("staleness")
    stale = np.arange(run.jobs.num_rows, dtype=np.int32) % 100
    (line,) = report.staleness_figure([changed(run, jobs=run.jobs.set_column(place, "staleness", [stale]))]).data
    assert len(line.x) <= staleness.MAX_STALENESS_BINS
    assert sum(line.y) == pytest.approx(1)
    assert (line.customdata[0], line.x[0]) == ("0 to 3", 1.5)
    used = [age for age, job in zip(stale, run.jobs.to_pylist(), strict=True) if job["outcome"] == "used"]
    assert line.y[1] == pytest.approx(sum(4 <= age < 8 for age in used) / len(used))
    assert line.customdata[-1] == "96 to 99"


def test_rounds_of_very_different_length_get_a_logarithmic_axis(timed):
    slow = timed[0]
    place = slow.rounds.column_names.index("end_seconds")
    ends = np.array([row["end_seconds"] for row in slow.rounds.to_pylist()])
    slower = changed(slow, label="slower", rounds=slow.rounds.set_column(place, "end_seconds", [ends * 30]))
    assert report.round_time_figure([slow, slower]).layout.yaxis.type == "log"
    assert report.round_time_figure([slow]).layout.yaxis.type is None


def test_time_per_round_is_averaged_in_blocks(make_run, timed):
    line = named(report.round_time_figure(timed))["fedavg"]
    ends = [[row["end_seconds"] for row in run.rounds.to_pylist()] for run in timed[:2]]
    assert list(line.x) == list(range(1, 61))
    assert list(line.y) == pytest.approx(
        [statistics.mean(end[r] - end[r - 1] for end in ends) / 60 for r in range(1, 61)]
    )
    long = [with_clock(make_run(label, rounds=2 * round_time.MAX_BLOCKS // 2, every=100)) for label in ("a", "b")]
    line = named(report.round_time_figure(long))["a"]
    ends = [row["end_seconds"] for row in long[0].rounds.to_pylist()]
    assert list(line.x) == [r + 0.5 for r in range(1, len(ends), 2)]
    assert list(line.y) == pytest.approx([(ends[r + 1] - ends[r - 1]) / 2 / 60 for r in range(1, len(ends), 2)])


def bars(figure):
    return {trace.name: trace for trace in figure.data if trace.type == "bar"}


def test_the_timeline_shows_the_phases_of_a_typical_round(timed):
    run = timed[0]
    figure = report.timeline_figure(run)
    ends = [row["end_seconds"] for row in run.rounds.to_pylist()]
    lengths = {r: ends[r] - ends[r - 1] for r in range(1, len(ends))}
    number = sorted(lengths, key=lengths.get)[29]
    assert figure.layout.title.text == f"Phones at work: fedavg, round {number}"
    jobs = sorted((job for job in run.jobs.to_pylist() if job["round"] == number), key=lambda job: job["end_seconds"])
    texts = [note.text for note in figure.layout.annotations][::-1]
    assert len(texts) == timeline.MAX_ROWS
    assert texts[0] == f"<b>{jobs[0]['client']}</b> {jobs[0]['outcome']}"
    assert texts[-1] == f"<b>{jobs[-1]['client']}</b> {jobs[-1]['outcome']}"
    shown = {text.split("</b>")[0].removeprefix("<b>") for text in texts}
    by_row = [job for job in jobs if job["client"] in shown][::-1]
    drawn = bars(figure)
    for name, first, last in (
        ("download", "begin", "downloaded"),
        ("training", "downloaded", "trained"),
        ("upload", "trained", "uploaded"),
    ):
        expected = {}
        for row, job in enumerate(by_row):
            start, end = job[f"{first}_seconds"], job[f"{last}_seconds"]
            if start is not None:
                stop = job["end_seconds"] if end is None else end
                expected[row] = ((start - ends[number - 1]) / 60, (stop - start) / 60)
        bar = drawn[name]
        found = {row: (base, length) for row, base, length in zip(bar.y, bar.base, bar.x, strict=True)}
        assert found == {row: pytest.approx(pair) for row, pair in expected.items()}
    waiting = drawn["waiting"]
    for base, length in zip(waiting.base, waiting.x, strict=True):
        assert base + length == pytest.approx((ends[number] - ends[number - 1]) / 60)
    crosses = next(trace for trace in figure.data if trace.type == "scatter")
    assert list(crosses.y) == [row for row, job in enumerate(by_row) if job["outcome"] != "used"]


def test_the_timeline_of_an_asynchronous_run_shows_who_is_at_work_at_one_moment(timed):
    run = timed[3]
    figure = report.timeline_figure(run)
    assert "around round" in figure.layout.title.text
    number = int(figure.layout.title.text.rpartition(" ")[2])
    ends = [row["end_seconds"] for row in run.rounds.to_pylist()]
    middle = (ends[number - 1] + ends[number]) / 2
    at_work = {job["client"] for job in run.jobs.to_pylist() if job["begin_seconds"] <= middle < job["end_seconds"]}
    shown = {note.text.split("</b>")[0].removeprefix("<b>") for note in figure.layout.annotations}
    assert shown <= at_work
    assert len(shown) == timeline.MAX_ROWS
    assert "waiting" not in bars(figure)
    assert figure.layout.shapes, "ends of rounds"


def test_a_timeline_of_a_moment_at_which_nobody_is_at_work(make_run):
    run = with_clock(make_run(rounds=3, every=1), "buffered")
    jobs = run.jobs.to_pylist()
    for job in jobs:  # all work at the very end of their round
        end = run.rounds.to_pylist()[job["round"]]["end_seconds"]
        job |= {"begin_seconds": end - 1, "end_seconds": end, "staleness": 1}
        job |= dict.fromkeys(("downloaded_seconds", "trained_seconds", "uploaded_seconds"))
    figure = report.timeline_figure(changed(run, jobs=type(run.jobs).from_pylist(jobs, schema=run.jobs.schema)))
    assert len(figure.layout.annotations) == timeline.MAX_ROWS


@pytest.mark.parametrize("figure", [*COMPARING, lambda runs: report.timeline_figure(runs[3])])
def test_every_colour_has_a_dark_partner(timed, figure):
    drawn = figure(timed)
    colours = {trace.marker.color for trace in drawn.data}
    colours |= {trace.line.color for trace in drawn.data if trace.type == "scatter"}
    colours |= {note.font.color for note in drawn.layout.annotations}
    assert colours - {None} <= set(DARK_COLOURS)
    assert not [note.text for note in drawn.layout.annotations if "color" in note.text], "the script cannot replace it"


@pytest.mark.parametrize("figure", COMPARING)
def test_labels_are_text_and_not_markup(make_run, figure):
    drawn = figure([with_clock(make_run("<b>bold</b> & %{x}"), "buffered")]).to_json()
    assert "<b>bold" not in drawn
    assert "& %{x}" not in drawn


@pytest.mark.parametrize("figure", [*COMPARING, lambda runs: [report.timeline_figure(run) for run in runs]])
def test_figures_survive_runs_with_little_in_them(make_run, figure):
    run = with_clock(make_run(), "buffered")
    no_jobs = changed(run, jobs=run.jobs.slice(0, 0))
    no_rounds = changed(run, rounds=run.rounds.slice(0, 0), jobs=run.jobs.slice(0, 0), clients=run.clients.slice(0, 0))
    all_failed = run.jobs.set_column(run.jobs.column_names.index("outcome"), "outcome", [["late"] * run.jobs.num_rows])
    first = with_clock(make_run(stop_after=1, status="running"))
    diverged = with_clock(make_run(stop_after=5, status="diverged", final_metrics={"accuracy": math.nan}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([no_jobs], [no_rounds], [changed(run, jobs=all_failed)], [first], [diverged]):
            figure(runs)


@pytest.mark.slow
def test_a_million_jobs_make_no_large_page(make_run, tmp_path):
    run = with_clock(make_run(), "buffered")
    many = 1_000_000 // run.jobs.num_rows + 1
    jobs = type(run.jobs).from_batches(run.jobs.to_batches() * many)
    assert jobs.num_rows >= 1_000_000
    small = report.write_report([run], tmp_path / "small.html").stat().st_size
    large = report.write_report([changed(run, jobs=jobs)], tmp_path / "large.html").stat().st_size
    assert large - small < 5_000
