"""Selectors: whom to invite."""

from __future__ import annotations

import numpy as np

from fedarena import streams
from fedarena.train.engine import IntArray


def select_uniform(eligible: IntArray, cohort: int, seed: int, round: int) -> IntArray:
    """`cohort` different clients, each equally likely; the cost does not grow with the number of eligible ones."""
    chosen = streams.generator(seed, "cohort", round).choice(len(eligible), size=cohort, replace=False, shuffle=False)
    return eligible[np.sort(chosen)]
