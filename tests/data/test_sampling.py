from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.data.sampling import Sampling

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=40).map(lambda sizes: np.array(sizes, dtype=np.int64))


@given(SIZES, st.floats(0.01, 1), st.integers(0, 5))
def test_as_few_users_as_reach_the_fraction_are_taken(sizes: np.ndarray, fraction: float, seed: int) -> None:
    if not sizes.sum():
        return
    everybody = Sampling(fraction, 0, seed).choose(sizes)
    assert (np.diff(everybody) > 0).all()
    taken = sizes[everybody].sum()
    assert taken >= fraction * sizes.sum() * (1 - 1e-12)
    assert taken - sizes[everybody].max() < fraction * sizes.sum()  # no set without its largest would be enough


@given(SIZES, st.integers(1, 20))
def test_those_with_too_few_samples_are_left_out(sizes: np.ndarray, minimum: int) -> None:
    enough = [i for i, size in enumerate(sizes) if size >= minimum]
    if enough:
        assert Sampling(minimum_samples=minimum).choose(sizes).tolist() == enough
        return
    with pytest.raises(BadInputError, match=f"minimum_samples is {minimum}, but nobody has more than {sizes.max()}"):
        Sampling(minimum_samples=minimum).choose(sizes)


def test_the_seed_decides_who_is_taken() -> None:
    sizes = np.full(1000, 3)
    first, again, other = (Sampling(0.1, seed=seed).choose(sizes).tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len(first) == len(other) == 100


def test_the_fraction_is_one_of_all_data() -> None:
    sizes = np.array([1] * 500 + [10] * 50)
    kept = Sampling(0.5, minimum_samples=10).choose(sizes)
    assert 15 <= len(kept) <= 35  # about half of the large ones, not all of them
