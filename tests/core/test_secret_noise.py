"""Noise that protects somebody: its distributions, and that nobody else can draw it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats

from fedarena.algorithms import FedAvg
from fedarena.core.secret_noise import SecretSource
from fedarena.transforms import UpdatePath
from fedarena.transforms.clip_and_noise import normal_numbers

SOURCE = SecretSource(bytes(range(32)))
NUMBER = 200_000


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda stream: stream.random(NUMBER), stats.uniform()),
        (lambda stream: stream.standard_normal(NUMBER), stats.norm()),
        (lambda stream: stream.standard_normal(NUMBER, np.float32), stats.norm()),
        (lambda stream: stream.laplace(1.0, 3.0, NUMBER), stats.laplace(1.0, 3.0)),
    ],
    ids=["uniform", "normal", "single precision", "laplace"],
)
def test_distributions(draw, distribution):
    drawn = draw(SOURCE.stream("test"))
    assert drawn.shape == (NUMBER,)
    assert stats.kstest(drawn, distribution.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn[: NUMBER // 2], drawn[NUMBER // 2 :])[0, 1]) < 0.01


def test_every_bit_of_a_word_is_even():
    words = SOURCE.stream("bits").words(NUMBER)
    shares = [float(((words >> np.uint64(bit)) & np.uint64(1)).mean()) for bit in range(64)]
    assert max(abs(share - 0.5) for share in shares) < 6 * 0.5 / NUMBER**0.5


def test_it_is_shake_of_the_key_and_the_purpose():
    purpose = hashlib.sha256(repr(("a", 7)).encode()).digest()
    data = hashlib.shake_256(bytes(range(32)) + purpose + bytes(8)).digest(24)
    assert SOURCE.stream("a", 7).words(3).tobytes() == data


def test_a_key_gives_the_same_again_and_purposes_give_others():
    first = SOURCE.stream("a", 7)
    drawn = [first.words(5), first.words(5)]
    again = SOURCE.stream("a", 7)
    np.testing.assert_array_equal(drawn[0], again.words(5))
    np.testing.assert_array_equal(drawn[1], again.words(5))
    others = [SOURCE.stream("a", 8), SOURCE.stream("a7"), SecretSource(bytes(32)).stream("a", 7)]
    seen = {tuple(words) for words in (*drawn, *(stream.words(5) for stream in others))}
    assert len(seen) == 5


def test_without_a_key_nothing_is_drawn_twice():
    source = SecretSource()
    assert len({int(source.stream("a").words(1)[0]) for _ in range(100)}) == 100


def test_a_key_has_256_bits():
    with pytest.raises(ValueError, match="A key has 32 bytes, not 8"):
        SecretSource(bytes(8))


def test_a_server_draws_the_same_for_a_step_that_it_makes_again():
    def drawn(path: UpdatePath, version: int) -> torch.Tensor:
        return normal_numbers(NUMBER, "updates", path._server_context(0, version + 1, version), torch.zeros(1))

    key = bytes(32)
    first, again, other = (UpdatePath(FedAvg(), server_noise=SecretSource(k)) for k in (key, key, b"1" * 32))
    noise = drawn(first, 4)
    assert noise.dtype == torch.float32
    assert stats.kstest(noise.numpy(), stats.norm().cdf).pvalue > 1e-3
    assert torch.equal(noise, drawn(again, 4))
    for different in (drawn(first, 5), drawn(other, 4), drawn(UpdatePath(FedAvg()), 4)):
        assert abs(float(torch.corrcoef(torch.stack([noise, different]))[0, 1])) < 0.02
