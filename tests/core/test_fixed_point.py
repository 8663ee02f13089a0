"""Updates as whole numbers: sums that cannot overflow, roundings that are small, and nothing cut off unnoticed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.transforms import Partial
from fedarena.transforms.discrete_noise import discrete_normals
from fedarena.transforms.fixed_point import NOTES, SATURATED, TRAIN_LOSS, FixedPoint, SumForm, bits_for_weights

NUMBERS = {"weight": 7.0, "clients": 1.0}


def partial(values: Any, others: Any = (), **numbers: float) -> Partial:
    tensors = {"change:params": {"w": torch.tensor(values, dtype=torch.float64)}}
    if len(others):
        tensors["other:control"] = {"c": torch.tensor(others, dtype=torch.float64)}
    return Partial(tensors, NUMBERS | numbers)


def form(fixed_point: FixedPoint, example: Partial) -> SumForm:
    return SumForm(fixed_point, example, {"change:params"})


def draws(seed: int = 0) -> Any:
    return np.random.Philox(seed).random_raw


def notes() -> dict[str, float]:
    return dict.fromkeys(NOTES[1:], 0.0)


finite = st.floats(-1e4, 1e4)


@given(
    st.lists(st.lists(finite, min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from([32, 64]),
    st.sampled_from(["nearest", "stochastic"]),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=60)
def test_words_add_up_to_the_sum_of_rounded_numbers(each: Any, bits: int, rounding: Any, bound: float) -> None:
    """Modulo 2^bits, whatever clients have; what is not cut off is off by a step at most."""
    fixed = FixedPoint(max(len(each), 3), bound, 1.0, bits, rounding)
    of = form(fixed, partial(each[0]))
    rounded = [of.rounded(partial(values, weight=0.5 + n), notes(), draws(n)) for n, values in enumerate(each)]
    words = [of.words(one) for one in rounded]
    assert {len(one) for one in words} == {of.length}
    assert {one.dtype.itemsize * 8 for one in words} == {bits}
    total = of.from_words(sum(words, np.zeros_like(words[0])), len(each))
    added = sum(one.tensors["change:params"]["w"] for one in rounded)
    assert torch.equal(total.tensors["change:params"]["w"], added)
    restored = of.restored(total)
    cut = np.clip(np.array(each), -bound, bound)
    step = 1 / fixed.scale(bound)
    limits = len(each) * step * (2 if rounding == "stochastic" else 1)
    np.testing.assert_allclose(restored.tensors["change:params"]["w"].numpy(), cut.sum(0), atol=limits, rtol=0)
    assert restored.numbers["weight"] == sum(0.5 + n for n in range(len(each)))
    assert restored.numbers["clients"] == len(each)
    assert restored.numbers[SATURATED] == sum(one.numbers[SATURATED] for one in rounded)


@pytest.mark.parametrize("largest", [1e-8, 3e-5, 0.7, 1.0, 80.0])
def test_weights_are_exact_where_whole_and_precise_where_small(largest: float) -> None:
    fixed = FixedPoint(3, 2.0 * largest, 1.0, point_bits=bits_for_weights(largest))
    of = form(fixed, partial([0.0]))
    weights = [largest, 0.3 * largest, 0.01 * largest]
    told = notes() | {TRAIN_LOSS: 3e9}
    rounded = [of.rounded(partial([0.0], weight=weight), told, draws()) for weight in weights]
    words = [of.words(one) for one in rounded]
    total = of.from_words(sum(words, np.zeros_like(words[0])), 3).numbers
    assert total["weight"] == sum(one.numbers["weight"] for one in rounded)
    assert total["weight"] == pytest.approx(sum(weights), rel=3e-6)
    assert (total["clients"], total[TRAIN_LOSS]) == (3.0, 9e9)


def test_what_is_beyond_the_range_is_cut_off_and_counted() -> None:
    of = form(FixedPoint(3, 2.0, 1.0), partial([0.0] * 4))
    rounded = of.rounded(partial([1.0, -5.0, 2.0, 7.0]), notes(), draws())
    assert rounded.numbers[SATURATED] == 2
    restored = of.restored(rounded).tensors["change:params"]["w"]
    np.testing.assert_allclose(restored.numpy(), [1.0, -2.0, 2.0, 2.0], atol=1e-8)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("bound", [1e-4, 1.0, 3e5])
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_the_largest_sum_of_a_group_fits(bits: int, bound: float, noise: float) -> None:
    """And one bit more would not, or not be told in double precision."""
    fixed = FixedPoint(64, bound, bound, bits, "stochastic", noise * bound)
    scale = fixed.scale(bound)
    assert math.log2(scale) % 1 == 0
    largest = 64 * (bound * scale + 1) + 16 * noise * bound * scale * 8
    most = 2 ** min(bits - 1, 52)
    assert largest < most < 2.2 * largest


def test_random_rounding_is_right_in_the_mean() -> None:
    of = form(FixedPoint(3, 1e6, 1.0, 32, "stochastic"), partial([0.0] * 20_000))
    value = 0.3 / of.fixed_point.scale(1e6)
    rounded = of.rounded(partial([value] * 20_000), notes(), draws()).tensors["change:params"]["w"]
    assert set(rounded.unique().tolist()) == {0, 1}
    assert abs(rounded.double().mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 20_000)


def test_other_numbers_have_a_range_of_their_own() -> None:
    of = form(FixedPoint(3, 1.0, 100.0), partial([0.0], [0.0]))
    rounded = of.rounded(partial([0.7], [70.0]), notes(), draws())
    assert rounded.numbers[SATURATED] == 0
    restored = of.restored(rounded).tensors
    assert restored["change:params"]["w"].item() == pytest.approx(0.7, abs=1e-9)
    assert restored["other:control"]["c"].item() == pytest.approx(70.0, abs=1e-7)


def test_a_range_that_leaves_no_digits_is_refused() -> None:
    with pytest.raises(BadInputError, match="Sums of 32 bits have no room for numbers up to 1e-300 of 64 clients"):
        form(FixedPoint(64, 1e-300, 1.0, 32, noise_deviation=1.0), partial([0.0]))


def test_an_update_of_another_form_is_refused() -> None:
    of = form(FixedPoint(3, 1.0, 1.0), partial([0.0, 0.0]))
    with pytest.raises(BadInputError, match=r"has no change:params/w of shape \[2\]"):
        of.rounded(partial([0.0]), notes(), draws())


# Noise of whole numbers


@pytest.mark.parametrize("deviation", [0.4, 1.0, 3.7, 1000.3])
def test_whole_numbers_have_the_chances_of_a_normal_distribution(deviation: float) -> None:
    count = 40_000
    drawn = discrete_normals(count, deviation, draws(3))
    assert len(drawn) == count
    places = np.arange(-40, 41)
    chances = np.exp(-(places**2) / (2 * deviation**2))
    if deviation < 10:
        chances /= chances.sum()
        frequent = chances * count > 10
        found = np.array([(drawn == place).sum() for place in places[frequent]])
        expected = chances[frequent] * count
        assert ((found - expected) ** 2 / expected).sum() < 2.5 * frequent.sum() + 20
    wanted = math.sqrt((chances * places**2).sum()) if deviation < 10 else deviation
    assert drawn.std() == pytest.approx(wanted, rel=0.02)
    assert abs(drawn.mean()) < 5 * wanted / math.sqrt(count)


def test_every_client_adds_its_part_of_the_noise() -> None:
    length, clients, deviation = 4000, 5, 0.25
    of = form(FixedPoint(clients, 1.0, 1.0, noise_deviation=deviation), partial([0.0] * length))
    total = sum(
        of.rounded(partial([0.5] * length), notes(), draws(n), draws(100 + n)).tensors["change:params"]["w"]
        for n in range(clients)
    )
    noise = of.restored(Partial({"change:params": {"w": total}})).tensors["change:params"]["w"] - 0.5 * clients
    assert float(noise.std()) == pytest.approx(deviation * math.sqrt(clients), rel=0.05)
    assert abs(float(noise.mean())) < 5 * deviation * math.sqrt(clients / length)
