"""Clients differ in size but not in kind: the first has least, the last most, by a law without chance.

These are Flower's LinearPartitioner, SquarePartitioner and ExponentialPartitioner. There the first clients may be left
without samples; here everybody has `min_samples`. Who has which samples is drawn.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, MinSamples, check_enough
from fedarena.data.partitioners.sizes import proportional_sizes
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("linear")
def linear(labels: AnyArray, *, clients: Clients = 30, min_samples: MinSamples = 1, seed: Seed = 0) -> IntArray:
    """The k-th client has k times as many samples as the first."""
    return _deal(labels, np.arange(1.0, clients + 1), min_samples, seed)


@PARTITIONERS.register("square")
def square(labels: AnyArray, *, clients: Clients = 30, min_samples: MinSamples = 1, seed: Seed = 0) -> IntArray:
    """The k-th client has k² times as many samples as the first."""
    return _deal(labels, np.arange(1.0, clients + 1) ** 2, min_samples, seed)


@PARTITIONERS.register("exponential")
def exponential(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    rate: Annotated[float, Field(ge=0, le=100)] = 1.0,
    min_samples: MinSamples = 1,
    seed: Seed = 0,
) -> IntArray:
    """Every client has e to the `rate` times as many samples as the one before."""
    return _deal(labels, np.exp(rate * np.arange(1.0 - clients, 1)), min_samples, seed)


def _deal(labels: AnyArray, weights: npt.NDArray[np.float64], min_samples: int, seed: int) -> IntArray:
    check_enough(len(labels), len(weights), min_samples)
    sizes = proportional_sizes(len(labels), weights, min_samples)
    return generator(seed, "partition/rising sizes").permutation(np.repeat(np.arange(len(weights)), sizes))
