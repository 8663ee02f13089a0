"""Scikit-learn's 442 diabetes patients, divided into clients: how far the disease comes in a year is to be predicted.

Efron et al., "Least Angle Regression" (2004).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np

from fedarena.core.registry import Choice
from fedarena.data.registry import FEDERATIONS, PARTITIONERS, StoreBuild, assign_clients, cached_source
from fedarena.data.splits import Seed, Split, SplitKind, TrainFraction, ValidationFraction
from fedarena.data.store.schema import ColumnSpec, TaskSpec

LOWEST, HIGHEST = 25.0, 346.0  # of the progression
GROUPS = 10
DEFAULT_PARTITION: dict[str, Any] = {"name": "dirichlet", "clients": 20}


@FEDERATIONS.register("diabetes")
@cached_source(version=1)
def diabetes(
    build: StoreBuild,
    *,
    partition: Annotated[dict[str, Any], Choice(PARTITIONERS)] = DEFAULT_PARTITION,
    by: Literal["progression", "age"] = "progression",
    split: SplitKind = "within_client",
    train_fraction: TrainFraction = 0.8,
    validation_fraction: ValidationFraction = 0.0,
    split_seed: Seed = 0,
) -> None:
    """Age, sex, body mass index, blood pressure and six blood values of patients, and the progression of their disease.

    To the partitioner, patients are of ten groups of equal size, `by` progression or by age. The values of a patient
    are scaled such that the mean of the sum of their squares is 1.
    """
    from sklearn.datasets import load_diabetes  # takes a second to import, and only a build needs it

    data = load_diabetes()
    samples, features = data.data.shape
    # In the source, the squares of a column add up to 1.
    x = (data.data * np.sqrt(samples / features)).astype(np.float32)
    y = data.target.astype(np.float32)
    ordered_by = y if by == "progression" else data.data[:, data.feature_names.index("age")]
    rank = np.empty(samples, dtype=np.int64)
    rank[np.argsort(ordered_by, kind="stable")] = np.arange(samples)
    client_of_sample = assign_clients(partition, rank * GROUPS // samples)
    num_clients = int(client_of_sample.max()) + 1
    division = Split(split, train_fraction, validation_fraction, split_seed)
    task = TaskSpec(kind="regression", classes=1, value_range=(LOWEST, HIGHEST))
    columns = {"x": ColumnSpec(dtype="float32", shape=(features,)), "y": ColumnSpec(dtype="float32")}
    with build.writer(task=task, columns=columns) as writer:
        for client, group in enumerate(division.groups(num_clients)):
            rows = np.flatnonzero(client_of_sample == client)
            parts = division.divide(client, group, {"x": x[rows], "y": y[rows]})
            writer.add_client(f"client-{client:04d}", group=group, **parts)
