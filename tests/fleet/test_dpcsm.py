"""The sampler of availabilities: its law against a plain walk, its trends, and sentences about what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_folder import FLHETBENCH, needs_flhetbench

from fedarena.core import streams
from fedarena.core.errors import BadInputError
from fedarena.fleet import Fleet, load_fleet
from fedarena.fleet.heterogeneity import HeterogeneityOptions, single_state_metric
from fedarena.fleet.sources import dpcsm as module
from fedarena.fleet.sources.dpcsm import break_stick, draw_ranks

CLIENTS = 100
STATES = 710
# Of the paper.
ALPHAS = (1, 2, 3, 4, 5, 10, 100)
START_RANKS = (0, 100, 350)
SEEDS = range(20)
QUICK = {"rounds": 200}


def make(phones: int = CLIENTS, **options: Any) -> Fleet:
    return load_fleet({"name": "dpcsm", **options}, phones)


@pytest.fixture(scope="module")
def base() -> Fleet:
    return load_fleet("flash", STATES)


@pytest.fixture(scope="module")
def metric(base: Fleet) -> np.ndarray:
    return single_state_metric(base.availability, HeterogeneityOptions(repetitions=1))


@pytest.fixture
def one_base(base: Fleet, metric: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is made once for all fleets of a test, and its metric found once."""
    monkeypatch.setattr(module, "load_fleet", lambda settings, phones: base)


def rows_in(fleet: Fleet, base: Fleet) -> np.ndarray:
    """Which rows of the base the availabilities of a fleet are."""
    known = keys(base)
    ascending = np.argsort(known)
    assert len(np.unique(known)) == len(known)
    rows = ascending[np.searchsorted(known[ascending], keys(fleet))]
    assert np.array_equal(base.availability.take(rows).starts, fleet.availability.starts)
    return rows


def keys(fleet: Fleet) -> np.ndarray:
    """A whole number for every availability, made of its intervals."""
    states = fleet.availability
    sums = np.append(0, np.cumsum(1_000_003 * states.starts.astype(np.int64) + states.ends))
    return np.diff(sums[states.offsets])


@pytest.mark.sampled(1)
def test_a_fleet_is_what_the_paper_says_step_by_step(base: Fleet, metric: np.ndarray, one_base: None) -> None:
    fleet = make(start_rank=100, alpha=30.0, seed=2)
    ranked = sorted(range(STATES), key=lambda row: (-metric[row], -base.availability.share()[row]))
    random = streams.generator(2, "fleet/dpcsm")
    breaks = random.beta(1.0, 30.0, size=STATES - 100)
    left, pi = 1.0, []
    for share in breaks[:-1]:
        pi.append(share * left)
        left -= pi[-1]
    pi.append(left)  # the last state gets what is left over
    assert sum(pi) == pytest.approx(1)
    expected = []
    for number in random.random(CLIENTS):
        rank = 0
        while rank < len(pi) - 1 and number >= sum(pi[: rank + 1]):
            rank += 1
        expected.append(ranked[100 + rank])
    assert rows_in(fleet, base).tolist() == expected


def test_the_rest_of_the_stick_goes_to_the_last_rank() -> None:
    pieces = break_stick(np.full(5, 0.2))
    np.testing.assert_allclose(pieces, [0.2, 0.16, 0.128, 0.1024, 0.4096])
    assert break_stick(np.array([0.3])).tolist() == [1.0]


@pytest.mark.parametrize("alpha", [1.0, 5.0])
def test_ranks_are_geometric_on_average(alpha: float) -> None:
    """A rank is passed by with probability alpha / (1 + alpha), and the last one takes whoever gets there."""
    ranks = np.concatenate([draw_ranks(50, 6, alpha, seed) for seed in range(1000)])
    passed = alpha / (1 + alpha)
    expected = [*((1 - passed) * passed ** np.arange(5)), passed**5]
    found = np.bincount(ranks, minlength=6) / len(ranks)
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_states_get_worse_with_start_rank_and_alpha(base: Fleet, metric: np.ndarray, one_base: None) -> None:
    means = np.array([[mean_of(metric, base, rank, alpha) for alpha in ALPHAS] for rank in START_RANKS])
    # The best hundred states all have the best metric, 1: where only they are drawn, there is no difference.
    assert (np.diff(means, axis=0) <= 0).all()
    assert (np.diff(means, axis=1) <= 0).all()
    assert (means[2] < means[1] - 0.3).all()
    assert (means[:, -1] < means[:, 0] - 0.05).all()


def test_states_are_there_less_often_as_start_rank_grows(base: Fleet, one_base: None) -> None:
    shares = base.availability.share()
    means = np.array([[mean_of(shares, base, rank, alpha) for alpha in ALPHAS] for rank in START_RANKS])
    assert (np.diff(means, axis=0) < 0).all()
    assert (np.diff(means[0]) < 0).all()  # where the metric does not tell them apart, they are ordered by share


def test_states_differ_more_as_alpha_grows(base: Fleet, metric: np.ndarray, one_base: None) -> None:
    for rank in START_RANKS:
        different = [
            np.mean([len(np.unique(rows_in(make(start_rank=rank, alpha=alpha, seed=seed), base))) for seed in range(5)])
            for alpha in ALPHAS
        ]
        assert (np.diff(different) > 0).all()
        spreads = [
            np.mean([metric[rows_in(make(start_rank=rank, alpha=alpha, seed=seed), base)].std() for seed in range(5)])
            for alpha in (1, 10, 100)
        ]
        assert (np.diff(spreads) >= 0).all()
        assert spreads[-1] > spreads[0]


def mean_of(values: np.ndarray, base: Fleet, start_rank: int, alpha: float) -> float:
    """The mean over clients and seeds of what states have."""
    fleets = (make(start_rank=start_rank, alpha=alpha, seed=seed) for seed in SEEDS)
    return float(np.mean([values[rows_in(fleet, base)].mean() for fleet in fleets]))


def test_the_devices_are_those_of_the_base(base: Fleet, one_base: None) -> None:
    fleet = make()
    assert fleet.devices is base.devices
    assert len(fleet.availability) == CLIENTS
    assert not fleet.paired


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(one_base: None) -> None:
    first, again, other = (make(alpha=50.0, seed=seed) for seed in (4, 4, 5))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_the_metric_of_a_base_is_found_once(one_base: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(module, "single_state_metric", lambda states, options: calls.append(options) or states.share())
    module._remembered_metric.cache_clear()
    for alpha in (1.0, 2.0):
        make(alpha=alpha, deadline_seconds=77.0, rounds=200)
    make(deadline_seconds=78.0)
    module._remembered_metric.cache_clear()
    assert [(options.deadline_seconds, options.rounds, options.cohort) for options in calls] == [
        (77, 200, 20),
        (78, 3000, 20),
    ]


def test_devices_and_availabilities_of_both_samplers_go_together(tmp_path: Path) -> None:
    parts = {
        "devices": {"name": "dpgmm", "clusters": 5, "base_phones": 30},
        "availability": {"name": "dpcsm", "alpha": 3.0, "base_phones": 30, **QUICK},
    }
    fleet = load_fleet({"name": "combined", **parts}, 12)
    assert len(fleet.devices) == len(fleet.availability) == 12
    fleet.save(tmp_path / "fleet")
    assert load_fleet({"name": "file", "path": str(tmp_path / "fleet")}, 12).fingerprint == fleet.fingerprint


def test_a_base_may_have_fewer_states_than_a_cohort() -> None:
    assert len(make(phones=4, base_phones=3, start_rank=2, **QUICK).availability) == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start_rank": 30, "base_phones": 30}, "fleet.start_rank must be below 30, the number of .*'flash', not 30"),
        ({"start_rank": -1}, "fleet.start_rank"),
        ({"alpha": 0}, "fleet.alpha"),
        ({"deadline_seconds": 0}, "fleet.deadline_seconds"),
        ({"rounds": 0}, "fleet.rounds"),
    ],
)
def test_wrong_options_get_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        make(**QUICK | options)


@pytest.mark.slow
@needs_flhetbench
def test_recorded_phones_are_a_base() -> None:
    recorded = {"name": "flhetbench", "timers_file": str(FLHETBENCH / "cached_timers.json")}
    shares = [
        make(base=recorded, start_rank=rank, alpha=100.0).availability.share().mean() for rank in (*START_RANKS, 709)
    ]
    assert (np.diff(shares) < 0).all()
    with pytest.raises(BadInputError, match=r"fleet\.start_rank must be below 710"):
        make(base=recorded, start_rank=710)
