"""Clients have few labels: samples are sorted by label, cut into shards, and every client gets some shards.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017), section 3.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedarena.core.streams import generator
from fedarena.data.partitioners.checks import Clients, check_enough
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("shards")
def shards(
    labels: AnyArray,
    *,
    clients: Clients = 30,
    shards_per_client: Annotated[int, Field(ge=1)] = 2,
    seed: Seed = 0,
) -> IntArray:
    """Shards are equally long (or one sample longer); clients get theirs at random."""
    check_enough(len(labels), clients, shards_per_client)
    random = generator(seed, "partition/shards")
    num_shards = clients * shards_per_client
    client_of_shard = random.permutation(np.arange(num_shards) % clients)
    # Samples of one label are shuffled first, so that shards do not depend on the order of the dataset.
    shuffled = random.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    client_of_sample = np.empty(len(labels), dtype=np.int64)
    client_of_sample[by_label] = client_of_shard[np.arange(len(labels)) * num_shards // len(labels)]
    return client_of_sample
