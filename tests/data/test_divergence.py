"""Distances of pairs of clients equal SciPy's, pair by pair, and tell chance from heterogeneity."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon

from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec, load_federation
from fedarena.data.statistics import dealing, divergence
from fedarena.data.statistics.divergence import choose_pairs, describe_pairs, jensen_shannon_distances, labels_by_chance
from fedarena.data.statistics.label_statistics import LabelStatistics, describe_labels


def slow_distances(counts: np.ndarray, pairs: list[tuple[int, int]]) -> list[float]:
    return [jensenshannon(counts[one], counts[other], base=2) for one, other in pairs]


@given(
    counts=arrays(np.int64, st.tuples(st.integers(2, 8), st.integers(2, 6)), elements=st.integers(0, 1000)),
    chunk=st.sampled_from([1, 7, 1 << 20]),
)
def test_distances_equal_those_of_scipy(counts: np.ndarray, chunk: int) -> None:
    counts[:, 0] += counts.sum(axis=1) == 0  # everybody has some label
    pairs = list(combinations(range(len(counts)), 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(divergence, "CHUNK_NUMBERS", chunk)
        found = describe_pairs(counts, labels_by_chance(counts, counts.sum(axis=0) / counts.sum()))
        distances = jensen_shannon_distances(counts, *np.array(pairs).T)
    expected = slow_distances(counts, pairs)
    np.testing.assert_allclose(distances, expected, atol=1e-7)
    assert (found.clients, found.pairs) == (len(counts), len(pairs))
    assert found.distances.mean == pytest.approx(np.mean(expected), abs=1e-7)
    assert found.distances.quantiles[[0, 25, 100]] == pytest.approx(np.percentile(expected, [0, 25, 100]), abs=1e-7)
    assert found.histogram.sum() == len(pairs)
    assert found.histogram_by_chance.sum() == pytest.approx(len(pairs))


def test_from_the_same_mix_to_nothing_in_common() -> None:
    counts = np.array([[3, 1, 0, 0], [300, 100, 0, 0], [0, 0, 5, 0]])
    distances = jensen_shannon_distances(counts, np.array([0, 0, 2]), np.array([1, 2, 1]))
    assert distances.tolist() == [0, 1, 1]
    found = describe_pairs(counts, labels_by_chance(counts, counts.sum(axis=0) / counts.sum()))
    assert found.histogram[[0, -1]].tolist() == [1, 2]


def test_drawn_pairs_are_of_different_clients_and_all_are_as_likely() -> None:
    first, second = choose_pairs(5, limit=10)
    assert list(zip(first, second, strict=True)) == list(combinations(range(5), 2))
    first, second = choose_pairs(200, limit=10_000)
    assert (first != second).all()
    assert len(first) == 10_000
    for side in (first, second):
        assert (np.bincount(side, minlength=200) > 20).all()  # 50 are expected of each
    assert np.bincount((second - first) % 200, minlength=200)[1:].min() > 20


def test_very_many_labels_are_looked_at_for_fewer_clients_and_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "TABLE_NUMBERS", 500)
    monkeypatch.setattr(divergence, "ALL_NUMBERS", 3000)
    federation = load_federation("synthetic")
    classes = federation.task.classes
    pairs = describe_labels(federation, federation.counts(federation.clients()), 1000).pairs
    assert pairs.clients == 500 // classes
    assert pairs.pairs == 3000 // classes


def test_chance_equals_the_sum_over_all_outcomes() -> None:
    """Of two labels, of which one is rare; clients have few samples, so that everything can be enumerated."""
    sizes, overall = np.array([3, 8] * 100), np.array([0.9, 0.1])
    outcomes = {n: scipy.stats.binom.pmf(np.arange(n + 1), n, overall[1]) for n in (3, 8)}

    def expected(one: int, other: int) -> float:
        distances = [
            [jensenshannon([n, one - n], [m, other - m], base=2) for m in range(other + 1)] for n in range(one + 1)
        ]
        return float(outcomes[one] @ np.array(distances) @ outcomes[other])

    means = {pair: expected(*pair) for pair in ((3, 3), (3, 8), (8, 3), (8, 8))}
    counts = np.stack([sizes, 0 * sizes], axis=1)
    found = describe_pairs(counts, labels_by_chance(counts, overall))
    first, second = choose_pairs(len(sizes), divergence.MAX_PAIRS)
    exact = np.mean([means[pair] for pair in zip(sizes[first].tolist(), sizes[second].tolist(), strict=True)])
    # One draw of 200 clients is off by more than 0.01 in every third case, twenty of them hardly ever.
    assert found.distances_by_chance.mean == pytest.approx(exact, abs=0.01)


def test_chance_is_what_clients_alike_would_have() -> None:
    def pairs(partition: str) -> divergence.PairStatistics:
        federation = load_federation("digits", {"partition": {"name": partition, "clients": 40}})
        return describe_labels(federation, federation.counts(federation.clients()), 1000).pairs

    iid, shards = pairs("iid"), pairs("shards")
    assert iid.distances.mean == pytest.approx(iid.distances_by_chance.mean, rel=0.1)
    assert shards.distances.mean > 2 * shards.distances_by_chance.mean
    assert pairs("iid").distances.mean == iid.distances.mean  # drawn anew, and the same


@pytest.mark.parametrize("pool", [1 << 25, 900], ids=["all samples", "every third sample"])
def test_chance_deals_out_whole_samples_where_they_have_several_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: int
) -> None:
    """Labels of a sample differ from each other, so clients who are alike differ less than labels drawn one by one."""
    monkeypatch.setattr(dealing, "POOL_NUMBERS", pool)
    monkeypatch.setattr(dealing, "CHUNK_NUMBERS", 100)
    random = np.random.default_rng(0)
    sizes = random.integers(1, 5, size=400)
    sizes[0] = 2000  # more than are dealt out of
    y = np.zeros((int(sizes.sum()), 6), dtype=np.uint8)
    np.put_along_axis(y, random.random(y.shape).argsort(axis=1)[:, :3], 1, axis=1)
    y[random.random(len(y)) < 0.1] = 0  # which do not count

    def described(order: np.ndarray) -> LabelStatistics:
        columns = {"x": np.zeros((len(y), 1), np.float32), "y": y[order]}
        specs = {"x": ColumnSpec(dtype="float32", shape=(1,)), "y": ColumnSpec(dtype="uint8", shape=(6,))}
        task, path = TaskSpec(kind="multi_label", classes=6), tmp_path / f"{order[0]}"
        counts = np.stack([sizes, 0 * sizes, 0 * sizes], axis=1)
        with FederationWriter(path, name="tags", task=task, columns=specs) as writer:
            writer.add_clients([f"{client}" for client in range(len(sizes))], counts=counts, columns=columns)
        return describe_labels(Federation.open(path), sizes, 1000)

    alike, apart = described(np.arange(len(y))), described(np.lexsort(y.T))
    assert alike.mean_distance == pytest.approx(alike.mean_distance_by_chance, rel=0.03)
    assert alike.pairs.distances.mean == pytest.approx(alike.pairs.distances_by_chance.mean, rel=0.03)
    some = alike.mix.counts[alike.mix.counts.any(axis=1)]
    one_by_one = describe_pairs(some, labels_by_chance(some, np.full(6, 1 / 6)))
    assert one_by_one.distances_by_chance.mean > 1.1 * one_by_one.distances.mean
    assert apart.mean_distance > 1.5 * apart.mean_distance_by_chance
    assert apart.pairs.distances.mean > 1.1 * apart.pairs.distances_by_chance.mean
