"""What runs say about their phones before they begin, and how they end when these bring nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import config

from fedarena.core.console import Screen
from fedarena.core.errors import BadInputError, TrainingStuckError
from fedarena.display.drawing.units import SECONDS, quantity
from fedarena.display.progress import ProgressBars
from fedarena.fleet import Availability, Fleet, load_fleet
from fedarena.runs.building import prepare
from fedarena.runs.observer import Observer
from fedarena.runs.run import start_run
from fedarena.runs.suite import Suite
from fedarena.runs.suite_plan import begin_suite, plan_suite
from fedarena.runs.suite_running import run_one_by_one
from fedarena.storage.run_data import load_run

PHONES = {"name": "uniform", "seconds_per_sample": [0.1, 1.0], "share": 0.5, "slot_seconds": 600}


def on_phones(**settings: Any):
    return config(**{"fleet": PHONES, "protocol": "synchronous", "rounds": 4} | settings)


def warnings_of(**settings: Any) -> str:
    return "\n".join(prepare(on_phones(**settings), Observer()).warnings)


def nobody(phones: int) -> Fleet:
    return Fleet("nobody", load_fleet("uniform", phones).devices, Availability.never(phones))


def not_a_fleet(phones: int) -> None:
    """Forgets to return one."""


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"fleet": f"{__name__}:nobody"}, "Nobody of the 20 clients is ever available in the fleet 'nobody'"),
        ({"fleet": f"{__name__}:not_a_fleet"}, "must return a Fleet, not None"),
        ({"fleet": PHONES | {"seconds_per_sample": 1000.0}}, "No client can ever finish a job: the fastest would"),
        ({"protocol": {"name": "deadline", "seconds": 0.001}}, "longer than its phone ever stays or the server waits"),
        ({"protocol": {"name": "deadline", "minimum_invited": 5}}, "only the cohort of 4 is ever invited"),
        ({"protocol": {"name": "buffered", "buffer_size": 21}}, "the updates of 21 different clients"),
        ({"protocol": "buffered", "algorithm": "mocha"}, "which updates to older models would break"),
        ({"protocol": "asynchronous", "algorithm": "feddyn"}, "which updates to older models would break"),
        ({"training": "centralized", "cohort": 1}, "where there are no phones; leave fleet out"),
        ({"clock.start_hour": 1e9}, "clock.start_hour"),
        ({"clock.hours": 0}, "clock.hours"),
        ({"clock.leaving": "stay"}, "clock.leaving"),
        ({"clock.crash_rate": 1.0}, "clock.crash_rate"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(on_phones(**settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_users_should_know() -> None:
    assert warnings_of() == ""
    assert "On average 10 of the 20 clients are available at a time" in warnings_of(cohort=15)
    assert "can finish a job in one stay and in time" in warnings_of(**{"fleet.seconds_per_sample": [1.0, 30.0]})
    assert "ignores that phones leave" in warnings_of(protocol="ideal")
    assert "no time passes" in warnings_of(fleet="ideal")
    assert "no time passes" in warnings_of(fleet="ideal", protocol="ideal", **{"clock.crash_rate": 0.5})
    assert "rounds wait for slow ones" in warnings_of(protocol={"name": "buffered", "buffer_size": 18})
    assert "overhead_seconds is ignored" in warnings_of(
        protocol={"name": "buffered", "buffer_size": 2}, **{"clock.overhead_seconds": 3.0}
    )


def test_a_run_without_any_update_has_failed(tmp_path: Path) -> None:
    settings = on_phones(**{"clock.crash_rate": 0.999999})
    with pytest.raises(TrainingStuckError, match="No update came in 4 rounds"):
        start_run(settings, tmp_path)
    run = load_run(tmp_path / "small")
    assert run.status == "failed"
    assert run.rounds["succeeded"].to_pylist()[1:] == [False] * 4
    assert run.rounds["train_loss"].null_count == 5
    assert set(run.jobs["outcome"].to_pylist()) == {"crashed"}
    others = {"small": settings, "fine": on_phones(name="fine")}
    failures = run_one_by_one(
        begin_suite(plan_suite(Suite("both", others), tmp_path), Observer()), Observer(), lambda text: None
    )
    assert [failure.partition(":")[0] for failure in failures] == ["small"]
    assert load_run(tmp_path / "both" / "fine").status == "finished"


def test_a_clock_that_runs_away(tmp_path: Path) -> None:
    settings = on_phones(fleet={"name": "uniform", "seconds_per_sample": 1e300})
    with pytest.raises(TrainingStuckError, match="which no clock can tell"):
        start_run(settings, tmp_path)


def with_watts(phones: int, *, known: int) -> Fleet:
    """Of so many phones it is known what their work costs."""
    fleet = load_fleet("uniform", phones)
    watts = np.where(np.arange(phones) < known, 2.0, np.nan)
    return replace(fleet, devices=replace(fleet.devices, compute_watts=watts, radio_watts=watts))


@pytest.mark.parametrize("known", [20, 19])
def test_energy_is_known_if_all_phones_tell_it(tmp_path: Path, known: int) -> None:
    run = start_run(on_phones(fleet={"name": f"{__name__}:with_watts", "known": known}, cohort=15), tmp_path)
    by_round = run.rounds["joules"].to_pylist()[1:]
    if known < 20:
        assert by_round == [None] * 4
        assert run.summary["joules"] is None
    else:
        jobs = run.jobs.to_pandas()
        assert by_round == pytest.approx(jobs.groupby("round")["joules"].sum().tolist())
        assert jobs["joules"].tolist() == pytest.approx((2 * jobs["worked_seconds"]).tolist())
        assert run.summary["joules"] == pytest.approx(sum(by_round))


def test_the_screen_tells_virtual_time(tmp_path: Path) -> None:
    console = Screen(file=io.StringIO(), width=200)
    with ProgressBars(console) as bars:
        run = start_run(on_phones(**{"clock.start_hour": 5.0, "clock.hours": 100.0}), tmp_path, bars)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4 rounds or 100 hours of virtual time, 0 done" in shown
    seconds = run.rounds["end_seconds"][-1].as_py() - 5 * 3600
    assert f"after {quantity(seconds, SECONDS)}" in shown.splitlines()[-1]


def test_hours_end_a_run(tmp_path: Path) -> None:
    run = start_run(on_phones(rounds=1000, **{"clock.hours": 0.05, "clock.start_hour": 3.0}), tmp_path)
    ends = run.rounds["end_seconds"].to_numpy() / 3600 - 3
    assert ends[0] == 0
    assert ends[-2] < 0.05 <= ends[-1]
    assert run.rounds["accuracy"][-1].is_valid
    assert run.summary["virtual_hours"] == pytest.approx(ends[-1])


def test_big_datasets_on_fast_phones() -> None:
    found = {}
    for correlation in (-1.0, 1.0):
        settings = on_phones(fleet="fedscale", **{"clock.correlation": correlation})
        simulation = prepare(settings, Observer()).simulation
        clients, fleet = simulation.training_clients, simulation.fleet
        assert fleet is not None
        seconds = fleet.fleet.devices.seconds_per_sample[fleet.device_of[clients]]
        found[correlation] = np.corrcoef(seconds, simulation.engine.data.counts(clients, "train"))[0, 1]
    assert found[1.0] < -0.5 < 0.5 < found[-1.0]
