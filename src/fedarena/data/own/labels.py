"""Labels as they are in files, made into classes with names in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import IntArray

MOST_CLASSES = 1_000_000


def as_texts(values: pa.Array, what: str) -> pa.Array:
    """Ids or labels of any kind as strings: 3, 3.0 and "3" are the same; what is missing stays missing."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_nested(values.type) and all(len(value) == 1 for value in values.to_pylist() if value is not None):
        values = values.flatten()  # [1] is 1
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return values.cast(pa.string())
    if pa.types.is_floating(values.type):
        fraction = pc.filter(values, pc.fill_null(pc.not_equal(values, pc.floor(values)), False))
        if len(fraction):
            raise BadInputError(
                f"{what} holds {fraction[0].as_py()}, but numbers that stand for classes or clients must be whole."
            )
        return pc.if_else(pc.is_nan(values), None, values).cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return values.cast(pa.string())
    raise BadInputError(f"{what} holds {values.type} values, which cannot be classes or clients.")


def class_names(labels: Iterable[str], what: str) -> tuple[str, ...]:
    """The classes in a fixed order: numbers by their value, all else by the alphabet."""
    distinct = set(labels)
    if len(distinct) < 2:
        only = f"only {quoted(min(distinct))}" if distinct else "nothing"
        raise BadInputError(f"{what} holds {only}, but there must be two classes or more to tell apart.")
    if len(distinct) > MOST_CLASSES:
        raise BadInputError(f"{what} holds more than {MOST_CLASSES:,} different labels, which cannot be classes.")
    try:
        return tuple(sorted(distinct, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(distinct))


def class_codes(labels: pa.Array, names: tuple[str, ...]) -> IntArray:
    """The place of every label among the names of classes, all of which are there."""
    codes: IntArray = pc.index_in(labels, value_set=pa.array(names, pa.string())).cast(pa.int64()).to_numpy()
    return codes
