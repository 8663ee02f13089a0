"""Ways to divide samples without natural clients among clients, one file each; importing this registers them.

A partitioner is a function ``partitioner(labels, *, options...)`` that returns the client of every sample.
Every sample gets exactly one client, and every client at least one sample.
"""

from fedarena.data.partitioners import (
    balanced_dirichlet,
    dirichlet,
    id_groups,
    iid,
    inner_dirichlet,
    lognormal,
    natural,
    pathological,
    rising_sizes,
    shards,
)

__all__ = [
    "balanced_dirichlet",
    "dirichlet",
    "id_groups",
    "iid",
    "inner_dirichlet",
    "lognormal",
    "natural",
    "pathological",
    "rising_sizes",
    "shards",
]
