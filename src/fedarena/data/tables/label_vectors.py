"""Labels that are lists of numbers: a number for each of several places, or the numbers of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.tables.values import Floats, Mask


@dataclass(frozen=True)
class LabelVectors:
    """A number for each of several places in every row; `kind` says what they mean."""

    kind: Literal["one_hot", "multi_hot", "numbers"]
    numbers: Floats  # [rows, places]; those of missing rows are NaN
    missing: Mask


def read_vectors(name: str, lists: pa.Array, task: str) -> LabelVectors | None:
    """Lists of equal length that hold numbers; None for lists of labels, of which a row may have any number.

    Lists of 0 and 1 may be either, and so may lists of whole numbers: what they are is only taken from the task.
    """
    flat = pc.list_flatten(lists)
    if not (pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type) or pa.types.is_boolean(flat.type)):
        return None
    missing = np.array(lists.is_null().to_numpy(zero_copy_only=False), dtype=bool)
    is_boolean = pa.types.is_boolean(flat.type)
    numbers = (flat.cast(pa.int8()) if is_boolean else flat).cast(pa.float64(), safe=False).to_numpy(False)
    if not np.isfinite(numbers).all():
        raise BadInputError(f"Column {quoted(name)} holds a list with an empty label.")
    lengths = set(pc.list_value_length(lists).drop_null().to_pylist())
    are_whole = bool((numbers == np.floor(numbers)).all())
    if len(lengths) != 1 or lengths == {1}:
        _check_labels(name, lists, numbers, are_whole, task)
        return None
    places = int(next(iter(lengths)))
    whole_table = np.full((len(missing), places), np.nan)
    whole_table[~missing] = numbers.reshape(-1, places)
    are_marks = bool(np.isin(numbers, (0, 1)).all())
    if task == "regression" or (task == "auto" and not are_whole):
        return LabelVectors("numbers", whole_table, missing)
    if are_marks and task == "classification":
        if (whole_table[~missing].sum(axis=1) != 1).any():
            raise BadInputError(f"Column {quoted(name)} holds lists of 0 and 1 that have not one 1 each: no classes.")
        return LabelVectors("one_hot", whole_table, missing)
    if are_marks and task == "multi_label":
        return LabelVectors("multi_hot", whole_table, missing)
    if task == "multi_label" and are_whole:
        return None
    if task == "auto" and are_marks:
        raise BadInputError(
            f"Column {quoted(name)} holds lists of {places} numbers that are 0 or 1; say whether each place is a label "
            "(task: multi_label), or the place of a single 1 is the class (task: classification)."
        )
    raise BadInputError(
        f"Column {quoted(name)} holds lists of {places} numbers; say whether they are numbers to predict (task: "
        "regression), or each a label of the sample (task: multi_label)."
    )


def _check_labels(name: str, lists: pa.Array, numbers: Floats, are_whole: bool, task: str) -> None:
    """Raises if lists of unequal lengths cannot be the labels of samples: whole numbers, none of them twice."""
    if not are_whole and task != "classification" and len(numbers) > 0 and not _are_single(lists):
        raise BadInputError(
            f"Column {quoted(name)} holds lists of unequal lengths with fractions, which are no labels; a task with "
            "several numbers has as many in every row."
        )
    owners = pc.list_parent_indices(lists).to_numpy()
    if task == "auto" and len(np.unique(np.stack([owners, numbers]), axis=1).T) < len(numbers):
        raise BadInputError(
            f"Column {quoted(name)} holds lists with the same number twice; say that each is a label of the sample "
            "(task: multi_label), if it is."
        )


def _are_single(lists: pa.Array) -> bool:
    return bool(pc.all(pc.equal(pc.list_value_length(lists), 1)).as_py())
