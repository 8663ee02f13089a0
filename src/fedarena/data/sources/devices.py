"""No samples at all, only their form: for servers of real devices, which keep their samples to themselves."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.registry import FEDERATIONS, StoreBuild, cached_source
from fedarena.data.store.schema import ColumnSpec, TaskSpec


@FEDERATIONS.register("devices")
@cached_source(version=1)
def devices(
    build: StoreBuild,
    *,
    shape: list[int],
    classes: int,
    kind: Literal["classification", "multi_label", "regression", "next_token"] = "classification",
    dtype: Literal["float32", "float64", "uint8", "int16", "int32", "int64"] = "float32",
    padding: int | None = None,
) -> None:
    """What the samples of real devices look like: `shape` and `dtype` of one ``x``, and how many `classes` there are.

    With ``kind=next_token`` a sample is a text of ``shape`` tokens out of so many `classes`. Samples are on devices:
    it is for ``fedarena deploy run``.
    """
    if not shape or any(size < 1 for size in shape) or classes < 1:
        raise BadInputError("federation.shape must have sizes from 1 on, and federation.classes be 1 or more")
    if kind == "next_token":
        columns = {"tokens": ColumnSpec(dtype="int64", shape=(shape[0] + 1,))}
    else:
        target = (classes,) if kind == "multi_label" or (kind == "regression" and classes > 1) else ()
        y = "float32" if kind == "regression" else "int64"
        columns = {"x": ColumnSpec(dtype=dtype, shape=tuple(shape)), "y": ColumnSpec(dtype=y, shape=target)}
    nothing = {name: np.empty((0, *column.shape), column.dtype) for name, column in columns.items()}
    with build.writer(task=TaskSpec(kind=kind, classes=classes, padding=padding), columns=columns) as writer:
        writer.add_client("nobody", train=nothing)  # a store has a client at least
