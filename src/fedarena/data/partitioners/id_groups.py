"""Several natural ids make up one client: patients a hospital, sensors a building.

Flower's GroupedNaturalIdPartitioner. It can also leave out ids that do not fill a group, which would lose samples.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedarena.core.errors import BadInputError
from fedarena.core.streams import generator
from fedarena.data.registry import PARTITIONERS
from fedarena.data.splits import Seed
from fedarena.data.store.schema import AnyArray, IntArray


@PARTITIONERS.register("id_groups")
def id_groups(
    labels: AnyArray,
    *,
    group_size: Annotated[int, Field(ge=1)] = 5,
    remainder: Literal["smaller", "spread", "refuse"] = "smaller",
    order: Literal["shuffled", "sorted"] = "shuffled",
    seed: Seed = 0,
) -> IntArray:
    """A client for every `group_size` ids, which are taken at random or in ascending order.

    Ids that are left over make one smaller client, are spread over the others, or are refused.
    """
    ids, id_of_sample = np.unique(labels, return_inverse=True)
    groups, left_over = divmod(len(ids), group_size)
    if left_over and remainder == "refuse":
        raise BadInputError(
            f"{len(ids)} ids do not make groups of {group_size}: {left_over} are left over; "
            "choose remainder=smaller or spread, or another group_size."
        )
    group_of_place = np.arange(len(ids)) // group_size
    if left_over and remainder == "spread":
        group_of_place = np.arange(len(ids)) * max(groups, 1) // len(ids)
    places = np.arange(len(ids))
    if order == "shuffled":
        places = generator(seed, "partition/id groups").permutation(places)
    client_of_sample: IntArray = group_of_place[places[id_of_sample]].astype(np.int64)
    return client_of_sample
