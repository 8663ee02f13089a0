from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedarena.core import streams

KEYS = st.integers(min_value=0, max_value=2**40)


def test_known_values_never_change() -> None:
    # These numbers are part of "same seed, same bits" across versions: a change here changes everybody's results.
    assert int(streams.bits(0, "cohort", 1)) == 15720861508049358635
    assert int(streams.bits(2**63 - 1, "batches", 3, 4)) == 17346608086439370267
    assert streams.generator(1, "cohort", 2).integers(1000, size=3).tolist() == [221, 578, 576]


@given(seed=KEYS, round=KEYS, clients=st.lists(KEYS, min_size=1, max_size=20))
def test_many_clients_at_once_equal_one_at_a_time(seed: int, round: int, clients: list[int]) -> None:
    together = streams.bits(seed, "batches", round, np.array(clients))
    assert together.tolist() == [int(streams.bits(seed, "batches", round, client)) for client in clients]


@given(seed=KEYS, a=KEYS, b=KEYS)
def test_purposes_seeds_and_key_order_make_different_streams(seed: int, a: int, b: int) -> None:
    drawn = {
        int(streams.bits(seed, "one", a, b)),
        int(streams.bits(seed, "two", a, b)),
        int(streams.bits(seed + 1, "one", a, b)),
    }
    assert len(drawn) == 3
    if a != b:
        assert streams.bits(seed, "one", a, b) != streams.bits(seed, "one", b, a)


def test_bits_are_balanced_and_neighbouring_keys_independent() -> None:
    drawn = streams.bits(3, "batches", np.arange(100)[:, None], np.arange(1000)[None, :])
    ones = np.unpackbits(drawn.ravel().view(np.uint8)).reshape(-1, 64)
    assert abs(ones.mean(axis=0) - 0.5).max() < 0.01
    numbers = streams.uniform(3, "batches", np.arange(100)[:, None], np.arange(1000)[None, :])
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.01
    histogram = np.histogram(numbers, bins=50, range=(0, 1))[0]
    assert abs(histogram / histogram.mean() - 1).max() < 0.1


def test_generators_of_the_same_keys_agree_and_of_others_do_not() -> None:
    first = streams.generator(5, "cohort", 1).random(4)
    assert (streams.generator(5, "cohort", 1).random(4) == first).all()
    assert not (streams.generator(5, "cohort", 2).random(4) == first).any()
