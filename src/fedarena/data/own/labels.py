"""Labels as they are in files, made into classes with names in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.data.class_labels import MOST_LABELS, sorted_classes
from fedarena.data.store.schema import IntArray


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


@dataclass(frozen=True)
class LabelClasses:
    """Classes in a fixed order, what they are called, and which one each label is."""

    names: tuple[str, ...]
    class_of: Mapping[str, int]

    @classmethod
    def of(cls, labels: Iterable[str], what: str) -> LabelClasses:
        """The classes of labels: numbers by their value, equal ones being one class, and all else by the alphabet."""
        distinct = sorted(set(labels))
        found = sorted_classes(distinct, what)
        if found.classes > MOST_LABELS:
            raise BadInputError(f"{what} holds more than {MOST_LABELS:,} different labels, which cannot be classes.")
        assert found.names is not None
        return cls(found.names, dict(zip(distinct, found.class_of.tolist(), strict=True)))

    @classmethod
    def named(cls, names: tuple[str, ...]) -> LabelClasses:
        """Classes that are known by their names, in the order of these."""
        return cls(names, {name: number for number, name in enumerate(names)})

    def codes(self, labels: pa.Array) -> IntArray:
        """The class of every label, all of which are known."""
        places = pc.index_in(labels, value_set=pa.array(self.class_of, pa.string())).to_numpy()
        codes: IntArray = np.array(list(self.class_of.values()), dtype=np.int64)[places]
        return codes
