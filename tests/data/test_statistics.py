"""Statistics equal those counted by hand, whatever is read at a time, and tell chance from heterogeneity."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from store_oracle import PlainFederation, plain_federations

from fedarena.data import Federation, describe, load_federation
from fedarena.data.statistics import describe as statistics
from fedarena.data.statistics import label_statistics
from fedarena.data.statistics.describe import as_json, describe_sizes
from fedarena.data.statistics.label_statistics import LabelStatistics, expected_distances
from fedarena.data.store.labels import count_labels


def slow_label_counts(plain: PlainFederation) -> np.ndarray:
    """The labels of every client, all parts together."""
    column = plain.task.label_column
    return np.array(
        [
            count_labels(plain.task, rows, np.array([0, len(rows)]))[0]
            for rows in (client.rows("all", column) for client in plain.clients)
        ]
    )


@settings(max_examples=50, deadline=None)
@given(plain=plain_federations(), chunk=st.sampled_from([1, 50, 1 << 25]))
def test_labels_equal_those_counted_client_by_client(plain: PlainFederation, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_statistics, "CHUNK_BYTES", chunk)
        patch.setattr(label_statistics, "CHUNK_COUNTS", chunk)
        patch.setattr(statistics, "CLIENTS_PER_CHUNK", min(chunk, 3))
        plain.write(Path(folder) / "store")
        found = describe(Federation.open(Path(folder) / "store"))
    counts = slow_label_counts(plain)
    assert found.labels.counts.tolist() == counts.sum(axis=0).tolist()
    distances = []
    for client in counts:
        if client.sum():
            mix, overall = client / client.sum(), counts.sum(axis=0) / counts.sum()
            distances.append(0.5 * sum(abs(a - b) for a, b in zip(mix, overall, strict=True)))
    assert found.labels.mean_distance == pytest.approx(np.mean(distances) if distances else 0.0)
    assert found.labels.clients == len(plain.clients)
    assert found.labels.clients_with.tolist() == [int((of_label > 0).sum()) for of_label in counts.T]
    assert found.labels.samples == sum(len(client.rows("all", plain.task.label_column)) for client in plain.clients)
    tested = [client for client in plain.clients if len(client.rows("test", plain.task.label_column))]
    assert found.clients_without_test == len(plain.clients) - len(tested)

    sizes = [len(client.rows("all", plain.task.label_column)) for client in plain.clients]
    assert found.sizes.mean == pytest.approx(np.mean(sizes))
    assert found.labels.mix.sizes.tolist() == sorted(size for size in sizes if size)
    for client, id, size, mix in zip(
        found.labels.mix.clients, found.labels.mix.ids, found.labels.mix.sizes, found.labels.mix.counts, strict=True
    ):
        assert plain.clients[client].id == id
        assert sizes[client] == size
        assert mix.tolist() == counts[client].tolist()
    places = [client.attributes["place"] for client in plain.clients]
    assert found.attributes["place"].distinct == len(set(places))
    assert dict(found.attributes["place"].most_common) == dict.fromkeys(places, 1)
    assert found.samples_by_group_and_part["test"]["train"] == sum(
        len(client.rows("train", plain.task.label_column)) for client in plain.clients if client.group == "test"
    )


@given(sizes=st.lists(st.integers(0, 100_000), min_size=1, max_size=100))
def test_sizes(sizes: list[int]) -> None:
    found = describe_sizes(np.array(sizes))
    assert (found.min, found.max) == (min(sizes), max(sizes))
    assert found.mean == pytest.approx(np.mean(sizes))
    assert found.std == pytest.approx(np.std(sizes))
    assert found.percentiles[50] == pytest.approx(found.median)
    assert found.percentiles[90] == pytest.approx(np.percentile(sizes, 90))
    if found.std > 0:
        assert found.skewness == pytest.approx(scipy.stats.skew(sizes), abs=1e-6)
    else:
        assert found.skewness == 0
    edges = found.histogram_edges.tolist()
    for first, last, count in zip(edges[:-1], edges[1:], found.histogram_counts.tolist(), strict=True):
        assert first < last
        assert count == sum(first <= size < last for size in sizes)
    assert found.histogram_counts.sum() == len(sizes)


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_the_curve_of_skew_is_what_the_largest_clients_have(sizes: list[int]) -> None:
    found = describe_sizes(np.array(sizes))
    largest_first = sorted(sizes, reverse=True)
    total = max(sum(sizes), 1)
    for clients, samples in zip(found.curve_clients * len(sizes), found.curve_samples, strict=True):
        assert samples == pytest.approx(sum(largest_first[: round(clients)]) / total)
    assert (found.curve_clients[0], found.curve_clients[-1]) == (0, 1)
    half = next(number for number in range(len(sizes) + 1) if 2 * sum(largest_first[:number]) >= sum(sizes))
    assert found.half_share == pytest.approx(half / len(sizes))


def test_statistics_are_json() -> None:
    found = describe(load_federation("digits", {"partition": "iid"}))
    read = json.loads(json.dumps(as_json(found)))
    assert read["sizes"]["percentiles"]["50"] == found.sizes.median
    assert read["labels"]["pairs"]["distances"]["quantiles"] == found.labels.pairs.distances.quantiles.tolist()
    assert read["columns"]["x"] == {"dtype": "float32", "shape": [1, 8, 8]}
    assert read["labels"]["names"] == list("0123456789")
    assert len(read["labels"]["mix"]["counts"]) == len(read["labels"]["mix"]["ids"])


@pytest.mark.parametrize("distribution", [[0.5, 0.5], [0.9, 0.1, 0.0], [0.2] * 5, [1.0, 0.0], [0.97, 0.02, 0.01]])
def test_distances_by_chance_equal_the_sum_over_all_outcomes(distribution: list[float]) -> None:
    draws = np.array([1, 2, 3, 10, 57, 10])
    found = expected_distances(draws, np.array(distribution))
    for n, distance in zip(draws, found, strict=True):
        outcomes = np.arange(n + 1)
        deviations = [np.sum(scipy.stats.binom.pmf(outcomes, n, p) * np.abs(outcomes / n - p)) for p in distribution]
        assert distance == pytest.approx(0.5 * sum(deviations), abs=1e-12)


def test_distances_by_chance_for_very_many_draws() -> None:
    """Then a count is nearly normal: its mean absolute deviation is the square root of 2 n p (1 - p) / pi."""
    n, p = 1_000_000, np.array([0.3, 0.7])
    expected = 0.5 * np.sqrt(2 * n * p * (1 - p) / np.pi).sum() / n
    assert expected_distances(np.array([n]), p)[0] == pytest.approx(expected, rel=1e-5)


def test_heterogeneity_is_what_chance_does_not_explain() -> None:
    def labels(partition: str) -> LabelStatistics:
        return describe(load_federation("digits", {"partition": partition})).labels

    iid, shards = labels("iid"), labels("shards")
    assert abs(iid.mean_distance - iid.mean_distance_by_chance) < 0.03
    assert shards.mean_distance > 4 * shards.mean_distance_by_chance
    assert shards.names == tuple("0123456789")


def test_few_clients_stand_for_many() -> None:
    federation = load_federation("synthetic")
    everything, some = describe(federation), describe(federation, max_label_clients=300)
    assert everything.labels.clients == 1000
    assert some.labels.clients == 300
    assert some.labels.counts.sum() < everything.labels.counts.sum()
    assert some.labels.mean_distance == pytest.approx(everything.labels.mean_distance, rel=0.1)
    assert some.sizes.mean == everything.sizes.mean  # sizes are always those of all clients
    again = describe(federation, max_label_clients=300)
    assert again.labels.counts.tolist() == some.labels.counts.tolist()


def test_some_clients_are_looked_at_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = load_federation("synthetic")
    monkeypatch.setattr(statistics, "SOME_CLIENTS", 200)
    assert describe(federation).labels.clients == 1000
    monkeypatch.setattr(statistics, "MANY_CLIENTS", 999)
    assert describe(federation).labels.clients == 200
    monkeypatch.setattr(statistics, "MANY_CLIENTS", 1000)
    monkeypatch.setattr(statistics, "MANY_COUNTS", 1000 * federation.task.classes - 1)
    assert describe(federation).labels.clients == 200


def test_those_few_are_not_simply_the_first() -> None:
    """Clients often come in some order, here by their only label."""
    federation = load_federation("digits", {"partition": "natural"})
    seen = np.flatnonzero(describe(federation, max_label_clients=5).labels.counts)
    assert len(seen) == 5
    assert seen.tolist() != [0, 1, 2, 3, 4]


def test_the_mix_shows_clients_of_all_sizes() -> None:
    federation = load_federation("chitchat")
    mix = describe(federation).labels.mix
    sizes = federation.counts(federation.clients("all"))
    assert len(mix.clients) == len(mix.ids) == 50
    assert len(set(mix.clients.tolist())) == 50
    assert (np.diff(mix.sizes) >= 0).all()
    assert mix.sizes[0] == sizes.min()
    assert mix.sizes[-1] == sizes.max()
    assert mix.sizes[25] == pytest.approx(np.median(sizes), rel=0.2)
    assert (mix.counts.sum(axis=1) > 0).all()


def test_clients_without_samples_are_described_too(tmp_path: Path, plain: PlainFederation) -> None:
    plain.clients = plain.clients[:1]
    plain.write(tmp_path / "store")
    found = describe(Federation.open(tmp_path / "store"))
    assert found.num_samples == 0
    assert found.labels.mix.ids == []
    assert found.labels.mean_distance == found.labels.mean_distance_by_chance == 0
