"""Splits are disjoint, complete, as large as asked for, and depend on nothing but their seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data.splits import Split, apportion, split_samples

PERCENT = st.integers(1, 100).flatmap(lambda train: st.tuples(st.just(train), st.integers(0, 100 - train)))


def split_of(percent: tuple[int, int], kind: str = "within_client", seed: int = 0) -> Split:
    return Split(kind, percent[0] / 100, percent[1] / 100, seed)


@given(percent=PERCENT, totals=st.lists(st.integers(0, 3000), min_size=1, max_size=20))
def test_shares_add_up_and_nobody_goes_without(percent: tuple[int, int], totals: list[int]) -> None:
    fractions = split_of(percent).fractions
    sizes = apportion(np.array(totals), fractions)
    assert sizes.sum(axis=1).tolist() == totals
    assert (sizes >= 0).all()
    exact = np.array(totals)[:, None] * np.array(fractions)
    enough = (exact[:, [fraction > 0 for fraction in fractions]] >= 1).all(axis=1)
    assert (np.abs(sizes - exact)[enough] < 1 + 1e-6).all()
    asked = sum(fraction > 0 for fraction in fractions)
    for total, (train, validation, test) in zip(totals, sizes.tolist(), strict=True):
        assert (train >= 1) == (total >= 1)
        assert (test >= 1) == (fractions[2] > 0 and total >= 2)
        assert validation >= 1 or fractions[1] == 0 or total < asked
        assert validation == 0 or fractions[1] > 0


@pytest.mark.parametrize(
    ("total", "fractions", "expected"),
    [
        (10, (0.6, 0.2, 0.2), [6, 2, 2]),
        (5, (0.8, 0.0, 0.2), [4, 0, 1]),
        (100, (0.29, 0.0, 0.71), [29, 0, 71]),  # 0.29 * 100 is 28.999999999999996
        (7, (0.6, 0.2, 0.2), [4, 2, 1]),  # 4.2, 1.4, 1.4: the earlier of two equal remainders wins
        (2, (0.01, 0.0, 0.99), [1, 0, 1]),
        (2, (0.9, 0.0, 0.1), [1, 0, 1]),
        (5, (0.9, 0.0, 0.1), [4, 0, 1]),
        (2, (0.1, 0.8, 0.1), [1, 0, 1]),
        (3, (0.98, 0.01, 0.01), [1, 1, 1]),
        (6, (0.9, 0.05, 0.05), [4, 1, 1]),
        (1, (0.6, 0.2, 0.2), [1, 0, 0]),
        (0, (0.6, 0.2, 0.2), [0, 0, 0]),
    ],
)
def test_known_shares(total: int, fractions: tuple[float, float, float], expected: list[int]) -> None:
    assert apportion(np.array([total]), fractions)[0].tolist() == expected


@given(
    percent=PERCENT,
    num_samples=st.integers(0, 200),
    order=st.sampled_from(["shuffled", "in_order"]),
    seed=st.integers(0, 5),
    client=st.integers(0, 5),
)
def test_samples_are_split_completely(percent, num_samples: int, order: str, seed: int, client: int) -> None:
    fractions = split_of(percent).fractions
    parts = split_samples(num_samples, fractions, order=order, seed=seed, client=client)
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_samples))
    assert [len(part) for part in parts] == apportion(np.array([num_samples]), fractions)[0].tolist()
    if order == "in_order":
        assert np.concatenate(parts).tolist() == list(range(num_samples))


@given(percent=PERCENT, num_samples=st.integers(0, 100), gap=st.integers(0, 30))
def test_a_gap_separates_the_parts(percent, num_samples: int, gap: int) -> None:
    fractions = split_of(percent).fractions
    without = split_samples(num_samples, fractions, order="in_order")
    parts = split_samples(num_samples, fractions, order="in_order", gap=gap)
    assert parts[0].tolist() == without[0].tolist()
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        if len(parts[earlier]) and len(parts[later]):
            assert parts[later].min() - parts[earlier].max() > gap
    for part, whole in zip(parts[1:], without[1:], strict=True):
        assert len(part) == max(len(whole) - (gap if len(whole) and whole[0] > 0 else 0), 0)


def test_shuffling_depends_on_seed_and_client_only() -> None:
    def train(seed: int, client: int) -> list[int]:
        return split_samples(50, (0.5, 0.0, 0.5), order="shuffled", seed=seed, client=client)[0].tolist()

    assert train(1, 2) == train(1, 2)
    assert len({tuple(train(seed, client)) for seed in (1, 2) for client in (3, 4)}) == 4
    assert train(1, 2) != sorted(train(1, 2))


@given(percent=PERCENT, num_clients=st.integers(1, 300), seed=st.integers(0, 5))
def test_clients_are_grouped_by_fractions(percent, num_clients: int, seed: int) -> None:
    split = split_of(percent, "by_client", seed)
    groups = split.groups(num_clients)
    sizes = [groups.count(group) for group in ("train", "validation", "test")]
    assert sizes == apportion(np.array([num_clients]), split.fractions)[0].tolist()
    assert groups == split.groups(num_clients)


def test_which_clients_are_tested_depends_on_the_seed() -> None:
    groups = {tuple(split_of((80, 0), "by_client", seed).groups(40)) for seed in range(5)}
    assert len(groups) == 5


def test_by_client_puts_all_samples_in_the_part_of_the_group() -> None:
    columns = {"x": np.arange(5), "y": np.arange(5) * 2}
    divided = split_of((80, 0), "by_client").divide(0, "test", columns)
    assert list(divided) == ["test"]
    assert divided["test"]["y"].tolist() == [0, 2, 4, 6, 8]


def test_within_client_keeps_columns_together() -> None:
    columns = {"x": np.arange(10), "y": np.arange(10) * 2}
    split = split_of((60, 20), "within_client")
    assert split.groups(3) == ["train"] * 3
    divided = split.divide(0, "train", columns)
    assert {part: len(values["x"]) for part, values in divided.items()} == {"train": 6, "validation": 2, "test": 2}
    for values in divided.values():
        assert (values["y"] == values["x"] * 2).all()


def test_within_client_leaves_out_samples_between_parts() -> None:
    divided = split_of((60, 20)).divide(0, "train", {"x": np.arange(20)}, order="in_order", gap=3)
    assert {part: values["x"].tolist() for part, values in divided.items()} == {
        "train": list(range(12)),
        "validation": [15],
        "test": [19],
    }


@pytest.mark.parametrize(("train", "validation"), [(0.0, 0.5), (0.8, 0.3), (0.5, -0.1), (1.1, 0.0)])
def test_impossible_fractions_are_refused(train: float, validation: float) -> None:
    with pytest.raises(BadInputError, match="train_fraction"):
        Split("by_client", train, validation, 0)


def test_fractions_that_leave_nothing_over_are_fine() -> None:
    assert Split("by_client", 0.8, 0.2, 0).fractions == (0.8, 0.2, 0.0)
    assert Split("by_client", 0.7, 0.3, 0).fractions == (0.7, 0.3, 0.0)
