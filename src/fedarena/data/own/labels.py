"""Labels as they are in files, made into classes with names in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.user_warnings import warn_user
from fedarena.data.class_labels import MOST_LABELS, as_number, sorted_classes
from fedarena.data.store.schema import IntArray
from fedarena.data.tables.values import NA_TEXTS, alike, refuse_booleans_and_numbers

LARGEST_EXACT = 2**53  # of whole numbers beyond this, a float does not tell neighbours apart
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def as_texts(values: pa.Array, what: str) -> pa.Array:
    """Ids or labels of any kind as strings: 3, 3.0 and "3" are the same, and blanks around a text do not count.

    What is missing stays missing, and so is a text that means nothing, as in tables of numbers and categories.
    """
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_list = any(is_such(values.type) for is_such in _LISTS)
    if is_list and all(len(value) == 1 for value in values.to_pylist() if value is not None):
        values = pc.list_element(values, 0)  # [1] is 1
    if any(is_text(values.type) for is_text in _TEXTS):
        trimmed = pc.utf8_trim_whitespace(values.cast(pa.string()))
        return pc.if_else(pc.is_in(trimmed, value_set=pa.array(NA_TEXTS)), pa.scalar(None, pa.string()), trimmed)
    if pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
        is_id = pc.and_(pc.equal(values, pc.floor(values)), pc.less_equal(pc.abs(values), float(LARGEST_EXACT)))
        other = values.filter(pc.and_(pc.invert(pc.is_nan(values)), pc.invert(is_id)))
        if len(other):
            raise BadInputError(
                f"{what} holds {other[0].as_py()}, but numbers that stand for classes or clients must be whole, and no "
                "larger than 2^53."
            )
        return pc.if_else(pc.is_nan(values), None, values).cast(pa.int64()).cast(pa.string())
    if any(is_plain(values.type) for is_plain in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)):
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
        numbers = [as_number(label) for label in distinct]
        broken = [label for label, number in zip(distinct, numbers, strict=True) if number is not None and number % 1]
        if broken and None not in numbers:
            raise BadInputError(
                f"{what} holds {broken[0]}, but numbers that stand for classes must be whole; if they are classes all "
                "the same, write them as words."
            )
        refuse_booleans_and_numbers(what, distinct)
        found = sorted_classes(distinct, what)
        if (told := alike(distinct)) is not None:
            warn_user(f"Of the labels, {told}")
        if found.classes > MOST_LABELS:
            raise BadInputError(f"{what} holds more than {MOST_LABELS:,} different labels, which cannot be classes.")
        assert found.names is not None
        return cls(found.names, dict(zip(distinct, found.class_of.tolist(), strict=True)))

    @classmethod
    def named(cls, names: tuple[str, ...]) -> LabelClasses:
        """Classes that are known by their names, in the order of these; labels are their numbers."""
        return cls(names, {str(number): number for number in range(len(names))})

    def codes(self, labels: pa.Array) -> IntArray:
        """The class of every label, all of which are known."""
        found = pc.index_in(labels, value_set=pa.array(self.class_of, pa.string()))
        if found.null_count:
            unknown = labels[pc.index(found.is_null(), True).as_py()]
            raise BadInputError(f"A label is {unknown}, but there are only {len(self.names)} classes.")
        places = found.to_numpy()
        codes: IntArray = np.array(list(self.class_of.values()), dtype=np.int64)[places]
        return codes
