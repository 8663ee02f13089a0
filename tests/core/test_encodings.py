"""Encodings: what is decoded is what was encoded, and bytes are counted as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.transforms.encodings import Levels, Plain, Values
from fedarena.transforms.encodings.bits import (
    bit_lengths,
    from_bits,
    from_bytes,
    from_gamma,
    gamma_bits,
    to_bits,
    to_bytes,
    to_gamma,
)
from fedarena.transforms.encodings.support import decode_support, encode_support, support_bytes

LENGTHS = st.integers(1, 300)
SEEDS = st.integers(0, 10**6)
TYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
SHARES = st.sampled_from([0.0, 0.003, 0.02, 0.1, 0.3, 0.6, 0.97, 1.0])
quick = settings(deadline=None, max_examples=150)


def masks(length: int, share: float, seed: int, rows: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, length)) < share


@quick
@given(LENGTHS, SHARES, SEEDS)
def test_places_come_back_in_as_many_bytes_as_are_counted(length, share, seed) -> None:
    for mask in masks(length, share, seed):
        data = encode_support(mask)
        assert len(data) == support_bytes(length, mask.sum())
        found, end = decode_support(data + b"what follows", length)
        assert end == len(data)
        np.testing.assert_array_equal(found, mask)


def test_the_shortest_of_the_codes_for_places_is_taken() -> None:
    length = 1_000_000
    counts = np.array([0, 1, 1000, 10_000, 300_000, length - 1, length])
    bitmap, indexes = length // 8, 4 * counts
    found = support_bytes(length, counts)
    assert (found <= 1 + bitmap).all()
    assert (found[1:] <= 6 + indexes[1:]).all()
    assert found[-1] == 1
    assert found[3] < 0.3 * indexes[3]
    assert found[4] == 1 + bitmap


@quick
@given(st.lists(st.integers(1, 2**40), max_size=40), st.integers(41, 45))
def test_numbers_of_few_bits_come_back(numbers, width) -> None:
    given_numbers = np.array(numbers, dtype=np.int64)
    assert bit_lengths(given_numbers).tolist() == [number.bit_length() for number in numbers]
    code = to_gamma(given_numbers)
    assert len(code) == sum(2 * number.bit_length() - 1 for number in numbers) == gamma_bits(given_numbers).sum()
    found, bits = from_gamma(from_bytes(to_bytes(code)), len(numbers), max(numbers, default=1))
    assert found.tolist() == numbers
    assert bits == len(code)
    assert from_bits(from_bytes(to_bytes(to_bits(given_numbers, width))), len(numbers), width).tolist() == numbers


@quick
@given(LENGTHS, SHARES, SEEDS, TYPES)
def test_values_come_back_to_the_bit_and_are_counted(length, share, seed, dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, length, generator=generator).to(dtype) * torch.from_numpy(masks(length, share, seed))
    encoding = Values(length, dtype)
    each = [encoding.encode({"values": row}) for row in rows]
    assert [len(data) for data in each] == encoding.sizes({"values": rows}).tolist()
    assert all(len(data) <= length * dtype.itemsize for data in each)
    for row, data in zip(rows, each, strict=True):
        assert torch.equal(encoding.decode(data)["values"], row)
        assert len(data) == encoding.planned_bytes(int((row != 0).sum()))


@quick
@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), SHARES, SEEDS, st.sampled_from([1, 2, 3, 7, 127, 32767]))
def test_levels_come_back_and_are_counted(pieces, share, seed, most) -> None:
    length, generator = sum(pieces), np.random.default_rng(seed)
    largest = generator.integers(1, most + 1)
    levels = generator.integers(-largest, largest + 1, size=(4, length)) * masks(length, share, seed)
    messages = {
        "scales": torch.from_numpy(generator.random((4, len(pieces)))).float(),
        "levels": torch.from_numpy(levels).float(),
    }
    encoding = Levels(pieces, most, torch.float32)
    for row, size in enumerate(encoding.sizes(messages).tolist()):
        message = {name: t[row] for name, t in messages.items()}
        data = encoding.encode(message)
        assert len(data) == size
        found = encoding.decode(data)
        assert found.keys() == message.keys()
        assert all(torch.equal(found[name], t) for name, t in message.items())
        # Never more than all levels in the same number of bits.
        assert size <= 4 * len(pieces) + 1 + -(-length * (2 * most).bit_length() // 8)


@pytest.mark.parametrize(("spread", "form"), [(100, 0), (0, 1), (2, 2)])
def test_the_shortest_of_the_codes_for_levels_is_taken(spread, form) -> None:
    levels = np.random.default_rng(0).integers(-spread, spread + 1, size=2000)
    if not spread:
        levels[::50] = 127
    data = Levels([2000], 127, torch.float32).encode(
        {"scales": torch.ones(1), "levels": torch.from_numpy(levels).float()}
    )
    assert data[4] == form


def test_tensors_of_fixed_shapes_come_back() -> None:
    encoding = Plain({"key": ((), torch.int64), "table": ((2, 3), torch.float64), "nothing": ((0,), torch.float32)})
    message = {"table": torch.randn(2, 3, dtype=torch.float64), "key": torch.tensor(-(2**60)), "nothing": torch.ones(0)}
    data = encoding.encode(message)
    assert len(data) == 8 + 6 * 8 == encoding.planned_bytes(0)
    assert encoding.sizes({name: torch.stack([t] * 3) for name, t in message.items()}).tolist() == [len(data)] * 3
    found = encoding.decode(data)
    assert all(torch.equal(found[name], t) for name, t in message.items())
