"""Sharing a secret so that any `threshold` of its holders can put it together, and fewer learn nothing about it.

Shamir, "How to Share a Secret", 1979: the secret is the value at 0 of a random polynomial of degree threshold - 1 over
a prime field, and a holder's share is its value at the holder's own point.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

# The least prime above 2^256, so that every secret of 32 bytes is an element of the field.
PRIME = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 33

Randomness = Callable[[int], bytes]  # so many bytes that nobody can foresee


def split_secret(
    secret: bytes, threshold: int, holders: Iterable[int], randomness: Randomness = os.urandom
) -> dict[int, bytes]:
    """The share of every holder, each known by a number from 0 on."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    coefficients = [int.from_bytes(secret, "big"), *(_element(randomness) for _ in range(threshold - 1))]

    def value(point: int) -> int:
        total = 0
        for coefficient in reversed(coefficients):
            total = (total * point + coefficient) % PRIME
        return total

    return {holder: value(holder + 1).to_bytes(SHARE_BYTES, "big") for holder in holders}


def join_shares(shares: Mapping[int, bytes], weights: Mapping[int, int] | None = None) -> bytes | None:
    """The secret that these shares are of; None if they are of none, because one of them is wrong.

    There must be as many as the threshold. `weights` are those of `holder_weights`, to compute them once for many.
    """
    weights = holder_weights(list(shares)) if weights is None else weights
    total = sum(int.from_bytes(shares[holder], "big") * weight for holder, weight in weights.items()) % PRIME
    return total.to_bytes(SECRET_BYTES, "big") if total < 1 << (8 * SECRET_BYTES) else None


def holder_weights(holders: Sequence[int]) -> dict[int, int]:
    """By what to multiply the shares of these holders for a sum that is the secret (Lagrange's polynomials at 0)."""
    weights = {}
    for holder in holders:
        above = below = 1
        for other in holders:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        weights[holder] = above * pow(below, -1, PRIME) % PRIME
    return weights


def _element(randomness: Randomness) -> int:
    """A random element of the field; numbers that are too large are drawn again, so that all have the same chance."""
    while True:
        # Of 257 bits, about half are too large.
        drawn = int.from_bytes(randomness(SHARE_BYTES), "big") >> 7
        if drawn < PRIME:
            return drawn
