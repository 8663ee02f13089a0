"""Scikit-learn's 1,797 handwritten digits of 8x8 pixels, divided into clients: small, and always at hand."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from fedarena.core.registry import Choice
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, assign_clients, cached_source
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, TaskSpec

LARGEST_PIXEL = 16
DEFAULT_PARTITION: dict[str, Any] = {"name": "dirichlet"}


@FEDERATIONS.register("digits")
@cached_source(version=2)
def digits(
    build: StoreBuild,
    *,
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Images of the digits 0 to 9, with values from 0 to 1; `partition` says which client has which ones."""
    from sklearn.datasets import load_digits  # takes a second to import, and only a build needs it

    data = load_digits()
    images = (data.images[:, None] / LARGEST_PIXEL).astype(np.float32)
    labels = data.target.astype(np.int64)
    client_of_sample = assign_clients(partition, labels)
    num_clients = int(client_of_sample.max()) + 1
    division = Split(split, train_fraction, validation_fraction, split_seed)
    task = TaskSpec(kind="classification", classes=10, label_names=tuple("0123456789"))
    columns = {"x": ColumnSpec(dtype="float32", shape=(1, 8, 8)), "y": ColumnSpec(dtype="int64")}
    with build.writer(task=task, columns=columns) as writer:
        for client, group in enumerate(division.groups(num_clients)):
            rows = np.flatnonzero(client_of_sample == client)
            parts = division.divide(client, group, {"x": images[rows], "y": labels[rows]})
            writer.add_client(f"client-{client:04d}", group=group, **parts)
