"""Correlated noise beside dense matrices, its participation rule, and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logistic_clients import CLASSES, LOCAL, flat, logistic_simulation, make_clients
from scipy import stats
from scipy.linalg import toeplitz
from small_runs import StopAfter, config, content, interrupt

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import accounting
from fedarena.privacy.banded import Banded, best_banded
from fedarena.runs.run import resume_run, start_run
from fedarena.simulate import simulate
from fedarena.train import JobContext, ReferenceEngine
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.correlated_noise import ClipAndCorrelatedNoise

pytestmark = pytest.mark.filterwarnings("ignore:Privacy")


def dense(banded: Banded) -> np.ndarray:
    """The matrix C."""
    column = np.zeros(banded.rounds)
    column[: banded.band] = banded.coefficients
    return np.asarray(toeplitz(column, np.zeros(banded.rounds)))


def error_of(matrix: np.ndarray) -> float:
    """Mean squared error of the sums, with noise for the largest column of C."""
    sums = np.tril(np.ones_like(matrix))
    column_norm = np.linalg.norm(matrix, axis=0).max()
    return float((np.linalg.norm(sums @ np.linalg.inv(matrix)) * column_norm) ** 2 / len(matrix))


@pytest.mark.parametrize(("rounds", "band"), [(1, 1), (5, 1), (12, 3), (40, 8), (30, 30), (6, 50)])
def test_the_error_is_that_of_the_dense_matrices(rounds: int, band: int) -> None:
    banded = best_banded(rounds, band)
    assert banded.band == min(rounds, band)
    assert banded.mean_squared_error() == pytest.approx(error_of(dense(banded)), rel=1e-9)
    independent = Banded(rounds, (1.0,)).mean_squared_error()
    assert independent == pytest.approx((rounds + 1) / 2)
    assert banded.mean_squared_error() < independent or banded.band == 1


def test_no_other_coefficients_are_better() -> None:
    best = best_banded(25, 4)
    generator = np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 0.1):
        for _ in range(30):
            other = np.array(best.coefficients) + scale * generator.normal(size=4) * np.array([0, 1, 1, 1])
            assert Banded(25, tuple(other)).mean_squared_error() >= best.mean_squared_error() * (1 - 1e-9)
    errors = [best_banded(64, band).mean_squared_error() for band in (1, 2, 4, 8, 16, 64)]
    assert errors == sorted(errors, reverse=True)  # a wider band never hurts the sums


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_a_client_changes_what_is_released_by_no_more_than_the_bound(band: int, times: int, seed: int) -> None:
    rounds = band * times
    banded, generator = best_banded(rounds, band), np.random.default_rng(seed)
    updates = np.zeros((rounds, 7))
    round = int(generator.integers(band))
    while round < rounds:  # at most every `band` rounds, each time with an update of length 1
        direction = generator.normal(size=7)
        updates[round] = direction / np.linalg.norm(direction)
        round += band + int(generator.integers(3))
    change = np.linalg.norm(dense(banded) @ updates)
    participations = math.ceil(rounds / banded.band)
    assert change <= math.sqrt(participations) * np.linalg.norm(banded.coefficients) * (1 + 1e-9)


def rows_of_noise(transform: ClipAndCorrelatedNoise, rounds: list[int], size: int) -> np.ndarray:
    """What a server adds in these rounds, relative to the deviation."""
    update = {"params": {"w": torch.zeros(size, dtype=torch.float64)}}
    server, found = transform.server_init(update), []
    for round in rounds:
        context = JobContext(1.0, round, round - 1, False, torch.tensor(977 * round))
        noisy, server = transform.at_server(update, server, context)
        found.append(noisy["params"]["w"].numpy())
        assert sum(group.startswith("back") for group in server) <= len(transform.coefficients) - 1
    return np.array(found)


def test_noise_is_the_inverse_of_the_matrix_times_independent_noise() -> None:
    banded = best_banded(9, 4)
    transform = ClipAndCorrelatedNoise(norm=0.5, noise_multiplier=2.0, clients=10, coefficients=banded.coefficients)
    rows = rows_of_noise(transform, list(range(1, 10)), 4000)
    independent = dense(banded) @ rows
    deviation = 2.0 * 0.5 * np.linalg.norm(banded.coefficients) / 10
    assert stats.kstest(independent.ravel() / deviation, stats.norm.cdf).pvalue > 1e-3
    correlations = np.corrcoef(independent)
    assert np.abs(correlations - np.eye(9)).max() < 5 / math.sqrt(4000)
    plain = ClipAndCorrelatedNoise(norm=0.5, noise_multiplier=2.0, clients=10, coefficients=(1.0,))
    ends = [rows_of_noise(one, list(range(1, 10)), 4000).sum(0).std() for one in (transform, plain)]
    assert ends[0] < 0.75 * ends[1]  # less of it is left in the sum


def test_a_round_without_a_step_has_its_row() -> None:
    coefficients = (1.0, 0.6, 0.4)
    transform = ClipAndCorrelatedNoise(norm=1.0, noise_multiplier=1.0, clients=1, coefficients=coefficients)
    rows = rows_of_noise(transform, [1, 2, 5, 6], 6000)
    rounds = np.zeros(6)
    rounds[:3] = coefficients
    inverse = np.linalg.inv(toeplitz(rounds, np.zeros(6)))
    expected = (inverse @ inverse.T)[np.ix_([0, 1, 4, 5], [0, 1, 4, 5])] * (np.array(coefficients) ** 2).sum()
    np.testing.assert_allclose(np.cov(rows), expected, atol=0.15)


def test_the_aggregate_without_noise_is_the_fixed_mean_of_clipped_updates(make_federation) -> None:
    federation = make_federation(make_clients(), CLASSES)
    simulation = logistic_simulation(federation, FedAvg(), LOCAL, ReferenceEngine, rounds=2)
    quiet = ClipAndCorrelatedNoise(norm=0.3, noise_multiplier=1e-12, clients=5, coefficients=(1.0, 0.5))
    *_, last = simulate(replace(simulation, transforms=(quiet,), aggregator=FixedMean(5)))
    first, *_ = simulate(simulation)
    moved = flat(last.snapshot.state["params"]) - flat(first.snapshot.state["params"])
    assert 0 < np.linalg.norm(moved) <= 2 * 4 * 0.3 / 5 * (1 + 1e-6)


SETTINGS = {
    "privacy": {"name": "correlated_gaussian", "noise_multiplier": 1.0},
    "selector": {"name": "cyclic", "groups": 4},
    "algorithm": "fedavg",
    "rounds": 14,
}


def test_runs_keep_the_rule_and_resume_with_the_same_bits(tmp_path) -> None:
    whole = start_run(config(**SETTINGS), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start_run(config(**SETTINGS), tmp_path / "half", StopAfter(6, interrupt))
    resume_run(tmp_path / "half" / "small")
    assert content(tmp_path / "half" / "small") == content(tmp_path / "whole" / "small")
    jobs = whole.jobs.to_pandas()
    assert jobs.groupby("client")["round"].apply(lambda rounds: rounds.sort_values().diff().min()).min() >= 4
    epsilons = whole.rounds.to_pandas()["epsilon"].to_numpy()
    delta = 20**-1.1
    for round in (1, 4, 5, 14):
        expected = accounting().get_epsilon_gaussian(1 / math.sqrt(math.ceil(round / 4)), delta)
        assert epsilons[round] == pytest.approx(expected, rel=1e-9)
    assert epsilons[0] == 0


def test_poisson_draws_from_groups_are_amplified(tmp_path) -> None:
    drawn = SETTINGS | {"selector": {"name": "cyclic", "groups": 2, "draw": "poisson"}, "rounds": 4}
    fixed = SETTINGS | {"selector": {"name": "cyclic", "groups": 2}, "rounds": 4}
    amplified, plain = (start_run(config(**one), tmp_path / name) for name, one in (("a", drawn), ("b", fixed)))
    assert amplified.summary["privacy"]["epsilon"] < plain.summary["privacy"]["epsilon"]
    event = accounting().SelfComposedDpEvent(
        accounting().PoissonSampledDpEvent(0.4, accounting().GaussianDpEvent(1.0)), 2
    )
    expected = accounting().rdp.RdpAccountant().compose(event).get_epsilon(20**-1.1)
    assert amplified.summary["privacy"]["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_the_solver_finds_noise_for_epsilon(tmp_path) -> None:
    wanted = SETTINGS | {"privacy": {"name": "correlated_gaussian", "epsilon": 3.0, "delta": 1e-4}, "rounds": 9}
    run = start_run(config(**wanted), tmp_path)
    assert run.summary["privacy"]["epsilon"] == pytest.approx(3.0, abs=1e-3)
    assert run.summary["rounds_done"] == 9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"selector": "uniform"}, "selector=cyclic"),
        ({"selector": "oort"}, "selector=cyclic"),
        ({"selector": {"name": "cyclic", "groups": 6}}, "at most 5 groups"),
        ({"privacy.band": 5}, "band of at most 4"),
        ({"privacy.band": 0}, "at least 1"),
        ({"privacy.clip_norm": 0}, "noise without clipping"),
        ({"privacy.noise_multiplier": 0}, "above 0"),
        ({"privacy.delta": 1.5}, "below 1"),
        ({"privacy.epsilon": -1}, "above 0"),
        ({"privacy.epsilon": 0.01}, "One round alone spends"),
        ({"aggregator": "by_age"}, "aggregator"),
        ({"training": "iid"}, "training=natural"),
        ({"privacy": "correlated_gaussian"}, "needs privacy.epsilon or privacy.noise_multiplier"),
    ],
)
def test_what_would_break_the_guarantee_is_refused(tmp_path, changes, said) -> None:
    with pytest.raises(BadInputError, match=said):
        start_run(config(**SETTINGS | changes), tmp_path)
    assert not list(tmp_path.iterdir())
