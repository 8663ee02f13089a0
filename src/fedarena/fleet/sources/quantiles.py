"""Distributions given by their quantiles, and draws that keep to them closely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedarena.fleet.arrays import FloatArray


@dataclass(frozen=True)
class QuantileTable:
    """A distribution of positive numbers: `values` are its quantiles at `probabilities`, from 0 to 1.

    Between two of them the logarithm is linear, so values keep their order and never leave the table.

    >>> QuantileTable((0.0, 0.5, 1.0), (1.0, 10.0, 1000.0)).at(np.array([0.25, 0.5, 0.75])).round(3).tolist()
    [3.162, 10.0, 100.0]
    """

    probabilities: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, probabilities: FloatArray) -> FloatArray:
        """The quantiles at these probabilities; of uniform random numbers it makes draws from the distribution."""
        return np.exp(np.interp(probabilities, self.probabilities, np.log(self.values)))


def stratified(scores: FloatArray, random: np.random.Generator) -> FloatArray:
    """Uniform random numbers in the order of `scores`, one in each of as many equal parts of [0, 1).

    Drawn with these, even a small fleet has the quantiles of its table; independent draws would scatter around them.
    """
    count = len(scores)
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(scores, kind="stable")] = np.arange(count)
    return (ranks + random.random(count)) / count
