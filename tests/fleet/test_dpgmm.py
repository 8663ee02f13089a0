"""The sampler of devices: its law against a plain walk, its trends, and sentences about what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_folder import FLHETBENCH, needs_flhetbench

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.sources import dpgmm as module
from fedarena.fleet.sources.dpgmm import draw_clusters, nearest_devices, way_speeds

CLIENTS = 100
# Of the paper.
CLUSTERS = (50, 100, 200)
SIGMAS = (0.1, 0.4, 0.7, 1.1, 1.4, 1.7, 2.0)
BASE = {"name": "flash", "speeds_per_phone": 2}
SEEDS = range(5)


def make(phones: int = CLIENTS, **options: Any) -> Fleet:
    return load_fleet({"name": "dpgmm", "base": BASE, **options}, phones)


@pytest.fixture
def one_base(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The base is made once for all fleets of a test."""
    base = load_fleet(BASE, 1000)
    monkeypatch.setattr(module, "load_fleet", lambda settings, phones: base)
    return base


def walk(wanted: list[float], speeds: list[float]) -> list[float]:
    """The speeds that wishes get: everybody looks at all devices that are left."""
    left = sorted(speeds)
    return [left.pop(min(range(len(left)), key=lambda place: abs(left[place] - wish))) for wish in wanted]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_wishes_get_the_nearest_free_device(data: st.DataObject) -> None:
    # Few different speeds, so that many are equally near.
    speeds = data.draw(st.lists(st.integers(1, 30).map(float), min_size=1, max_size=25))
    wanted = data.draw(st.lists(st.integers(-10, 80).map(lambda x: x / 2), max_size=len(speeds)))
    rows = nearest_devices(np.array(wanted), np.array(speeds))
    assert len(set(rows.tolist())) == len(wanted)
    assert [speeds[row] for row in rows] == walk(wanted, speeds)


@pytest.mark.parametrize("options", [{"concentration": 1000.0}, {"alpha": 20.0}])
def test_a_fleet_is_what_the_paper_says_step_by_step(options: dict[str, float]) -> None:
    fleet = make(clusters=30, sigma=1.4, base_phones=60, seed=3, **options)
    base = load_fleet(BASE, 60)
    speeds = [2 / (1 / d + 1 / u) for d, u in zip(*network(base), strict=True)]
    random = streams.generator(3, "fleet/dpgmm/clusters")
    rho = random.dirichlet([options.get("concentration") or options["alpha"] / 30] * 30)
    uniform = random.random(CLIENTS)
    cluster_of = [next(k for k in range(30) if u < sum(rho[: k + 1]) or k == 29) for u in uniform]
    normal = streams.generator(3, "fleet/dpgmm/speeds").standard_normal(30)
    filled = sorted(set(cluster_of))
    found = walk([np.mean(speeds) + 1.4 * np.std(speeds) * normal[k] for k in filled], speeds)
    device_of = dict(zip(filled, found, strict=True))
    np.testing.assert_allclose(way_speeds(fleet.devices), [device_of[k] for k in cluster_of], rtol=1e-12)


def network(fleet: Fleet) -> tuple[list[float], list[float]]:
    return fleet.devices.download_bits_per_second.tolist(), fleet.devices.upload_bits_per_second.tolist()


def test_devices_are_real_ones_with_all_they_have(one_base: Fleet) -> None:
    devices = make(seed=1).devices
    rows = [one_base.devices.seconds_per_sample.tolist().index(seconds) for seconds in devices.seconds_per_sample]
    again = one_base.devices.take(rows)
    assert np.array_equal(devices.download_bits_per_second, again.download_bits_per_second)
    assert devices.measured_upload is not None
    assert np.array_equal(devices.measured_upload.values, again.measured_upload.values)


def test_the_availability_is_that_of_the_base(one_base: Fleet) -> None:
    fleet = make()
    assert fleet.availability is one_base.availability
    assert not fleet.paired


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    assert make(seed=4).fingerprint == make(seed=4).fingerprint != make(seed=5).fingerprint


def test_all_transfers_are_scaled_to_the_mean() -> None:
    plain, scaled = make(sigma=2.0).devices, make(sigma=2.0, mean_bits_per_second=48e6).devices
    assert way_speeds(scaled).mean() == pytest.approx(48e6)
    factor = 48e6 / way_speeds(plain).mean()
    assert plain.measured_upload is not None
    assert scaled.measured_upload is not None
    np.testing.assert_allclose(scaled.measured_upload.values, factor * plain.measured_upload.values)
    np.testing.assert_allclose(scaled.upload_bits_per_second, factor * plain.upload_bits_per_second)
    assert np.array_equal(scaled.seconds_per_sample, plain.seconds_per_sample)


def test_speeds_are_further_apart_as_sigma_grows(one_base: Fleet) -> None:
    for clusters in CLUSTERS:
        spreads = np.array([[spread(clusters, sigma, seed) for sigma in SIGMAS] for seed in SEEDS])
        assert (np.diff(spreads.mean(axis=0)) > 0).all()
        assert (spreads[:, -1] > 4 * spreads[:, 0]).all()


def spread(clusters: int, sigma: float, seed: int) -> float:
    """Standard deviation of the speeds relative to their mean."""
    speeds = way_speeds(make(clusters=clusters, sigma=sigma, seed=seed).devices)
    return float(speeds.std() / speeds.mean())


def test_there_are_more_different_devices_as_clusters_grow(one_base: Fleet) -> None:
    for sigma in SIGMAS:
        different = [
            [len(np.unique(way_speeds(make(clusters=clusters, sigma=sigma, seed=seed).devices))) for seed in SEEDS]
            for clusters in CLUSTERS
        ]
        means = np.mean(different, axis=1)
        assert (np.diff(means) > 0).all()
        expected = [clusters * (1 - (1 - 1 / clusters) ** CLIENTS) for clusters in CLUSTERS]
        np.testing.assert_allclose(means, expected, rtol=0.06)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("clusters", CLUSTERS)
@pytest.mark.parametrize("concentration", [1000.0, 0.1])
def test_the_variance_is_that_of_the_mixture(clusters: int, concentration: float) -> None:
    """Two clients share a cluster with probability (a + 1) / (K a + 1), and differ by 2 (sigma sigma0)^2 otherwise."""
    base, sigma = np.array([1.0, 2.0, 3.0]), 1.7
    variances = []
    for seed in range(1000):
        cluster_of, wanted = draw_clusters(CLIENTS, clusters, concentration, base, sigma, seed)
        variances.append(wanted[cluster_of].var(ddof=1))
    alike = (concentration + 1) / (clusters * concentration + 1)
    expected = (1 - alike) * (sigma * base.std()) ** 2
    error = np.std(variances) / np.sqrt(len(variances))
    assert np.mean(variances) == pytest.approx(expected, abs=4 * error)


def test_few_clusters_are_few_devices_and_no_spread_is_the_mean() -> None:
    base = load_fleet(BASE, 1000).devices
    speeds = way_speeds(make(clusters=1, sigma=0.0).devices)
    assert len(set(speeds.tolist())) == 1
    nearest = np.abs(way_speeds(base) - way_speeds(base).mean()).min()
    assert abs(speeds[0] - way_speeds(base).mean()) == pytest.approx(nearest)


def test_samplers_nest_and_are_saved(tmp_path: Any) -> None:
    fleet = make(phones=7, base={"name": "combined", "devices": "fedscale", "availability": "ideal"}, base_phones=30)
    assert len(fleet.devices) == 7
    assert (fleet.availability.share() == 1).all()
    fleet.save(tmp_path / "fleet")
    again = load_fleet({"name": "file", "path": str(tmp_path / "fleet")}, 7)
    assert again.fingerprint == fleet.fingerprint


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base": "ideal"}, "fleet.base: .*'ideal' some transfer at any speed"),
        ({"base_phones": 20}, r"fleet.clusters: \d+ of 100 clusters have clients .* has only 20; choose fewer"),
        ({"clusters": 0}, "fleet.clusters: .*greater than or equal to 1"),
        ({"sigma": -0.1}, "fleet.sigma"),
        ({"concentration": 0}, "fleet.concentration"),
        ({"alpha": 0}, "fleet.alpha"),
        ({"mean_bits_per_second": 0}, "fleet.mean_bits_per_second"),
        ({"base": {"name": "flash", "speed": 1}}, "fleet.base.speed"),
    ],
)
def test_wrong_options_get_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make(**options)


def test_many_clusters_with_few_clients_need_few_devices() -> None:
    assert len(make(phones=5, clusters=500, base_phones=5).devices) == 5


@needs_flhetbench
def test_recorded_phones_are_a_base() -> None:
    files = {
        "timers_file": "cached_timers.json",
        "devices_file": "device_case2.json",
        "states_file": "state_case2.json",
    }
    recorded = {"name": "flhetbench", **{option: str(FLHETBENCH / name) for option, name in files.items()}}
    known = set(way_speeds(load_fleet(recorded, 100).devices).tolist())
    narrow, wide = (way_speeds(make(base=recorded, sigma=sigma).devices) for sigma in (0.1, 2.0))
    assert set(narrow.tolist()) | set(wide.tolist()) <= known
    assert narrow.std() < wide.std()
