"""Whose every sample is: natural clients, or those that a partitioner makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.user_warnings import warn_user
from fedarena.data.registry import assign_clients
from fedarena.data.store.schema import AnyArray, IntArray
from fedarena.data.tables.values import alike

Partition = str | Mapping[str, Any]


def clients_of(
    natural: Sequence[str] | None, labels: AnyArray, partition: Partition | None
) -> tuple[tuple[str, ...], IntArray]:
    """The ids of all clients, and the client of every sample.

    Natural clients are numbered as they first occur. A partitioner gets their ids as keys if there are any, which is
    what `id_groups` and `natural` are for, and the labels otherwise.
    """
    if partition is None:
        if natural is None:
            raise BadInputError("Say whose every sample is with client=…, or how to make clients with partition=….")
        coded = pa.array(natural, pa.string()).dictionary_encode()
        ids = tuple(coded.dictionary.to_pylist())
        if (told := alike(ids)) is not None:
            warn_user(f"Of the clients, {told}")
        return ids, coded.indices.to_numpy().astype(np.int64)
    options = {"name": partition} if isinstance(partition, str) else partition
    if not isinstance(options, Mapping):
        raise BadInputError(f"partition must be a partitioner's name or a mapping with it, not {quoted(partition)}.")
    clients = assign_clients(options, labels if natural is None else np.array(natural))
    digits = max(len(str(int(clients.max()))), 4)
    return tuple(f"client-{number:0{digits}d}" for number in range(int(clients.max()) + 1)), clients
