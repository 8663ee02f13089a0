"""Local mechanisms: what they put out has the distribution that their guarantee is about, and the right mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import gammaln

from fedarena.train import Job, JobArrays, Work
from fedarena.transforms import Rows
from fedarena.transforms.local_noise import LocalGaussian, LocalLaplace, LocalRandomizer
from fedarena.transforms.privunit import PrivUnit, best_cap

UNLIKELY = 1e-3  # p-values below this fail; numbers are keyed, so a test that passes always does


def rows_of(matrix: np.ndarray, round: int = 1) -> Rows:
    """Clients that send these rows, as weights and a bias."""
    whole = torch.tensor(matrix)
    count = len(whole)
    update = {"params": {"weight": whole[:, :-1].reshape(count, 1, -1), "bias": whole[:, -1:]}}
    jobs = JobArrays.of([Job(client, round) for client in range(count)])
    ones = np.ones(count, dtype=np.int64)
    return Rows(update, jobs, Work(ones, ones, ones), ones.astype(float), ("params",), seed=5)


def sent(transform: LocalRandomizer, matrix: np.ndarray, round: int = 1) -> np.ndarray:
    update, kept = transform.at_client(rows_of(matrix, round), {}, {})
    assert kept == {}
    parts = update["params"]
    return torch.cat([parts["weight"].flatten(1), parts["bias"].flatten(1)], 1).numpy()


def drawn(count: int, dimensions: int, length: float, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dimensions))
    return length * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_gaussian_noise_comes_to_the_shortened_update() -> None:
    updates = drawn(300, 20, 3.0)
    noise = (sent(LocalGaussian(1.5, std=0.7), updates) - updates / 2).ravel()
    assert stats.kstest(noise, stats.norm(0, 0.7).cdf).pvalue > UNLIKELY
    apart = sent(LocalGaussian(1.5, std=0.7), updates, round=2) - sent(LocalGaussian(1.5, std=0.7), updates)
    assert (
        stats.kstest(apart.ravel(), stats.norm(0, 0.7 * np.sqrt(2)).cdf).pvalue > UNLIKELY
    )  # other rounds, other noise


def test_laplace_noise_comes_to_the_shortened_update() -> None:
    updates = drawn(300, 20, 3.0)
    expected = updates / np.abs(updates).sum(1, keepdims=True) * 1.5
    noise = (sent(LocalLaplace(1.5, scale=0.3), updates) - expected).ravel()
    assert stats.kstest(noise, stats.laplace(0, 0.3).cdf).pvalue > UNLIKELY
    assert np.abs(noise).max() > 6 * 0.3  # the tails are there


@settings(deadline=None, max_examples=25)
@given(st.floats(0.01, 10), st.integers(2, 30), st.floats(0.1, 5))
def test_two_updates_are_never_farther_apart_than_twice_the_bound(length: float, dimensions: int, bound: float) -> None:
    one, other = (drawn(5, dimensions, length, seed) for seed in (1, 2))
    for kind, order in ((LocalGaussian, 2), (LocalLaplace, 1)):
        shortened = [sent(kind(bound, 0.0), updates) for updates in (one, other)]
        assert (np.linalg.norm(shortened[0] - shortened[1], order, axis=1) <= 2 * bound * (1 + 1e-9)).all()
        short = np.linalg.norm(one, order, axis=1) <= bound
        np.testing.assert_allclose(shortened[0][short], one[short], rtol=1e-12)  # these stay as they are


@pytest.mark.parametrize("dimensions", [2, 3, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 12.0])
def test_the_cap_has_exactly_this_epsilon_and_this_mean(dimensions: int, epsilon: float) -> None:
    cap = best_cap(dimensions, epsilon)
    ratio = np.log(cap.inside / cap.share) - np.log((1 - cap.inside) / (1 - cap.share))
    assert ratio == pytest.approx(epsilon, rel=1e-6)

    half = (dimensions - 1) / 2
    log_scale = gammaln(half + 0.5) - gammaln(half) - 0.5 * np.log(np.pi)

    def density(t: float) -> float:  # of one coordinate of a random direction
        return float(np.exp(log_scale + (half - 1) * np.log1p(-t * t)))

    def integral(function, begin: float, end: float) -> float:
        # By angles, where the density in two dimensions has no poles.
        value, _ = integrate.quad(
            lambda a: function(np.sin(a)) * density(np.sin(a)) * np.cos(a), np.arcsin(begin), np.arcsin(end), limit=200
        )
        return value

    assert integral(lambda t: 1.0, cap.height, 1.0) == pytest.approx(cap.share, rel=1e-5)
    mean = cap.inside / cap.share * integral(lambda t: t, cap.height, 1.0)
    mean += (1 - cap.inside) / (1 - cap.share) * integral(lambda t: t, -1.0, cap.height)
    assert mean == pytest.approx(cap.mean, rel=1e-5)
    nearby = [best_cap(dimensions, e).mean for e in (0.9 * epsilon, 1.1 * epsilon)]
    assert nearby[0] < cap.mean < nearby[1]


def test_directions_are_uniform_in_the_cap_and_outside() -> None:
    dimensions, epsilon, clients = 8, 3.0, 2000
    cap = best_cap(dimensions, epsilon)
    updates = drawn(clients, dimensions, 2.0)
    found = sent(PrivUnit(2.0, epsilon), updates)
    lengths = np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(lengths, 2.0 / cap.mean, rtol=1e-9)  # nothing is to be seen in them
    products = ((found / lengths[:, None]) * updates / 2.0).sum(1)

    def nearer(t: np.ndarray) -> np.ndarray:  # share of the sphere
        one_coordinate = stats.beta((dimensions - 1) / 2, (dimensions - 1) / 2, loc=-1, scale=2)
        return one_coordinate.sf(t)

    def cdf(t: np.ndarray) -> np.ndarray:
        inside = np.clip(1 - nearer(t) / cap.share, 0, 1)
        outside = np.clip((1 - nearer(t)) / (1 - cap.share), 0, 1)
        return cap.inside * inside + (1 - cap.inside) * outside

    assert stats.kstest(products, cdf).pvalue > UNLIKELY
    across = found / lengths[:, None] - products[:, None] * updates / 2.0
    turned = across / np.linalg.norm(across, axis=1, keepdims=True)
    assert np.abs(turned.mean(0)).max() < 5 / np.sqrt(clients * dimensions)  # no direction around is preferred


@pytest.mark.parametrize("length", [0.0, 0.4, 2.0, 5.0])
@pytest.mark.parametrize("norms", ["kept", "fixed"])
def test_what_clients_send_is_their_update_in_the_mean(length: float, norms: str) -> None:
    clients, bound = 1000, 2.0
    update = drawn(1, 6, 1.0, seed=3)
    transform = PrivUnit(bound, 4.0, norms)  # type: ignore[arg-type]
    found = sent(transform, np.repeat(length * update, clients, axis=0))
    kept = min(length, bound) if norms == "kept" else bound if length else 0.0
    error = found.std(0) / np.sqrt(clients)
    assert (np.abs(found.mean(0) - kept * update[0]) < 5 * error).all()


def test_the_mean_of_gaussian_and_laplace_is_the_shortened_update() -> None:
    update = np.repeat(drawn(1, 6, 0.9), 1000, axis=0)
    for transform in (LocalGaussian(1.0, 2.0), LocalLaplace(3.0, 2.0)):
        found = sent(transform, update)
        assert (np.abs(found.mean(0) - update[0]) < 5 * found.std(0) / np.sqrt(len(found))).all()


@pytest.mark.parametrize("epsilon", [1.0, 2.5])
def test_no_event_is_more_likely_than_epsilon_allows(epsilon: float) -> None:
    """Opposite updates are the worst case: how often outputs fall into slices of the sphere."""
    clients, direction = 1500, drawn(1, 4, 1.0, seed=7)
    slices = np.linspace(-1, 1, 5)
    counts = []
    for sign, round in ((1, 1), (-1, 2)):
        found = sent(PrivUnit(1.0, epsilon), np.repeat(sign * direction, clients, axis=0), round)
        along = (found @ direction[0]) * best_cap(4, epsilon).mean
        counts.append(np.histogram(along, slices)[0])
    losses = np.abs(np.log(counts[0] / counts[1]))
    slack = 5 * np.sqrt(1 / counts[0] + 1 / counts[1])
    assert (losses <= epsilon + slack).all()
    assert losses.max() > 0.8 * epsilon  # and no more is hidden than it must be


def test_rows_do_not_depend_on_their_neighbours() -> None:
    updates = drawn(6, 10, 1.0)
    for transform in (LocalGaussian(1.0, 0.5), LocalLaplace(1.0, 0.5), PrivUnit(1.0, 2.0)):
        whole = rows_of(updates)
        alone, _ = transform.at_client(whole.take(np.array([4])), {}, {})
        together, _ = transform.at_client(whole, {}, {})
        for name, t in alone["params"].items():
            torch.testing.assert_close(t[0], together["params"][name][4], rtol=1e-12, atol=1e-12)
