"""Clients prefer different labels: their shares of every label are drawn from a Dirichlet distribution.

Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks" (2019), section 4.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, MinSamples, check_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray

MAX_ATTEMPTS = 1000


@PARTITIONERS.register("dirichlet")
def dirichlet(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.5,
    min_samples: MinSamples = 5,
    seed: Seed = 0,
) -> IntArray:
    """The smaller `alpha`, the fewer clients share a label; drawn again until all have `min_samples`."""
    check_enough(len(labels), clients, min_samples)
    for attempt in range(MAX_ATTEMPTS):
        client_of_sample = _draw(labels, clients, alpha, generator(seed, "partition/dirichlet", attempt))
        if np.bincount(client_of_sample, minlength=clients).min() >= min_samples:
            return client_of_sample
    raise BadInputError(
        f"In {MAX_ATTEMPTS} draws with alpha {alpha:g}, some of {clients} clients always had fewer than "
        f"{min_samples} samples; use a larger alpha, fewer clients or a smaller min_samples."
    )


def _draw(labels: AnyArray, clients: int, alpha: float, random: np.random.Generator) -> IntArray:
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(clients, alpha))
        bounds = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        client_of_sample[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
    return client_of_sample
