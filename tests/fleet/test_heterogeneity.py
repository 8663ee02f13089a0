"""The heterogeneity metrics against a plain loop, against published values, and on fleets at the limits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_heterogeneity import PlainWorld
from trace_folder import FLHETBENCH, needs_flhetbench

from fedarena.core.errors import BadInputError
from fedarena.fleet import Availability, ClientFleet, Devices, Fleet, Ragged, load_fleet
from fedarena.fleet.heterogeneity import (
    CODE_OPTIONS,
    METRICS,
    PAPER_OPTIONS,
    HeterogeneityOptions,
    in_order,
    measure_heterogeneity,
    single_state_metric,
)
from fedarena.fleet.heterogeneity.populations import IntermittentlyAvailable

FEW = HeterogeneityOptions(
    deadline_seconds=40.0,
    rounds=40,
    trips=60,
    cohort=3,
    break_seconds=7.0,
    model_bytes=1_000_000,
    cost_draws=2,
    repetitions=2,
)
VARIANTS = {
    "paper": {},
    "code": {
        "inclusive_deadline": True,
        "whole_seconds": True,
        "ready_share": 0.8,
        "deadline_cost_step_seconds": 20.0,
        "readiness_costs_seconds": (0.0, 30.0),
        "samples": 0.0,
    },
    "fractions": {"break_seconds": 2.25, "ready_share": 0.55, "samples": 3.0, "seed": 9},
    "rounded breaks": {"break_seconds": 2.25, "whole_seconds": True, "ready_share": 0.3},
    "everybody": {"cohort": 9},
}


def small_fleet(seed: int, phones: int = 9) -> ClientFleet:
    """Phones with short periods, of all kinds: one never leaves, one is never there."""
    random = np.random.default_rng(seed)
    periods = random.integers(40, 400, size=phones)
    rows, starts, ends = [], [], []
    for phone in range(1, phones):
        count = random.integers(1, 8)
        bounds = np.sort(random.choice(periods[phone] + 1, size=2 * count, replace=False))
        if phone == 1:
            bounds, count = np.array([0, periods[phone]]), 1
        rows += [phone] * int(count)
        starts += bounds[::2].tolist()
        ends += bounds[1::2].tolist()
    flops = np.where(np.arange(phones) % 3 == 0, 1e10, np.nan)
    devices = Devices.from_columns(
        seconds_per_sample=random.uniform(0.1, 5, size=phones),
        flops_per_second=flops,
        download_bits_per_second=random.uniform(2e5, 8e6, size=phones),
        measured_upload=Ragged.from_lists(
            [random.uniform(2e5, 8e6, size=random.integers(1, 4)).tolist() for _ in range(phones)]
        ),
    )
    availability = Availability.from_intervals(rows, starts, ends, periods)
    return Fleet("small", devices, availability, paired=True).match(np.arange(phones), None, seed=seed)


def always_or_never(availability: Availability, **columns: Any) -> ClientFleet:
    phones = len(availability)
    given = {"seconds_per_sample": 0.0, "download_bits_per_second": np.inf, "upload_bits_per_second": np.inf} | columns
    devices = Devices.from_columns(**{name: np.full(phones, value) for name, value in given.items()})
    return in_order(Fleet("plain", devices, availability, paired=True))


def with_trace_starts(phones: ClientFleet, latest: int) -> ClientFleet:
    """The same phones, whose traces are said to start some time between 0 and `latest` seconds."""
    fleet = phones.fleet
    starts = np.random.default_rng(0).integers(latest + 1, size=len(fleet.availability))
    return replace(phones, fleet=replace(fleet, availability=replace(fleet.availability, trace_starts=starts)))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("variant", ["code", "rounded breaks", "rounded quarters"])
@pytest.mark.parametrize("latest", [0, 3_000, 10**7], ids=["past", "in between", "to come"])
@pytest.mark.parametrize(("seed", "draws"), [(0, False), (2, False), (2, True)])
def test_seconds_rounded_by_the_start_of_traces_equal_the_plain_loop(
    variant: str, latest: int, seed: int, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IntermittentlyAvailable, "drawing_ratio", 0.0 if draws else math.inf)
    # Quantiles of whole seconds make times that are not whole.
    more = {"rounded quarters": {**VARIANTS["code"], "cohort": 4, "ready_share": 0.75, "trips": 300}}
    options = replace(FEW, repetitions=1, **(VARIANTS | more)[variant])
    phones = with_trace_starts(small_fleet(seed), latest)
    found = measure_heterogeneity(phones, np.arange(9), options).metrics
    expected = PlainWorld(phones, 9, options, draws).metrics(0)
    assert {name: estimate.mean for name, estimate in found.items()} == pytest.approx(expected, rel=1e-9)


def test_when_traces_start_matters_for_whole_seconds_alone() -> None:
    phones = small_fleet(2)
    options = replace(FEW, repetitions=1, trips=300, ready_share=0.75, cohort=4)
    started, to_come = (with_trace_starts(phones, latest) for latest in (0, 10**7))

    def metrics(fleet: ClientFleet, **changed: Any) -> Any:
        return measure_heterogeneity(fleet, np.arange(9), replace(options, **changed)).as_dict()["metrics"]

    assert metrics(started) == metrics(phones)
    assert metrics(started, whole_seconds=True) != metrics(phones, whole_seconds=True)
    # Beyond all times of the simulation it is as if nothing were known.
    assert metrics(to_come, whole_seconds=True)["StatMC-R"] == metrics(phones, whole_seconds=True)["StatMC-R"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("seed", "draws"), [(0, False), (0, True), (1, False)])
def test_all_six_equal_the_plain_loop(variant: str, seed: int, draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntermittentlyAvailable, "drawing_ratio", 0.0 if draws else math.inf)
    options = replace(FEW, **VARIANTS[variant])
    phones = small_fleet(seed)
    world = PlainWorld(phones, 9, options, draws)
    found = measure_heterogeneity(phones, np.arange(9), options)
    for repetition in range(options.repetitions):
        expected = world.metrics(repetition)
        assert {name: estimate.values[repetition] for name, estimate in found.metrics.items()} == pytest.approx(
            expected, rel=1e-9
        )


def test_rounds_that_take_no_time_end_with_the_interval() -> None:
    """A client is there for 100 seconds; rounds 20 seconds apart meet it four times, and then a period later."""
    phones = always_or_never(Availability.from_intervals([0, 1], [0, 0], [100, 100], [1000, 1000]))
    options = replace(
        PAPER_OPTIONS, cohort=2, trips=10, readiness_costs_seconds=(0.0,), rounds=49, repetitions=1, samples=0.0
    )
    found = measure_heterogeneity(phones, np.arange(2), options).metrics["StatMC-T"]
    assert found.mean * options.trips / options.cohort * options.break_seconds == 1000


@pytest.mark.parametrize("seed", range(4))
def test_rounds_that_take_no_time_equal_the_plain_loop(seed: int) -> None:
    options = replace(FEW, cohort=9, readiness_costs_seconds=(0.0,), break_seconds=4.0, trips=400, repetitions=1)
    phones = small_fleet(seed)
    expected = PlainWorld(phones, 9, options).metrics(0)["StatMC-T"]
    found = measure_heterogeneity(phones, np.arange(9), options).metrics["StatMC-T"].mean
    assert found == pytest.approx(expected, rel=1e-9)


def test_windows_of_many_spans_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    phones = small_fleet(4)
    whole = measure_heterogeneity(phones, np.arange(9), FEW)
    monkeypatch.setattr("fedarena.fleet.heterogeneity.availability_windows._MOST_ENTRIES", 30)
    assert measure_heterogeneity(phones, np.arange(9), FEW).as_dict() == whole.as_dict()


def test_participation_and_the_single_state_metric_of_every_client() -> None:
    phones, options = small_fleet(5), replace(FEW, repetitions=1)
    found = measure_heterogeneity(phones, np.arange(9), options)
    world = PlainWorld(phones, 9, options)
    in_time = [world.simulate(2 + number, cost, True)[0] for number, cost in enumerate(options.deadline_costs(0))]
    ideal = 3 / 9 * 40
    np.testing.assert_allclose(found.participation["StatMC-R"], np.mean(in_time, axis=0) / ideal)
    np.testing.assert_allclose(found.state_metric, np.minimum(in_time, ideal).mean(axis=0) / ideal)
    assert found.state_metric[phones.availability_of == 0].item() == 0

    rows = PlainWorld(in_order(phones.fleet), 9, options)
    in_time = [rows.simulate(number, cost, True)[0] for number, cost in enumerate(options.deadline_costs(0))]
    alone = single_state_metric(phones.fleet.availability, options)
    np.testing.assert_allclose(alone, np.minimum(in_time, ideal).mean(axis=0) / ideal)


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    phones, clients = small_fleet(6), np.arange(9)
    first, again, other = (
        measure_heterogeneity(phones, clients, replace(FEW, seed=seed)).as_dict()["metrics"] for seed in (0, 0, 1)
    )
    assert first == again
    assert first["InterMC-T"]["values"] != other["InterMC-T"]["values"]
    more = measure_heterogeneity(phones, clients, replace(FEW, repetitions=3))
    assert more.metrics["InterMC-R"].values[:2] == tuple(first["InterMC-R"]["values"])


def test_some_clients_of_a_fleet_are_measured_like_a_fleet_of_them() -> None:
    phones = small_fleet(7)
    some = np.array([2, 3, 5, 7])
    fleet = phones.fleet
    rows = phones.device_of[some]
    alone = in_order(Fleet("some", fleet.devices.take(rows), fleet.availability.take(rows), paired=True))
    found, expected = measure_heterogeneity(phones, some, FEW), measure_heterogeneity(alone, np.arange(4), FEW)
    assert found.as_dict() == expected.as_dict()


REFERENCE = {
    1: (0.8293, 7.879, 0.8061, 190.35, 0.5880, 471.77),
    2: (0.9042, 8.309, 0.8218, 167.78, 0.6789, 166.19),
}


@pytest.mark.sampled(1)
@needs_flhetbench
@pytest.mark.parametrize("case", REFERENCE)
def test_values_of_the_published_code(case: int) -> None:
    files = {"timers": "cached_timers", "states": f"state_case{case}", "devices": f"device_case{case}"}
    options = {f"{kind}_file": str(FLHETBENCH / f"{name}.json") for kind, name in files.items()}
    phones = in_order(load_fleet({"name": "flhetbench", **options}, phones=100))
    found = measure_heterogeneity(phones, np.arange(100), CODE_OPTIONS).metrics
    for name, expected in zip(METRICS, REFERENCE[case], strict=True):
        # To the last printed digit. Other random numbers would not come close for -T, which single events decide.
        digits = 4 if name.endswith("R") else 3 if name.startswith("Dev") else 2
        assert round(found[name].mean, digits) == expected, name


def test_a_perfect_fleet_is_as_good_as_can_be() -> None:
    options = replace(PAPER_OPTIONS, cohort=10, rounds=40, trips=100, repetitions=2)
    found = measure_heterogeneity(always_or_never(Availability.always(10)), np.arange(10), options).metrics
    for name, estimate in found.items():
        if not name.startswith("Stat"):
            assert estimate.mean == pytest.approx(1.0), name
    assert found["StatMC-R"].mean == pytest.approx(1.0)
    drawn = [options.readiness_costs(repetition).mean() for repetition in range(2)]
    assert found["StatMC-T"].values == pytest.approx([1 + seconds / 20 for seconds in drawn])


def test_a_deadline_nobody_can_meet_is_zero() -> None:
    slow = always_or_never(Availability.always(5), seconds_per_sample=121.0)
    found = measure_heterogeneity(slow, np.arange(5), replace(FEW, cohort=2, deadline_seconds=120.0)).metrics
    assert found["DevMC-R"].mean == 0
    assert found["InterMC-R"].mean == 0
    assert found["DevMC-T"].mean == pytest.approx((7 + 121) / 7)


@pytest.mark.parametrize(
    "availability",
    [
        Availability.never(5),
        # There for a second that rounds every seven seconds never meet, because the period is 70 seconds.
        Availability.from_intervals([0], [5], [6], [70] * 5),
    ],
    ids=["never there", "never met"],
)
@pytest.mark.parametrize("draws", [False, True])
def test_a_fleet_that_is_never_there(availability: Availability, draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntermittentlyAvailable, "drawing_ratio", 0.0 if draws else math.inf)
    options = replace(FEW, cohort=2, readiness_costs_seconds=(0.0, 10.0))
    found = measure_heterogeneity(always_or_never(availability), np.arange(5), options)
    for name in ("StatMC-R", "InterMC-R"):
        assert found.metrics[name].mean == 0
    for name in ("StatMC-T", "InterMC-T"):
        assert found.metrics[name].never
        assert found.metrics[name].as_dict() == {
            "mean": None, "low": None, "high": None, "never": True, "values": [None, None]
        }  # fmt: skip
    assert found.metrics["DevMC-R"].mean > 0.8
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_short_slot_that_is_met_in_the_end() -> None:
    # Seconds 5 to 6 of 71: rounds every seven seconds meet them once in seven periods.
    phones = always_or_never(Availability.from_intervals([0], [5], [6], [71] * 3))
    options = replace(FEW, cohort=1, trips=2, rounds=200, readiness_costs_seconds=(0.0,), repetitions=1)
    world = PlainWorld(phones, 3, options)
    found = measure_heterogeneity(phones, np.arange(3), options)
    assert {name: estimate.mean for name, estimate in found.metrics.items()} == pytest.approx(world.metrics(0))
    assert not found.metrics["StatMC-T"].never


def test_too_few_clients() -> None:
    phones = small_fleet(0)
    with pytest.raises(BadInputError, match="cohort is 20, but there are only 9 clients"):
        measure_heterogeneity(phones, np.arange(9))
    with pytest.raises(BadInputError, match="without clients"):
        measure_heterogeneity(phones, np.arange(0))
    with pytest.raises(BadInputError, match="cohort is 20"):
        single_state_metric(Availability.always(3))
    with pytest.raises(BadInputError, match="device and an availability"):
        in_order(Fleet("two", phones.fleet.devices, Availability.always(3)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deadline_seconds", 0.0),
        ("deadline_seconds", math.inf),
        ("deadline_seconds", 1e300),
        ("break_seconds", -1.0),
        ("break_seconds", 1e300),
        ("rounds", 10**10),
        ("cost_draws", 2_000_000),
        ("samples", 1e300),
        ("deadline_cost_step_seconds", 1e-9),
        ("rounds", 0),
        ("rounds", 2.5),
        ("trips", 0),
        ("cohort", 0),
        ("cost_draws", 0),
        ("repetitions", 0),
        ("model_bytes", -1),
        ("samples", math.nan),
        ("flops_per_sample", -1.0),
        ("seed", -1),
        ("ready_share", 0.0),
        ("ready_share", 1.1),
        ("confidence", 1.0),
        ("random_numbers", "other"),
        ("deadline_cost_step_seconds", 130.0),
        ("readiness_costs_seconds", ()),
        ("readiness_costs_seconds", (1.0, -1.0)),
    ],
)
def test_wrong_options(name: str, value: Any) -> None:
    with pytest.raises(BadInputError, match=f"^{name} must"):
        HeterogeneityOptions(**{name: value})
