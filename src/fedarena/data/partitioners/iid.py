"""Every client gets the same number of random samples."""

from __future__ import annotations

import numpy as np

from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, check_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("iid")
def iid(labels: AnyArray, *, clients: Clients = 30, seed: Seed = 0) -> IntArray:
    """Clients have equally many samples (or one more) and do not differ but by chance."""
    check_enough(len(labels), clients, 1)
    return generator(seed, "partition/iid").permutation(np.arange(len(labels)) % clients)
