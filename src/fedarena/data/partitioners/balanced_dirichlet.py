"""Clients prefer different labels, and none gets much more than its share: the splitter of FederatedScope.

Xie et al., "FederatedScope: A Flexible Federated Learning Platform for Heterogeneity" (2022), where it is called LDA.
Classes are dealt out one after the other, each in shares from a Dirichlet distribution, but whoever already has as many
samples as an equal division would give gets none of the next class. So sizes differ less than in `dirichlet`.
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
Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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
    for attempt in range(MAX_ATTEMPTS):
        client_of_sample = _draw(labels, clients, alpha, generator(seed, "partition/balanced dirichlet", attempt))
        if np.bincount(client_of_sample, minlength=clients).min() >= min_samples:
            return client_of_sample
    raise BadInputError(
        f"In {MAX_ATTEMPTS} draws with alpha {alpha:g}, some of {clients} clients always had fewer than "
        f"{min_samples} samples; use a larger alpha, fewer clients or a smaller min_samples."
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
