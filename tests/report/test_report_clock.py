"""Numbers of runs in virtual time, against plain loops over their jobs and rounds."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from clocked_runs import with_clock
from rich.console import Console

import fedarena
from fedarena.display import final_table, write_report
from fedarena.display.report.clock import section as clock_section
from fedarena.display.report.clock.table import clock_columns, clock_rows
from fedarena.display.report.methods import evaluation_curve, has_clock, methods_of
from fedarena.display.report.sections.headline import facts, headline
from fedarena.display.report.tables.reach import reach_table
from fedarena.display.terminal import scores_tables
from fedarena.metrics.info import ACCURACY
from fedarena.models import DataSpec, build_model, make_task
from fedarena.runs.config import resolve_settings
from fedarena.runs.summary import summarize

CLOCK_TITLES = {"virtual time", "failed", "wasted", "energy"}


@pytest.fixture(scope="module")
def timed(make_run):
    """Two methods with two seeds each, one of them asynchronous and with energy, and one run without a clock."""
    return [
        with_clock(make_run("fedavg", 0)),
        with_clock(make_run("fedavg", 1)),
        with_clock(make_run("fedyogi", 0), "buffered", energy=True),
        with_clock(make_run("fedyogi", 1), "buffered", energy=True),
        make_run("fedprox"),
    ]


def jobs_of(run):
    return run.jobs.to_pylist()


def wasted(run):
    spent = [(job["outcome"], job["end_seconds"] - job["begin_seconds"]) for job in jobs_of(run)]
    return sum(seconds for outcome, seconds in spent if outcome != "used") / sum(seconds for _, seconds in spent)


def failed(run):
    return sum(job["outcome"] != "used" for job in jobs_of(run)) / len(jobs_of(run))


def first_reaching(run, level):
    start = run.rounds.to_pylist()[0]["end_seconds"]
    for row in run.rounds.to_pylist():
        if row["accuracy"] is not None and row["accuracy"] >= level:
            return (row["end_seconds"] - start) / 3600
    return None


def test_the_columns_are_there_only_with_a_clock(make_run, timed):
    ideal = {column.title for column in final_table([make_run()]).columns}
    assert not ideal & CLOCK_TITLES
    assert not [title for title in ideal if title.startswith("virtual time")]
    titles = [column.title for column in final_table(timed).columns]
    assert set(titles) >= CLOCK_TITLES
    assert len([title for title in titles if title.startswith("virtual time to 0.")]) == 1


def test_final_rows_have_what_the_jobs_say(timed):
    fedavg, fedyogi, fedprox = final_table(timed).rows
    for row, runs in ((fedavg, timed[:2]), (fedyogi, timed[2:4])):
        ends = [[r["end_seconds"] for r in run.rounds.to_pylist()] for run in runs]
        assert row.hours.mean == pytest.approx(statistics.mean((end[-1] - end[0]) / 3600 for end in ends))
        assert row.failed.mean == pytest.approx(statistics.mean(map(failed, runs)))
        assert row.wasted.mean == pytest.approx(statistics.mean(map(wasted, runs)))
        (level,) = final_table(timed).levels
        expected = statistics.mean(first_reaching(run, level) for run in runs)
        assert row.costs_to_levels[level].mean == pytest.approx(expected)
    assert fedavg.joules is None
    assert fedyogi.joules.mean == pytest.approx(
        statistics.mean(sum(job["joules"] for job in jobs_of(run)) for run in timed[2:4])
    )
    assert (fedprox.hours, fedprox.costs_to_levels[level], fedprox.failed, fedprox.wasted) == (None,) * 4


def test_methods_are_compared_by_the_highest_level_that_all_reach(make_run):
    low = with_clock(make_run("fedavg", rounds=10, every=10, final_metrics={"accuracy": 0.53}))
    high = with_clock(make_run("fedprox", rounds=10, every=10, final_metrics={"accuracy": 0.83}))
    assert final_table([low, high]).levels == (0.5,)
    assert final_table([high]).levels == (0.8,)
    lowest = with_clock(make_run("fedyogi", rounds=10, every=10, final_metrics={"accuracy": 0.11}))
    found = final_table([lowest, high])
    assert found.levels == (0.8,), "where there is none, the highest that somebody reaches"
    assert found.rows[0].costs_to_levels == {0.8: None}


def test_levels_that_are_asked_for_have_a_column_each(make_run, timed):
    titles = [column.title for column in final_table(timed, levels=(0.2, 0.3)).columns]
    assert [title for title in titles if " to " in title] == ["virtual time to 0.2", "virtual time to 0.3"]
    ideal = final_table([make_run()], levels=(0.2,))
    (column,) = [column for column in ideal.columns if " to " in column.title]
    assert column.title == "rounds to 0.2"
    first = next(row["round"] for row in make_run().rounds.to_pylist() if (row["accuracy"] or 0) >= 0.2)
    assert column.text(ideal.rows[0]) == str(first)


def test_the_curve_has_hours_since_the_start_and_energy_so_far(timed):
    run = timed[2]
    curve = evaluation_curve(run)
    rows = run.rounds.to_pylist()
    evaluated = [row["round"] for row in rows if row["accuracy"] is not None]
    assert list(curve["hours"]) == pytest.approx([(rows[r]["end_seconds"] - 8 * 3600) / 3600 for r in evaluated])
    spent = list(itertools.accumulate(row["joules"] for row in rows))
    assert list(curve["joules"]) == pytest.approx([spent[r] for r in evaluated])
    assert all(math.isnan(value) for value in evaluation_curve(timed[0])["joules"])


def test_a_start_at_another_hour_is_no_passing_time(make_run):
    run = make_run()
    place = run.rounds.column_names.index("end_seconds")
    at_noon = run.rounds.set_column(place, "end_seconds", pa.array([43_200.0] * run.rounds.num_rows))
    assert not has_clock(type(run)(**{**vars(run), "rounds": at_noon}))
    assert not has_clock(run)
    assert has_clock(with_clock(run))


def test_reaching_a_level_costs_hours_and_energy(timed):
    for method, row in zip(methods_of(timed), reach_table(methods_of(timed), ACCURACY), strict=True):
        for reach in row:
            hours = [first_reaching(run, reach.level) for run in method.runs] if has_clock(method.runs[0]) else [None]
            if None in hours:
                assert reach.hours is None
            else:
                assert reach.hours == pytest.approx(statistics.mean(hours))
            assert (reach.joules is not None) == (reach.bytes is not None and method.label == "fedyogi")


def test_the_table_of_the_section(timed):
    fedavg, fedyogi = clock_rows(methods_of(timed))
    for row, runs in ((fedavg, timed[:2]), (fedyogi, timed[2:4])):
        jobs = [jobs_of(run) for run in runs]
        invited = [{job["index"] for job in found} for found in jobs]
        assert row.jobs == statistics.mean(map(len, jobs))
        assert row.failed == pytest.approx(statistics.mean(map(failed, runs)))
        assert row.wasted_time == pytest.approx(statistics.mean(map(wasted, runs)))
        assert row.never_invited == pytest.approx(statistics.mean(1 - len(some) / 400 for some in invited))
        assert row.gini == pytest.approx(statistics.mean(run.summary["participation"]["gini"] for run in runs))
        assert row.seconds_per_round == pytest.approx(row.hours * 3600 / 60)
    stale = [[job["staleness"] for job in jobs_of(run) if job["outcome"] == "used"] for run in timed[2:4]]
    assert fedyogi.staleness == pytest.approx(statistics.mean(map(statistics.mean, stale)))
    assert fedavg.staleness == 0
    assert not {"staleness", "energy", "failed rounds"} & {column.title for column in clock_columns([fedavg])}
    assert {"staleness", "energy"} <= {column.title for column in clock_columns([fedavg, fedyogi])}


def test_failed_rounds_are_counted(make_run):
    run = with_clock(make_run())
    place = run.rounds.column_names.index("succeeded")
    succeeded = [False, False, True, False] + [True] * 57
    rounds = run.rounds.set_column(place, "succeeded", pa.array(succeeded))
    (row,) = clock_rows(methods_of([type(run)(**{**vars(run), "rounds": rounds})]))
    assert row.failed_rounds == 2, "round 0 is the untrained model"


def without_jobs(run):
    """The run, if nobody had ever begun to work."""
    rows = [{**row, "invited": 0, "failed": 0, "joules": None, "succeeded": False} for row in run.rounds.to_pylist()]
    rounds = pa.Table.from_pylist(rows, schema=run.rounds.schema)
    return replace(run, rounds=rounds, jobs=run.jobs.slice(0, 0), summary={"status": "finished"})


def test_a_run_without_any_job_is_in_the_table(make_run, tmp_path):
    idle, other = without_jobs(with_clock(make_run())), with_clock(make_run("fedyogi"))
    (row, _) = clock_rows(methods_of([idle, other]))
    assert (row.failed_rounds, row.jobs, row.never_invited) == (60, 0, 1)
    assert row.hours > 0
    for runs in ([idle], [idle, other]):
        page = write_report(runs, tmp_path / "report.html").read_text()
        table = re.search(r'<table class="clock">.*?</table>', page, flags=re.DOTALL)[0]
        heads = re.findall(r"<abbr[^>]*>(.*?)</abbr>", table)
        cells = dict(zip(heads, re.findall(r"<td>(.*?)</td>", table), strict=False))
        assert (cells["failed rounds"], cells["jobs"], cells["never invited"]) == ("60.0", "0", "100.0%")
        assert {cells[name] for name in ("failed", "wasted time", "wasted traffic", "Gini")} == {"–"}


def test_a_seed_without_jobs_leaves_shares_to_the_others(make_run):
    busy, idle = with_clock(make_run("fedavg", 0), energy=True), without_jobs(with_clock(make_run("fedavg", 1)))
    (row,), (alone,) = clock_rows(methods_of([idle, busy])), clock_rows(methods_of([busy]))
    for name in ("failed", "wasted_time", "wasted_bytes", "joules", "staleness", "gini"):
        assert getattr(row, name) == getattr(alone, name)
    assert (row.jobs, row.failed_rounds) == (alone.jobs / 2, 30)


def called(run, label, **config):
    return replace(run, label=label, config={**run.config, **config})


def captions(page, heading):
    """The captions of all figures whose title begins like this."""
    return re.findall(rf"<h3>{heading}[^<]*</h3>.*?<figcaption>(.*?)</figcaption>", page, flags=re.DOTALL)


def test_protocols_without_a_timeline_are_named(timed, tmp_path):
    run = timed[0]
    names = ["synchronous", "idle", "deadline", "readiness", "steady"]
    runs = [called(run, name, protocol={"name": name}) for name in names]
    runs[1] = without_jobs(runs[1])
    found = captions(write_report(runs, tmp_path / "report.html").read_text(), "Phones at work")
    assert len(found) == clock_section.MAX_TIMELINES, "the one without jobs takes no place"
    assert found[-1].endswith(" Not shown: 2 more protocols (idle and steady).")
    assert not [caption for caption in found[:-1] if "Not shown" in caption]
    # Another run of the same protocol has something to show.
    runs = [called(runs[1], "first", protocol={"name": "deadline"}), runs[2]]
    (caption,) = captions(write_report(runs, tmp_path / "report.html").read_text(), "Phones at work")
    assert "Not shown" not in caption


def test_fleets_without_a_picture_are_named(timed, tmp_path):
    fleets = [{**timed[0].fleet, "name": f"fleet {number}", "fingerprint": number} for number in range(3)]
    runs = [replace(called(timed[0], fleet["name"]), fleet=fleet) for fleet in fleets]
    found = captions(write_report(runs, tmp_path / "report.html").read_text(), "Available clients")
    assert len(found) == clock_section.MAX_FLEETS
    assert found[1].endswith(" Not shown: 1 more fleet (fleet 2).")
    assert "Not shown" not in found[0]


def test_the_caption_says_that_the_curve_is_of_several_weeks(timed, tmp_path):
    def caption(fleet):
        page = write_report([replace(timed[0], fleet=fleet)], tmp_path / "report.html").read_text()
        return captions(page, "Available clients")[0]

    fleet = timed[0].fleet
    assert "the curve is the mean of 8 weeks." in caption(fleet)
    first = {name: value for name, value in fleet["week"].items() if name != "weeks"}
    assert "weeks" not in caption({**fleet, "week": first}), "as earlier versions wrote it"


def test_the_page_has_the_section_only_with_a_clock(make_run, timed, tmp_path):
    with_time = write_report(timed, tmp_path / "a.html").read_text()
    without = write_report([make_run()], tmp_path / "b.html").read_text()
    assert 'id="time-and-phones"' in with_time
    assert 'href="#time-and-phones"' in with_time
    assert "Time and phones" not in without
    assert "at or above the level: virtual time, traffic" in with_time
    assert "at or above the level: traffic" in without


def test_the_head_of_the_page_names_time_fleet_and_protocols(make_run, timed):
    hours = final_table(timed).rows[1].hours.mean
    assert f"after 60 rounds and {hours:.2f} h of virtual time;" in headline(timed)
    assert facts(timed).endswith("20 clients a round · fleet fedscale · protocols synchronous and buffered")
    assert "virtual" not in headline([make_run()])
    assert "fleet" not in facts([make_run()])


def test_titles_are_shown_as_they_were_written(make_run, tmp_path):
    text = write_report([with_clock(make_run("a <b> & $c$"))], tmp_path / "report.html").read_text()
    assert "<h3>Phones at work: a &lt;b&gt; &amp; $c$, round" in text


def test_the_screen_shows_hours_first(timed, make_run):
    def titles(runs, width):
        console = Console(width=width, color_system=None)
        with console.capture() as capture:
            console.print(*scores_tables(runs, width))
        return "\n".join(capture.get().splitlines()[:3])

    assert "to 0." in titles(timed, 60)
    assert all(title in titles(timed, 130) for title in ("virtual time", "failed", "wasted"))
    assert "virtual time" not in titles([make_run()], 200)


_FEATURES = DataSpec("classification", 10, (4,))
TASK = make_task(build_model("logistic_regression", _FEATURES, {}, 0), _FEATURES)


def summary_of(run, **settings):
    tables = {name: getattr(run, name) for name in ("rounds", "clients", "timings", "jobs")}
    config = resolve_settings({"rounds": 60, "name": "a", "federation": "digits", **settings}, {})
    return summarize(config, TASK, {"accuracy": 0.178, "metric": "accuracy"}, 400, tables, "finished", None)


def test_the_summary_of_a_run_in_virtual_time(timed):
    run = timed[2]
    summary = summary_of(run)
    jobs = jobs_of(run)
    rows = run.rounds.to_pylist()
    assert summary["virtual_hours"] == pytest.approx((rows[-1]["end_seconds"] - 8 * 3600) / 3600)
    assert set(summary["hours_to_level"]) >= {"0.3", "0.4"}
    for level, hours in summary["hours_to_level"].items():
        assert hours == pytest.approx(first_reaching(run, float(level)))
    assert summary["success_share"] == pytest.approx(1 - failed(run))
    assert sum(summary["failures"].values()) == sum(job["outcome"] != "used" for job in jobs)
    for reason, number in summary["failures"].items():
        assert number == sum(job["outcome"] == reason for job in jobs) > 0
    assert summary["wasted"] == {
        "seconds": pytest.approx(sum(row["wasted_seconds"] for row in rows)),
        "share": pytest.approx(wasted(run)),
        "bytes": sum(row["wasted_bytes"] for row in rows),
    }
    stale = [job["staleness"] for job in jobs if job["outcome"] == "used"]
    assert summary["staleness"] == {"mean": pytest.approx(statistics.mean(stale)), "max": max(stale)}
    assert summary["joules"] == pytest.approx(sum(job["joules"] for job in jobs))
    assert summary["participation"]["invited_clients"] == len({job["index"] for job in jobs})


def test_who_is_still_at_work_in_the_end_was_invited(tmp_path: Path) -> None:
    run = fedarena.run(
        federation={"name": "digits", "partition": {"name": "iid", "clients": 60}},
        model="logistic_regression",
        rounds=2,
        cohort=30,
        fleet="uniform",
        protocol={"name": "buffered", "buffer_size": 5},
        progress=False,
        runs_folder=tmp_path,
    )
    jobs, found = run.jobs.to_pandas(), run.summary["participation"]
    assert jobs["index"].nunique() < 30 <= found["invited_clients"] <= 30 + len(jobs)  # thirty began at once
    assert found["used_clients"] == jobs[jobs["outcome"] == "used"]["index"].nunique()
    (row,) = clock_rows(methods_of([run]))
    assert row.never_invited == found["never_invited_share"] == 1 - found["invited_clients"] / 60


def test_the_summary_of_the_ideal_world_is_as_before_but_for_participation(timed, make_run):
    before = set(summary_of(make_run()))
    assert not before & {"virtual_hours", "failures", "wasted", "participation"}
    ideal = make_run()
    ideal = type(ideal)(**{**vars(ideal), "jobs": timed[0].jobs})
    assert set(summary_of(ideal)) - before == {"participation"}
    assert set(summary_of(ideal, training="centralized")) == before, "the server is no client"
    assert summary_of(timed[0])["joules"] is None
