"""Labels as people write them (numbers, words, true and false) as classes 0, 1, 2, …, whose names are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import IntArray

LabelValue = bool | int | float | str
MOST_LABELS = 100_000
_LARGEST_EXACT = 2**53  # of whole numbers beyond this, a float does not tell neighbours apart


@dataclass(frozen=True)
class ClassLabels:
    """Which class each of some labels is, how many classes there are, and what they are called if not by number."""

    class_of: IntArray
    classes: int
    names: tuple[str, ...] | None


def sorted_classes(values: Sequence[LabelValue], what: str) -> ClassLabels:
    """The classes of labels in a fixed order: numbers by their value, words by the alphabet.

    Text that reads as a number is one, unless some does not. Numbers that are equal are one class, however they are
    written.

    >>> found = sorted_classes(["1.0", 10, -1], "y")
    >>> found.class_of.tolist(), found.names
    ([1, 2, 0], ('-1', '1', '10'))
    """
    if not values:
        raise BadInputError(f"{what} has no labels.")
    numbers = [as_number(value) for value in values]
    if None not in numbers:
        ordered, class_of = np.unique(np.array(numbers, dtype=np.float64), return_inverse=True)
        are_booleans = all(isinstance(value, bool) for value in values)
        names = tuple(("false", "true")[int(n)] if are_booleans else number_name(n) for n in ordered.tolist())
    else:
        if not all(isinstance(value, str) for value in values):
            number = next(value for value in values if not isinstance(value, str))
            word = values[numbers.index(None)]
            raise BadInputError(f"{what} holds both words such as {quoted(word)} and numbers such as {number}.")
        names = tuple(sorted(set(map(str, values))))
        place = {name: number for number, name in enumerate(names)}
        class_of = np.array([place[str(value)] for value in values])
    if len(names) < 2:
        raise BadInputError(f"{what} is {names[0]} in every sample, so there is nothing to learn.")
    return ClassLabels(class_of.astype(np.int64).reshape(-1), len(names), names)


def as_number(value: LabelValue) -> float | None:
    """The number that a label is, also if it is written as text; None for words."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not np.isfinite(number) or abs(number) > _LARGEST_EXACT or (isinstance(value, str) and "_" in value):
        return None
    if abs(number) == _LARGEST_EXACT and Decimal(str(value)) != Decimal(number):
        return None  # its neighbour, rounded
    return number


def number_name(number: float) -> str:
    """A number as the name of a class; whole ones have no point.

    >>> number_name(-1.0), number_name(0.5)
    ('-1', '0.5')
    """
    return str(int(number)) if number == int(number) else repr(number)
