"""Clients differ in size but not in kind: sizes follow a log-normal distribution, samples are random."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, MinSamples, check_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("lognormal")
def lognormal(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    sigma: Annotated[float, Field(ge=0, le=20)] = 1.0,
    min_samples: MinSamples = 2,
    seed: Seed = 0,
) -> IntArray:
    """Everybody gets `min_samples`, and a part of the rest; the larger `sigma`, the more unequal the parts."""
    check_enough(len(labels), clients, min_samples)
    random = generator(seed, "partition/lognormal")
    weights = random.lognormal(mean=0, sigma=sigma, size=clients)
    to_share = len(labels) - clients * min_samples
    bounds = np.round(np.cumsum(weights / weights.sum()) * to_share).astype(np.int64)
    bounds[-1] = to_share
    sizes = min_samples + np.diff(bounds, prepend=0)
    return random.permutation(np.repeat(np.arange(clients), sizes))
