from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data import Federation, PooledFederation
from fedarena.data.pooled import shuffled_places


class NumberedSamples:
    """Stands in for a federation of any size: a training sample is the number of its client and its position."""

    def __init__(self, sizes: np.ndarray):
        self.sizes, self.num_clients = sizes, len(sizes)

    def counts(self, clients, part: str) -> np.ndarray:
        return self.sizes[clients]

    def samples_at(self, clients, positions, part: str) -> dict[str, np.ndarray]:
        assert part == "train"
        assert (positions < self.sizes[clients]).all()
        return {"x": np.stack([clients, positions], axis=1)}


@given(size=st.integers(1, 400), seed=st.integers(0, 2**63 - 1), shuffle=st.integers(0, 10**6))
def test_every_shuffle_is_a_permutation(size: int, seed: int, shuffle: int) -> None:
    positions = np.arange(size) + shuffle * size
    places = shuffled_places(positions, size, seed)
    assert sorted(places.tolist()) == list(range(size))
    some = positions[:: max(1, size // 3)]  # a place does not depend on what else is asked for
    np.testing.assert_array_equal(shuffled_places(some, size, seed), places[some - positions[0]])


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 9, 17])
def test_every_place_is_equally_likely(size: int) -> None:
    shuffles = 6000
    places = shuffled_places(np.arange(size * shuffles), size, seed=4).reshape(shuffles, size)
    for columns in ((0,), (size - 1,), (0, 1)):
        cells = np.ravel_multi_index([places[:, c] for c in columns], [size] * len(columns))
        possible = size if len(columns) == 1 else size * (size - 1)
        expected = shuffles / possible
        found = np.bincount(cells)
        chi_square = ((found[found > 0] - expected) ** 2 / expected).sum()
        assert (found > 0).sum() == possible
        # mean and standard deviation of a chi-square with so many degrees of freedom
        assert abs(chi_square - (possible - 1)) < 4 * np.sqrt(2 * (possible - 1))


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30), seed=st.integers(0, 99), data=st.data())
def test_iid_clients_divide_the_pool_among_them(sizes: list[int], seed: int, data) -> None:
    pooled_clients = np.array(sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))))
    federation = PooledFederation(NumberedSamples(np.array(sizes)), pooled_clients, seed, None)
    clients = federation.made_up_clients(len(pooled_clients))
    assert federation.counts(clients, "train").tolist() == [sizes[c] for c in pooled_clients]
    together = federation.samples(clients, "train")
    wanted = [(c, position) for c in pooled_clients.tolist() for position in range(sizes[c])]
    assert sorted(map(tuple, together.columns["x"].tolist())) == wanted
    for number, client in enumerate(clients.tolist()):
        alone = federation.samples([client], "train").columns["x"]
        np.testing.assert_array_equal(alone, together.columns["x"][slice(*together.offsets[number : number + 2])])


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), per_client=st.integers(1, 40), seed=st.integers(0, 9))
def test_a_sequence_of_clients_sees_every_sample_once_per_epoch(sizes: list[int], per_client: int, seed: int) -> None:
    pool = sum(sizes)
    federation = PooledFederation(NumberedSamples(np.array(sizes)), np.arange(len(sizes)), seed, per_client)
    number = -(-3 * pool // per_client)
    seen = federation.samples(federation.made_up_clients(number), "train").columns["x"].tolist()
    assert len(seen) == number * per_client
    wanted = [[c, position] for c, size in enumerate(sizes) for position in range(size)]
    for epoch in range(3):
        assert sorted(seen[epoch * pool : (epoch + 1) * pool]) == wanted


def test_epochs_are_shuffled_anew_and_by_the_seed() -> None:
    orders = [shuffled_places(np.arange(50) + 50 * e, 50, s).tolist() for e, s in ((0, 0), (1, 0), (0, 1))]
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("samples_per_client", [None, 4000])
def test_memory_does_not_depend_on_the_pool(samples_per_client: int | None) -> None:
    sizes = np.array([4000] * 3 + [10**9] * 1000)
    federation = PooledFederation(NumberedSamples(sizes), np.arange(len(sizes)), 0, samples_per_client)
    tracemalloc.start()
    samples = federation.samples(federation.made_up_clients(3), "train").columns["x"]
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(samples) == 12000
    assert len(np.unique(samples[:, 0])) > 900  # they come from everywhere
    assert peak_bytes < 5_000_000


@pytest.fixture
def federation(make_federation) -> Federation:
    x = np.arange(12.0).reshape(6, 2)
    return make_federation({"a": (x[:2], np.array([0, 1])), "b": (x[2:], np.array([1, 1, 0, 0]))}, 2)


def test_a_real_federation_is_pooled_with_its_columns_together(federation: Federation) -> None:
    pooled = PooledFederation(federation, federation.clients("train"), 5, None)
    clients = pooled.made_up_clients(2)
    columns = pooled.samples(clients, "train").columns
    real = federation.samples([0, 1], "train").columns
    order = np.argsort(columns["x"][:, 0])
    np.testing.assert_array_equal(columns["x"][order], real["x"])
    np.testing.assert_array_equal(columns["y"][order], real["y"])
    assert pooled.counts(clients, "test").tolist() == [0, 0]
    assert len(pooled.samples(clients, "test").columns["y"]) == 0
    assert pooled.client_ids(clients) == ["pooled 0", "pooled 1"]


def test_real_clients_stay_as_they_are(federation: Federation) -> None:
    pooled = PooledFederation(federation, federation.clients("train"), 5, 3)
    for part in ("train", "test"):
        np.testing.assert_array_equal(pooled.counts([1, 0], part), federation.counts([1, 0], part))
        ours, theirs = pooled.samples([1, 0], part), federation.samples([1, 0], part)
        np.testing.assert_array_equal(ours.columns["x"], theirs.columns["x"])
        np.testing.assert_array_equal(ours.offsets, theirs.offsets)
    assert pooled.client_ids([1, 0]) == ["b", "a"]
    with pytest.raises(ValueError, match="at once"):
        pooled.counts([0, 2], "train")


def test_samples_that_do_not_exist_are_refused(federation: Federation) -> None:
    np.testing.assert_array_equal(federation.samples_at([1, 0, 1], np.array([3, 0, 0]), "test")["y"], [0, 0, 1])
    for client, position in ((0, 2), (1, -1)):
        with pytest.raises(BadInputError, match="does not have"):
            federation.samples_at([client], np.array([position]), "test")
