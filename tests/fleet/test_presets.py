"""Fleets that are made up: their figures are the published ones, and their phones are possible."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from fedarena.core.errors import BadInputError
from fedarena.fleet import Availability, Fleet, load_fleet
from fedarena.fleet.sources import availability_model as module
from fedarena.fleet.sources.availability_model import AvailabilityModel, make_availability
from fedarena.fleet.sources.flash import IDLE_CHARGING_WIFI
from fedarena.fleet.sources.quantiles import QuantileTable, stratified
from fedarena.fleet.statistics import slots as uninterrupted

PHONES = 20_000
SEEDS = (0, 1, 2)
TOLERANCE = 0.05
DAY_SECONDS = 86_400
TRAINING_FACTOR = 3.0
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
TRACES = Path(__file__).parents[3] / "shared" / "data" / "flhetbench_traces"

# FedScale: smallest, mean, largest; None where nothing is known.
FEDSCALE = {
    "latency milliseconds": (15, 78.02, 199),
    "kilobits per second": (1016.88, 13_736.14, 204_056.7),
    "period": (86_400, 393_232.3, 1_296_000),
    "intervals": (None, 20.81, None),
    "share": (None, 0.2026, None),
}
# FLHetBench: the mean, and the quantiles at LEVELS; `measured_figures` finds them in its files.
FLASH = {
    "period": (410_826, (172_800, 345_600, 432_000, 518_400, 518_400)),
    "intervals": (18.81, (2, 5, 12, 26, 46)),
    "share": (0.0950, (0.00115, 0.01256, 0.0548, 0.1308, 0.255)),
    "interval seconds": (2045, (5, 11, 171, 1186, 4495)),
    "latency milliseconds": (272.4, (69, 96, 172, 309.2, 475.6)),
    "kilobits per second": (42_152, (37_133, 41_574, 41_842, 42_418, 47_019)),
    "measured kilobits per second": (42_153, (34_197, 38_251, 42_643, 45_516, 50_255)),
}
# Seconds between two intervals; nothing in the model aims at them directly.
FLASH_GAPS = (12_486, (7, 64, 618, 8071, 42_104))
GAP_TOLERANCE = 0.15
# How many phones are available in each hour of the day, relative to the mean of all hours.
FLASH_HOURS = (
    *(1.13, 1.25, 1.378, 1.441, 1.459, 1.431, 1.304, 1.182, 1.071, 0.955, 0.828, 0.738),
    *(0.733, 0.691, 0.709, 0.747, 0.815, 0.855, 0.956, 0.82, 0.738, 0.786, 0.935, 1.048),
)


def figures(fleet: Fleet) -> dict[str, np.ndarray]:
    """The numbers behind every published or measured figure."""
    devices, availability = fleet.devices, fleet.availability
    measured = devices.measured_download
    return {
        "latency milliseconds": 1000 * devices.seconds_per_sample / TRAINING_FACTOR,
        "kilobits per second": devices.download_bits_per_second / 1000,
        "measured kilobits per second": (measured.values if measured else np.empty(0)) / 1000,
        "period": availability.periods,
        "intervals": np.diff(availability.offsets),
        "share": availability.share(),
        "interval seconds": availability.ends - availability.starts,
    }


def gaps(availability: Availability) -> np.ndarray:
    """Seconds from the end of an interval to the beginning of the phone's next one in the same period."""
    rows = np.repeat(np.arange(len(availability)), np.diff(availability.offsets))
    return (availability.starts[1:] - availability.ends[:-1])[rows[1:] == rows[:-1]]


def available_by_hour(availability: Availability) -> np.ndarray:
    """Available seconds in each hour of the day, relative to their mean."""
    hours = np.zeros(24)
    for hour in range(int(availability.periods.max()) // 3600):
        begin, end = hour * 3600, (hour + 1) * 3600
        inside = np.minimum(availability.ends, end) - np.maximum(availability.starts, begin)
        hours[hour % 24] += inside[inside > 0].sum()
    return hours / hours.mean()


@pytest.mark.parametrize("seed", SEEDS)
def test_fedscale_has_the_published_figures(seed: int) -> None:
    fleet = load_fleet({"name": "fedscale", "seed": seed}, PHONES)
    found = figures(fleet)
    for name, (smallest, mean, largest) in FEDSCALE.items():
        assert found[name].mean() == pytest.approx(mean, rel=TOLERANCE), name
        if smallest is not None:
            assert found[name].min() == pytest.approx(smallest, rel=TOLERANCE), name
            assert found[name].max() == pytest.approx(largest, rel=TOLERANCE), name
    assert (fleet.availability.periods % DAY_SECONDS == 0).all()
    assert np.array_equal(fleet.devices.download_bits_per_second, fleet.devices.upload_bits_per_second)


@pytest.mark.parametrize("seed", SEEDS)
def test_flash_has_the_measured_figures(seed: int) -> None:
    fleet = load_fleet({"name": "flash", "seed": seed}, PHONES)
    found = figures(fleet)
    for name, (mean, quantiles) in FLASH.items():
        assert found[name].mean() == pytest.approx(mean, rel=TOLERANCE), name
        assert np.quantile(found[name], LEVELS) == pytest.approx(quantiles, rel=TOLERANCE), name
    assert available_by_hour(fleet.availability) == pytest.approx(FLASH_HOURS, rel=TOLERANCE)
    between = gaps(fleet.availability)
    assert between.mean() == pytest.approx(FLASH_GAPS[0], rel=GAP_TOLERANCE)
    assert np.quantile(between, LEVELS) == pytest.approx(FLASH_GAPS[1], rel=GAP_TOLERANCE)
    assert spearmanr(found["intervals"], found["share"]).statistic == pytest.approx(0.55, abs=0.05)
    assert spearmanr(found["intervals"], found["period"]).statistic == pytest.approx(0.28, abs=0.05)


@pytest.mark.skipif(not TRACES.exists(), reason="FLHetBench's traces are not here")
def test_the_measured_figures_are_those_of_the_files() -> None:
    found, by_hour = measured_figures()
    for name, (mean, quantiles) in {**FLASH, "gap seconds": FLASH_GAPS}.items():
        assert found[name].mean() == pytest.approx(mean, rel=1e-3), name
        assert np.quantile(found[name], LEVELS) == pytest.approx(quantiles, rel=1e-3), name
    assert by_hour == pytest.approx(FLASH_HOURS, abs=1e-3)


def measured_figures() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """What FLHetBench's files say, phone by phone; the second in which an interval ends belongs to it."""
    timers = [timer for timer in json.loads((TRACES / "cached_timers.json").read_text()).values() if timer["isSuccess"]]
    periods, counts, shares, lengths, between, hours = [], [], [], [], [], np.zeros(24)
    for timer in timers:
        seconds = np.concatenate([np.arange(start, end + 1, dtype=int) for start, end in timer["ready_time"]])
        ends = np.flatnonzero(np.append(np.diff(seconds) > 1, True))
        periods.append(int(timer["trace_end"] - timer["trace_start"]))
        counts.append(len(ends))
        shares.append(len(seconds) / periods[-1])
        lengths.append(np.diff(ends, prepend=-1))
        between.append(np.diff(seconds)[ends[:-1]] - 1)
        hours += np.bincount(seconds % DAY_SECONDS // 3600, minlength=24)
    latencies = [row["ResNet Latency"] for row in json.loads((TRACES / "training_latency.json").read_text())]
    records = [
        np.array(record["tcp_speed_results"])
        for case in (1, 2)
        for record in json.loads((TRACES / f"device_case{case}.json").read_text())
    ]
    found = {
        "period": periods,
        "intervals": counts,
        "share": shares,
        "interval seconds": np.concatenate(lengths),
        "gap seconds": np.concatenate(between),
        "latency milliseconds": [latency for latency in latencies if latency > 0],
        "kilobits per second": [record.mean() for record in records],
        "measured kilobits per second": np.concatenate(records),
    }
    return {name: np.asarray(values) for name, values in found.items()}, hours / hours.mean()


def assert_possible(availability: Availability) -> None:
    """All that `Availability` believes of its arrays, checked by the constructor that believes nothing."""
    rows = np.repeat(np.arange(len(availability)), np.diff(availability.offsets))
    checked = Availability.from_intervals(rows, availability.starts, availability.ends, availability.periods)
    for name in ("offsets", "starts", "ends", "periods"):
        given, found = getattr(availability, name), getattr(checked, name)
        assert np.array_equal(given, found), name  # nothing had to be merged or put in order
        assert given.dtype == found.dtype, name


@pytest.mark.parametrize("name", ["fedscale", "flash", "uniform", "ideal"])
@pytest.mark.parametrize("phones", [1, 2, 57, 3000])
def test_phones_are_possible(name: str, phones: int) -> None:
    fleet = load_fleet(name, phones)
    assert len(fleet.devices) == len(fleet.availability) == phones
    assert fleet.name == name
    assert_possible(fleet.availability)


@pytest.mark.parametrize("name", ["fedscale", "flash", "uniform", "ideal"])
def test_a_fleet_without_phones_is_refused(name: str) -> None:
    with pytest.raises(BadInputError, match=f"The fleet '{name}' has no phones"):
        load_fleet(name, 0)


@pytest.mark.parametrize("name", ["fedscale", "flash", "uniform"])
def test_the_seed_decides_everything(name: str) -> None:
    options = {"name": name, "seed": 4}
    if name == "uniform":
        options |= {"share": 0.5, "seconds_per_sample": [0.1, 0.2]}
    first, again, other = (load_fleet(options | {"seed": seed}, 300) for seed in (4, 4, 5))
    assert first.fingerprint == again.fingerprint
    assert not np.array_equal(first.devices.seconds_per_sample, other.devices.seconds_per_sample)
    assert not np.array_equal(first.availability.starts, other.availability.starts)


def test_blocks_do_not_change_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_DEVICES", 700)
    availability = make_availability(IDLE_CHARGING_WIFI, 5_000, seed=0)
    assert_possible(availability)
    assert len(availability) == 5_000
    assert np.diff(availability.offsets).mean() == pytest.approx(FLASH["intervals"][0], rel=TOLERANCE)
    assert np.median(availability.share()) == pytest.approx(FLASH["share"][1][2], rel=TOLERANCE)
    first, second = availability.take(np.arange(700)), availability.take(np.arange(700, 1400))
    assert not np.array_equal(first.starts[:100], second.starts[:100])


def test_few_phones_have_the_figures_too() -> None:
    fleet = load_fleet("fedscale", 50)
    found = figures(fleet)
    assert found["latency milliseconds"].mean() == pytest.approx(78.02, rel=0.1)
    assert found["share"].mean() == pytest.approx(0.2026, rel=0.1)


def test_every_day_is_like_the_others_and_nights_are_fuller() -> None:
    availability = load_fleet("fedscale", PHONES).availability
    rows = np.arange(PHONES)
    days = [availability.available_seconds(rows, day * DAY_SECONDS, (day + 1) * DAY_SECONDS).mean() for day in range(7)]
    assert days == pytest.approx([np.mean(days)] * 7, rel=0.03)
    at_four, at_thirteen = (availability.is_available(rows, hour * 3600).mean() for hour in (4, 13))
    assert at_four > 1.3 * at_thirteen


def test_slots_are_heavy_tailed_and_counts_uneven() -> None:
    availability = load_fleet("fedscale", PHONES).availability
    _, lengths = uninterrupted(availability)
    assert lengths.mean() > 5 * np.median(lengths)
    counts = np.diff(availability.offsets)
    assert np.quantile(counts, 0.9) > 15 * np.quantile(counts, 0.1)


def test_the_training_factor_multiplies_the_latency() -> None:
    inference, training = (load_fleet({"name": "fedscale", "training_factor": f}, 10).devices for f in (1.0, 2.5))
    assert training.seconds_per_sample == pytest.approx(2.5 * inference.seconds_per_sample)
    for name in ("fedscale", "flash"):
        with pytest.raises(BadInputError, match="training_factor must be positive, not 0"):
            load_fleet({"name": name, "training_factor": 0}, 10)


def test_measured_speeds_of_flash_have_the_mean_of_the_phone() -> None:
    devices = load_fleet({"name": "flash", "speeds_per_phone": 7}, 40).devices
    assert devices.measured_download is not None
    assert np.diff(devices.measured_download.offsets).tolist() == [7] * 40
    assert devices.measured_download.means() == pytest.approx(devices.download_bits_per_second)
    assert (devices.measured_download.values > 0).all()
    without = load_fleet({"name": "flash", "speeds_per_phone": 0}, 40).devices
    assert without.measured_download is None
    assert without.measured_upload is None
    assert np.array_equal(without.download_bits_per_second, devices.download_bits_per_second)
    with pytest.raises(BadInputError, match="speeds_per_phone must be between 0 and 1000, not -1"):
        load_fleet({"name": "flash", "speeds_per_phone": -1}, 10)


tables = st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=5).map(
    lambda values: QuantileTable(tuple(np.linspace(0, 1, len(values)).tolist()), tuple(sorted(values)))
)


@settings(deadline=None, max_examples=150)
@given(data=st.data(), phones=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_any_model_makes_possible_devices(data: st.DataObject, phones: int, seed: int) -> None:
    def scaled(low: float, high: float) -> QuantileTable:
        table = data.draw(tables)
        return replace(table, values=tuple(low + (high - low) * value for value in table.values))

    days = data.draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
    model = AvailabilityModel(
        days=tuple(day / sum(days) for day in days),
        slots=scaled(0.1, data.draw(st.sampled_from([3, 100, 5000]))),
        share=scaled(1e-7, data.draw(st.sampled_from([0.01, 0.5, 1.0]))),
        correlations=(0.3, 0.1, 0.5),
        short_slots=data.draw(st.sampled_from([0.0, 0.4, 0.99])),
        short_seconds=scaled(0.2, 300),
        long_weights=scaled(0.001, 50),
        bursts=data.draw(st.sampled_from([0.0, 0.5, 0.99])),
        gap_seconds=scaled(0.1, data.draw(st.sampled_from([2, 100_000]))),
        hours=tuple(data.draw(st.lists(st.floats(0.01, 5), min_size=24, max_size=24))),
        longest_hour=3.0,
        hour_effect=data.draw(st.sampled_from([0.0, 2.0])),
    )
    availability = make_availability(model, phones, seed)
    assert_possible(availability)
    # Every phone is there, and leaves; at most one of its slots was cut in two at the end of the period.
    rows, _ = uninterrupted(availability)
    slots = np.bincount(rows, minlength=phones)
    assert (slots >= 1).all()
    assert (np.diff(availability.offsets) - slots <= 1).all()
    shares = np.sort(availability.share())
    assert (shares < 1).all()
    # The smallest share is at least that of the table, but for one second; the largest is at most that of the table.
    assert shares[0] >= model.share.values[0] * 0.5
    assert shares[-1] <= max(model.share.values[-1], 1 / DAY_SECONDS) + 1e-5


def test_a_quantile_table_keeps_its_quantiles() -> None:
    table = QuantileTable((0.0, 0.1, 0.5, 1.0), (1.0, 2.0, 50.0, 60.0))
    draws = table.at(np.random.default_rng(0).random(200_000))
    assert np.quantile(draws, [0.1, 0.5]) == pytest.approx([2.0, 50.0], rel=0.02)
    assert draws.min() >= 1
    assert draws.max() <= 60
    assert table.at(np.array([0.0, 0.1, 0.3, 0.5, 1.0])) == pytest.approx([1, 2, 10, 50, 60])


def test_stratified_numbers_are_evenly_spread_and_in_the_order_of_the_scores() -> None:
    random = np.random.default_rng(3)
    scores = random.standard_normal(1000)
    numbers = stratified(scores, random)
    assert np.floor(np.sort(numbers) * 1000).astype(int).tolist() == list(range(1000))
    assert np.array_equal(np.argsort(numbers), np.argsort(scores))


def test_an_ideal_phone_takes_no_time() -> None:
    fleet = load_fleet("ideal", 3)
    assert fleet.availability.share().tolist() == [1, 1, 1]
    assert np.isinf(fleet.availability.leaves_at(np.arange(3), 1e6)).all()
    assert fleet.devices.compute_seconds(np.arange(3), 1000, 1e12).tolist() == [0, 0, 0]
    assert (1e9 / fleet.devices.draw_download(np.arange(3), np.arange(3))).tolist() == [0, 0, 0]
    assert (1e9 / fleet.devices.draw_upload(np.arange(3), np.arange(3))).tolist() == [0, 0, 0]


def test_uniform_phones_are_alike_unless_given_ranges() -> None:
    alike = load_fleet("uniform", 5)
    assert alike.devices.seconds_per_sample.tolist() == [0.1] * 5
    assert alike.devices.upload_bits_per_second.tolist() == [10e6] * 5
    assert alike.availability.share().tolist() == [1] * 5
    spread = load_fleet({"name": "uniform", "seconds_per_sample": [0.05, 0.25], "upload_bits_per_second": 2e6}, 10_000)
    speeds = spread.devices.seconds_per_sample
    assert np.quantile(speeds, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25], rel=0.05)
    assert set(spread.devices.upload_bits_per_second) == {2e6}


@pytest.mark.parametrize(("share", "slot_seconds"), [(0.9, 4), (0.7, 1), (0.999, 300), (0.3, 1)])
def test_a_share_that_whole_seconds_cannot_come_to_is_refused(share: float, slot_seconds: int) -> None:
    with pytest.raises(BadInputError, match="cannot come to a share"):
        load_fleet({"name": "uniform", "share": share, "slot_seconds": slot_seconds}, 10)
    possible = load_fleet({"name": "uniform", "share": share, "slot_seconds": 20_000}, 10)
    assert possible.availability.share() == pytest.approx(np.full(10, share), rel=1e-3)


def test_uniform_phones_come_and_go_independently_of_the_time() -> None:
    options = {"name": "uniform", "share": 0.25, "slot_seconds": 600}
    availability = load_fleet(options, 10_000).availability
    rows = np.arange(10_000)
    assert availability.share() == pytest.approx(0.25)
    assert set(uninterrupted(availability)[1].tolist()) == {600.0}
    for time in (0, 1000, 1e6 + 0.5):
        assert availability.is_available(rows, time).mean() == pytest.approx(0.25, abs=0.02)
    assert load_fleet(options | {"share": 0}, 3).availability.share().tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"share": 1.5}, "share must be between 0 and 1, not 1.5"),
        ({"share": 1e-9}, "choose a larger share or shorter slots"),
        ({"slot_seconds": 0}, "slot_seconds must be at least 1, not 0"),
        ({"seconds_per_sample": [0.2, 0.1]}, r"a number or a range \[low, high\], but 0.2 is above 0.1"),
        ({"seconds_per_sample": -1}, "seconds_per_sample must not be negative, but is -1"),
        ({"download_bits_per_second": [0, 1e6]}, "download_bits_per_second must be positive, not 0"),
        ({"upload_bits_per_second": "fast"}, "upload_bits_per_second"),
        ({"speed": 3}, "has no option 'speed'"),
    ],
)
def test_options_that_make_no_fleet(option: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        load_fleet({"name": "uniform", **option}, 10)
