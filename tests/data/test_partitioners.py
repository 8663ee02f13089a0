"""Partitioners give every sample one client, every client enough samples, and the skew they are named after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data.registry import assign_clients

LABELS = np.random.default_rng(0).integers(0, 10, size=2000)


def sizes(client_of_sample: np.ndarray) -> np.ndarray:
    return np.bincount(client_of_sample)


def mean_distance(client_of_sample: np.ndarray, labels: np.ndarray = LABELS) -> float:
    """Mean total variation distance of the clients' labels to all labels."""
    overall = np.bincount(labels) / len(labels)
    mixes = [
        np.bincount(labels[client_of_sample == client], minlength=len(overall)) / count
        for client, count in enumerate(sizes(client_of_sample))
    ]
    return float(np.mean([0.5 * np.abs(mix - overall).sum() for mix in mixes]))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["iid", "dirichlet", "balanced_dirichlet", "shards", "lognormal"]),
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=200),
    clients=st.integers(1, 8),
    seed=st.integers(0, 3),
)
def test_every_sample_has_one_client_and_every_client_a_sample(name, labels, clients: int, seed: int) -> None:
    options: dict[str, Any] = {"name": name, "clients": clients, "seed": seed}
    if name.endswith("dirichlet"):
        options |= {"min_samples": 1, "alpha": 1.0}
    client_of_sample = assign_clients(options, labels)
    assert client_of_sample.shape == (len(labels),)
    assert client_of_sample.dtype == np.int64
    assert set(client_of_sample.tolist()) == set(range(clients))


@pytest.mark.parametrize("name", ["iid", "dirichlet", "balanced_dirichlet", "shards", "lognormal"])
def test_the_seed_decides(name: str) -> None:
    first, again, other = (assign_clients({"name": name, "seed": seed}, LABELS) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "iid"}, [2, 2, 0, 2, 1, 3, 3, 0, 0, 3, 1, 0]),
        ({"name": "dirichlet", "min_samples": 5}, [3, 2, 3, 3, 0, 1, 3, 2, 1, 3, 0, 1]),
        ({"name": "balanced_dirichlet"}, [3, 2, 3, 1, 0, 3, 3, 0, 3, 3, 1, 3]),
        ({"name": "shards"}, [1, 2, 2, 0, 0, 2, 0, 2, 1, 1, 3, 2]),
        ({"name": "lognormal"}, [0, 1, 1, 0, 1, 1, 2, 0, 0, 2, 2, 1]),
    ],
)
def test_partitions_do_not_change_by_accident(options: dict[str, Any], expected: list[int]) -> None:
    """Published results depend on them. Whoever changes them raises the version of the sources that use them."""
    assert assign_clients({"clients": 4, **options}, np.arange(60) % 3)[:12].tolist() == expected


def test_iid_clients_are_equally_large_and_alike() -> None:
    client_of_sample = assign_clients({"name": "iid", "clients": 7}, LABELS)
    assert set(sizes(client_of_sample)) == {285, 286}
    assert mean_distance(client_of_sample) < 0.1


def test_small_alpha_separates_labels_and_large_alpha_does_not() -> None:
    distances = [
        mean_distance(assign_clients({"name": "dirichlet", "clients": 10, "alpha": alpha, "min_samples": 1}, LABELS))
        for alpha in (0.1, 1.0, 100.0)
    ]
    assert distances[0] > 0.6 > distances[1] > 0.2 > distances[2]


def test_dirichlet_shares_have_the_moments_of_the_distribution() -> None:
    """A client's share of a label has mean 1/K and variance (K - 1) / (K² (K alpha + 1))."""
    labels, clients, alpha = np.zeros(10_000, dtype=np.int64), 5, 2.0
    shares = np.array(
        [
            sizes(assign_clients({"name": "dirichlet", "clients": clients, "alpha": alpha, "seed": seed}, labels))
            for seed in range(400)
        ]
    ) / len(labels)
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert np.allclose(shares.mean(axis=0), 1 / clients, atol=5 * np.sqrt(variance / 400))
    assert np.isclose(shares.var(), variance, rtol=0.15)


def test_dirichlet_keeps_the_minimum_or_says_why_not() -> None:
    client_of_sample = assign_clients({"name": "dirichlet", "clients": 20, "alpha": 0.3, "min_samples": 30}, LABELS)
    assert sizes(client_of_sample).min() >= 30
    with pytest.raises(BadInputError, match=r"alpha 0\.01.*larger alpha"):
        assign_clients({"name": "dirichlet", "clients": 50, "alpha": 0.01, "min_samples": 39}, LABELS)


def test_shards_give_few_labels_to_everybody() -> None:
    labels = np.repeat(np.arange(10), 60)
    client_of_sample = assign_clients({"name": "shards", "clients": 30, "shards_per_client": 2}, labels)
    assert set(sizes(client_of_sample)) == {20}
    labels_per_client = [len(set(labels[client_of_sample == client].tolist())) for client in range(30)]
    assert max(labels_per_client) <= 2
    assert min(labels_per_client) >= 1


def test_shards_do_not_depend_on_the_order_of_the_samples_within_a_label() -> None:
    """Otherwise neighbours in a dataset, which often belong together, would share a client."""
    labels = np.repeat(np.arange(2), 500)
    client_of_sample = assign_clients({"name": "shards", "clients": 5, "shards_per_client": 1}, labels)
    runs = np.count_nonzero(np.diff(client_of_sample)) + 1
    assert runs > 100


def test_lognormal_sizes_follow_sigma() -> None:
    def spread(sigma: float) -> float:
        options = {"name": "lognormal", "clients": 400, "sigma": sigma, "min_samples": 1}
        return float(np.log(sizes(assign_clients(options, np.zeros(400_000, dtype=np.int64)))).std())

    assert spread(0.0) < 0.01
    assert np.isclose(spread(0.5), 0.5, rtol=0.1)
    assert np.isclose(spread(1.0), 1.0, rtol=0.1)


def test_lognormal_does_not_skew_labels() -> None:
    options = {"name": "lognormal", "clients": 10, "sigma": 1.0, "min_samples": 50}
    client_of_sample = assign_clients(options, LABELS)
    assert sizes(client_of_sample).min() >= 50
    assert mean_distance(client_of_sample) < 0.15


def test_natural_clients_are_the_values_of_the_key() -> None:
    keys = np.array(["bob", "ann", "bob", "cyd"])
    assert assign_clients({"name": "natural"}, keys).tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "iid", "clients": 2001}, "2000 samples are not enough for 2001 clients"),
        ({"name": "lognormal", "clients": 300, "min_samples": 10}, "at most 200 clients"),
        ({"name": "dirichlet", "clients": 300, "min_samples": 10}, "at most 200 clients"),
        ({"name": "shards", "clients": 1001, "shards_per_client": 2}, "at most 1000 clients"),
        ({"name": "dirichlet", "alpha": 0}, "alpha"),
        ({"name": "dirichlet", "alpha": float("nan")}, "alpha"),
        ({"name": "iid", "clients": 0}, "clients"),
        ({"name": "iid", "cleints": 5}, "did you mean 'clients'"),
        ({"name": "drichlet"}, "did you mean 'dirichlet'"),
        ({}, "a mapping with a name"),
    ],
)
def test_impossible_partitions_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        assign_clients(options, LABELS)


def test_who_has_an_equal_share_gets_none_of_the_next_class() -> None:
    """Class after class, as FederatedScope deals them out: shares may only be exceeded by the class that fills them."""
    alpha_small = {"name": "balanced_dirichlet", "clients": 5, "alpha": 0.5}
    for seed in range(20):
        client_of_sample = assign_clients({**alpha_small, "seed": seed}, LABELS)
        before = np.zeros(5, dtype=int)
        for label in range(10):
            got = np.bincount(client_of_sample[label == LABELS], minlength=5)
            assert not got[before >= len(LABELS) / 5].any()
            before += got
    spread = [np.std(sizes(assign_clients({**alpha_small, "seed": seed}, LABELS))) for seed in range(20)]
    unbalanced = {"name": "dirichlet", "clients": 5, "alpha": 0.5}
    unequal = [np.std(sizes(assign_clients({**unbalanced, "seed": seed}, LABELS))) for seed in range(20)]
    assert np.mean(spread) < 0.7 * np.mean(unequal)


def test_balanced_dirichlet_with_a_tiny_alpha_gives_every_sample_an_owner() -> None:
    """Where shares are so unequal that those who have room want nothing, they share it."""
    options = {"name": "balanced_dirichlet", "clients": 3, "alpha": 1e-4, "min_samples": 1}
    assert sizes(assign_clients(options, LABELS)).sum() == len(LABELS)
