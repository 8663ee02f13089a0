"""Small federations from tables, and what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedarena import from_table
from fedarena.data import Federation

WHO = list("aabb")


def made(table: Any, **options: Any) -> Federation:
    given = {"client": "who", "label": "y", "normalize": "none", "order": "in_order", "train_fraction": 1.0}
    return from_table(table, **{**given, **options})


def labels(federation: Federation) -> list[Any]:
    return federation.samples(federation.clients()).columns["y"].tolist()


def inputs(federation: Federation) -> np.ndarray:
    return np.asarray(federation.samples(federation.clients()).columns["x"])
