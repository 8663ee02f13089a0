"""Clients prefer different labels: their shares of every label are drawn from a Dirichlet distribution.

Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks" (2019), section 4.
"""

from __future__ import annotations

import numpy as np

from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples, check_enough, draw_until_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("dirichlet")
def dirichlet(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 5,
    seed: Seed = 0,
) -> IntArray:
    """The smaller `alpha`, the fewer clients share a label; drawn again until all have `min_samples`."""
    check_enough(len(labels), clients, min_samples)
    return draw_until_enough(
        lambda random: _draw(labels, clients, alpha, random), "partition/dirichlet", seed, clients, min_samples, alpha
    )


def _draw(labels: AnyArray, clients: int, alpha: float, random: np.random.Generator) -> IntArray:
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(clients, alpha))
        bounds = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        client_of_sample[rows] = np.searchsorted(bounds, np.arange(len(rows)), side="right")
    return client_of_sample
