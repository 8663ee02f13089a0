"""Synthetic: the paper's recipe, once more, slowly, with loops; and the distributions it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedarena.core.streams import generator
from fedarena.data import Federation, load_federation
from fedarena.data.sources.synthetic import World


def slow_world(clusters: int, features: int, classes: int, s: int, variant: str, seed: int) -> tuple[list, list]:
    """Cluster means and Q, number by number in the order of the draws."""
    random = generator(seed, "synthetic/clusters")
    if variant == "paper":
        centres = [[random.standard_normal() for _ in range(s)] for _ in range(clusters)]
    else:
        centres = [[random.standard_normal()] * s for _ in range(clusters)]
    means = [[centres[j][i] + random.standard_normal() for i in range(s)] for j in range(clusters)]
    random = generator(seed, "synthetic/Q")
    q = [[[random.standard_normal() for _ in range(s)] for _ in range(classes)] for _ in range(features + 1)]
    return means, q


def slow_client(
    client: int, probabilities: list[float], means: list, q: list, variant: str, seed: int
) -> tuple[int, list[list[float]], list[int]]:
    """One client of the paper's appendix A, with the released code's choices where the variant says so."""
    paper = variant == "paper"
    features, classes, s = len(q) - 1, len(q[0]), len(q[0][0])
    random = generator(seed, "synthetic/client", client)
    threshold, cluster, total = random.random(), 0, probabilities[0]
    while threshold >= total:
        cluster += 1
        total += probabilities[cluster]
    u = [means[cluster][i] + random.standard_normal() * (1.0 if paper else 0.1) for i in range(s)]
    w = [[sum(q[d][c][i] * u[i] for i in range(s)) for c in range(classes)] for d in range(features + 1)]
    num_samples = min(int(random.lognormal(3, 2)) + 5, 1000)
    centre = [random.standard_normal() for _ in range(features)] if paper else [random.standard_normal()] * features
    v = [centre[d] + random.standard_normal() for d in range(features)]
    x = [
        [v[d] + random.standard_normal() * math.sqrt((d + 1) ** -1.2) for d in range(features)]
        for _ in range(num_samples)
    ]
    scores = [
        [
            w[0][c]
            + sum(w[d + 1][c] * row[d] for d in range(features))
            + random.standard_normal() * (math.sqrt(0.1) if paper else 0.1)
            for c in range(classes)
        ]
        for row in x
    ]
    if paper:
        chances = [[1 / (1 + math.exp(-score / 50)) for score in row] for row in scores]  # no saturation to ties
    else:
        totals = [sum(math.exp(row[c]) for row in scores) for c in range(classes)]
        chances = [[math.exp(row[c]) / totals[c] for c in range(classes)] for row in scores]
    return cluster, x, [max(range(classes), key=row.__getitem__) for row in chances]


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize(("probabilities", "s"), [((1.0,), None), ((0.3, 0.7), None), ((0.5, 0.25, 0.25), 4)])
def test_clients_are_those_of_the_slow_recipe(variant: str, probabilities: tuple[float, ...], s: int | None) -> None:
    features, classes, seed = 7, 3, 11
    options = {
        "clients": 12,
        "cluster_probabilities": probabilities,
        "features": features,
        "classes": classes,
        "model_dimensions": s,
        "variant": variant,
        "seed": seed,
        "split": "by_client",
    }
    federation = load_federation("synthetic", options)
    means, q = slow_world(len(probabilities), features, classes, s or len(probabilities), variant, seed)
    clusters = federation.attributes(federation.clients("all"))["cluster"]
    for client in range(12):
        cluster, x, y = slow_client(client, list(probabilities), means, q, variant, seed)
        found = federation.samples([client])
        assert clusters[client] == cluster
        np.testing.assert_allclose(found.columns["x"], x, rtol=1e-5, atol=1e-6)
        assert found.columns["y"].tolist() == y


def world(variant: str, clusters: int = 1, features: int = 60, s: int | None = None, seed: int = 0) -> World:
    return World.draw(np.full(clusters, 1 / clusters), features, 5, s, variant, seed)


def test_the_setting_of_appendix_b() -> None:
    federation = load_federation("synthetic")
    assert federation.num_clients == 1000
    assert federation.columns["x"].shape == (60,)
    assert federation.task.classes == 5
    everybody = federation.clients("all")
    assert set(federation.attributes(everybody)["cluster"].tolist()) == {0}
    assert federation.clients("train").tolist() == everybody.tolist()
    counts = np.array([federation.counts(everybody, part).sum() for part in ("train", "validation", "test")])
    assert np.allclose(counts / counts.sum(), [0.6, 0.2, 0.2], atol=0.01)


def test_numbers_of_samples_are_log_normal_within_bounds() -> None:
    federation = load_federation("synthetic")
    sizes = federation.counts(federation.clients("all"))
    assert sizes.min() == 5
    assert sizes.max() == 1000
    # n = floor(m) + 5: the median of m is exp(3), and log m has the deviation 2, here between two of its quantiles.
    assert abs(np.median(sizes) - 5 - math.exp(3)) < 5
    low, high = np.quantile(sizes - 5.0, [0.25, 0.75])
    assert abs(math.log(high / low) - 2 * 2 * 0.6745) < 0.35
    share_at_most = 0.5 * math.erfc((math.log(995) - 3) / 2 / math.sqrt(2))
    assert abs((sizes == 1000).mean() - share_at_most) < 0.025


def draws_of(variant: str, clients: int, **options: int) -> list[np.ndarray]:
    shared = world(variant, **options)
    return [shared.draw_client(client)[1] for client in range(clients)]


def test_features_have_the_covariance_of_the_paper() -> None:
    rows = np.concatenate([x - x.mean(axis=0) for x in draws_of("paper", 300, features=6)])
    expected = np.arange(1, 7) ** -1.2
    assert np.allclose(rows.var(axis=0), expected, rtol=0.05)
    correlation = np.corrcoef(rows.T) - np.eye(6)
    assert np.abs(correlation).max() < 0.03


@pytest.mark.parametrize(("variant", "correlation"), [("paper", 0.0), ("code", 0.5)])
def test_centres_of_features_are_vectors_in_the_paper_and_numbers_in_the_code(variant, correlation: float) -> None:
    """Means of features have variance 2; in the code half of it is shared by all dimensions."""
    means = np.array([x.mean(axis=0) for x in draws_of(variant, 1500, features=4) if len(x) >= 20])
    assert np.allclose(means.var(axis=0), 2.0, rtol=0.15)
    off_diagonal = np.corrcoef(means.T)[~np.eye(4, dtype=bool)]
    assert np.allclose(off_diagonal, correlation, atol=0.1)


@pytest.mark.parametrize(("variant", "correlation"), [("paper", 0.0), ("code", 0.5)])
def test_cluster_means_are_centred_likewise(variant: str, correlation: float) -> None:
    means = np.concatenate([world(variant, clusters=10, s=3, seed=seed).cluster_means for seed in range(300)])
    assert np.allclose(means.mean(axis=0), 0.0, atol=0.12)
    assert np.allclose(means.var(axis=0), 2.0, rtol=0.1)
    assert np.allclose(np.corrcoef(means.T)[~np.eye(3, dtype=bool)], correlation, atol=0.08)


def test_clusters_are_drawn_with_their_probabilities() -> None:
    options = {"clients": 2000, "cluster_probabilities": [0.2, 0.5, 0.3], "features": 2}
    federation = load_federation("synthetic", options)
    clusters = federation.attributes(federation.clients("all"))["cluster"]
    assert np.allclose(np.bincount(clusters) / 2000, [0.2, 0.5, 0.3], atol=0.04)


def test_models_differ_much_in_the_paper_and_little_in_the_code() -> None:
    """With one cluster u is a number; in the paper it changes its sign, in the code hardly ever."""

    def agreement(variant: str) -> float:
        shared = world(variant, seed=3)
        probe = generator(0, "probe").standard_normal((50, 60))
        labels = []
        for client in range(200):
            random = generator(3, "synthetic/client", client)
            random.choice(1, p=[1.0])
            u = shared.cluster_means[0] + random.standard_normal(1) * (1.0 if variant == "paper" else 0.1)
            w = shared.Q @ u
            labels.append(np.argmax(w[0] + probe @ w[1:], axis=1))
        stacked = np.array(labels)
        return float(np.mean([np.bincount(column, minlength=5).max() / 200 for column in stacked.T]))

    assert agreement("code") > 0.9 > agreement("paper")


def test_the_softmax_over_samples_makes_labels_even() -> None:
    """The code's mistake gives every class its best samples, so that no client has one label only."""

    def most_frequent(variant: str) -> float:
        shared = world(variant)
        shares = []
        for client in range(100):
            y = shared.draw_client(client)[2]
            if len(y) >= 50:
                shares.append(np.bincount(y, minlength=5).max() / len(y))
        return float(np.mean(shares))

    assert most_frequent("paper") > most_frequent("code") + 0.1


def test_seeds_give_different_federations() -> None:
    def fingerprint(**options: int) -> str:
        return load_federation("synthetic", {"clients": 5, **options}).fingerprint

    assert len({fingerprint(), fingerprint(seed=1), fingerprint(split_seed=1)}) == 3


def test_a_client_does_not_depend_on_how_many_there_are() -> None:
    few, many = (load_federation("synthetic", {"clients": clients}) for clients in (3, 10))
    assert_same_client(few, many, 2)


def assert_same_client(one: Federation, other: Federation, client: int) -> None:
    for name in ("x", "y"):
        np.testing.assert_array_equal(one.samples([client]).columns[name], other.samples([client]).columns[name])
