"""From the loop over rounds to tables and page: what runs record is what metrics and figures expect."""

from __future__ import annotations

import numpy as np
import pytest

from fedarena.display import final_table, timeline_figure, write_report
from fedarena.display.report.sections.headline import facts
from fedarena.metrics import OUTCOMES
from fedarena.runs.config import resolve_settings
from fedarena.runs.run import start_run
from fedarena.simulate.jobs import Outcome


@pytest.fixture(scope="module", params=["synchronous", "buffered"])
def run(request, tmp_path_factory):
    settings = {
        "name": "a",
        "federation": "digits",
        "model": "logistic_regression",
        "rounds": 8,
        "cohort": 5,
        "evaluation": {"every": 4},
        "fleet": {"name": "uniform", "seconds_per_sample": [0.1, 3.0], "share": 0.4, "slot_seconds": 300},
        "protocol": request.param,
        "clock": {"start_hour": 7.0, "crash_rate": 0.1},
    }
    return start_run(resolve_settings(settings, {}), tmp_path_factory.mktemp(request.param))


def test_outcomes_are_called_what_they_are():
    assert len(Outcome) == len(OUTCOMES)
    for outcome in Outcome:
        assert outcome.label.replace(" while", "") == outcome.name.lower().replace("_", " ")


def test_the_rounds_say_the_same_as_the_jobs(run):
    jobs, rounds = run.jobs.to_pandas(), run.rounds.to_pandas()
    failed = jobs[jobs["outcome"] != "used"]
    assert len(failed) > 0
    assert rounds["invited"].sum() == len(jobs)
    assert rounds["failed"].sum() == len(failed)
    seconds = failed["worked_seconds"]
    assert rounds["wasted_seconds"].sum() == pytest.approx(seconds.sum())
    assert rounds["wasted_bytes"].sum() == (failed["bytes_down"] + failed["bytes_up"]).sum()
    assert jobs["end_seconds"].max() <= rounds["end_seconds"].iloc[-1]
    assert np.isfinite(jobs.loc[jobs["outcome"] == "used", "uploaded_seconds"]).all()


def test_the_head_of_the_page_says_how_many_updates_were_used(run):
    used = round(run.rounds.to_pandas()["clients"][1:].mean())
    assert f" · {used} client" in facts([run])
    assert used != round(run.rounds.to_pandas()["invited"][1:].mean())
    few = type(run)(**{**vars(run), "config": run.config | {"cohort": 999}})
    assert facts([few]) == facts([run])


def test_summary_table_and_page_show_its_time(run, tmp_path):
    assert run.summary["virtual_hours"] == pytest.approx(run.rounds["end_seconds"][-1].as_py() / 3600 - 7)
    assert run.summary["participation"]["clients"] == run.fleet["clients"]
    (row,) = final_table([run]).rows
    assert row.hours.mean == pytest.approx(run.summary["virtual_hours"])
    assert row.wasted.mean == pytest.approx(run.summary["wasted"]["share"])
    assert row.failed.mean == pytest.approx(1 - run.summary["success_share"])
    assert timeline_figure(run) is not None
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "Time and phones" in text
    assert "Device speeds: uniform" in text
