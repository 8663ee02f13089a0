"""Selectors: whom to invite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedarena import streams
from fedarena.train.engine import IntArray

# From those who may be invited, how many, the seed and the round: whom to invite.
Selector = Callable[[IntArray, int, int, int], IntArray]


def select_uniform(eligible: IntArray, cohort: int, seed: int, round: int) -> IntArray:
    """`cohort` different clients, each equally likely; the cost does not grow with the number of eligible ones."""
    if cohort == len(eligible):
        return eligible
    chosen = streams.generator(seed, "cohort", round).choice(len(eligible), size=cohort, replace=False, shuffle=False)
    return eligible[np.sort(chosen)]


def select_in_turn(eligible: IntArray, cohort: int, seed: int, round: int) -> IntArray:
    """One group of `cohort` clients after the other, and from the first again."""
    return eligible[((round - 1) * cohort + np.arange(cohort)) % len(eligible)]
