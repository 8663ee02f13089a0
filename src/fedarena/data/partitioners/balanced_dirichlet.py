"""Clients prefer different labels, and none gets much more than its share: the splitter of FederatedScope.

Xie et al., "FederatedScope: A Flexible Federated Learning Platform for Heterogeneity" (2022), where it is called LDA.
Classes are dealt out one after the other, each in shares from a Dirichlet distribution, but whoever already has as many
samples as an equal division would give gets none of the next class. So sizes differ less than in `dirichlet`.
"""

from __future__ import annotations

import numpy as np

from fedarena.data.partitioners.checks import Alpha, Clients, MinSamples, check_enough, draw_until_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("balanced_dirichlet")
def balanced_dirichlet(
    labels: AnyArray,
    *,
    clients: Clients = 5,
    alpha: Alpha = 0.5,
    min_samples: MinSamples = 1,
    seed: Seed = 0,
) -> IntArray:
    """The smaller `alpha`, the fewer clients share a label; drawn again until all have `min_samples`."""
    check_enough(len(labels), clients, min_samples)
    return draw_until_enough(
        lambda random: _draw(labels, clients, alpha, random),
        "partition/balanced dirichlet",
        seed,
        clients,
        min_samples,
        alpha,
    )


def _draw(labels: AnyArray, clients: int, alpha: float, random: np.random.Generator) -> IntArray:
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        shares = random.dirichlet(np.full(clients, alpha))
        has_room = sizes * clients < len(labels)  # always true of somebody: not all samples are dealt out yet
        shares = np.where(has_room, shares, 0.0)
        shares = shares / shares.sum() if shares.sum() > 0 else has_room / has_room.sum()
        bounds = (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        owners = np.searchsorted(bounds, np.arange(len(rows)), side="right")
        # Rounding must not give a last sample to somebody who is to get none.
        owners = np.minimum(owners, np.flatnonzero(has_room)[-1])
        client_of_sample[rows] = owners
        sizes += np.bincount(owners, minlength=clients)
    return client_of_sample
