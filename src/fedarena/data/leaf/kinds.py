"""What samples of LEAF's files are (pictures, lines of characters, tweets, features), told from the first one.

Samples are taken down as they come, in numbers that need no vocabulary; once all have been seen, a kind knows its task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.class_labels import MOST_LABELS, ClassLabels, LabelValue, as_number, sorted_classes
from fedarena.data.leaf.description import Description
from fedarena.data.leaf.samples import LARGEST_BYTE, SampleForm, shown
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec

KindName = Literal["auto", "images", "features", "characters", "tweets"]
Columns = dict[str, AnyArray]

SIDE = 28  # of FEMNIST's pictures, the only ones that LEAF has in JSON
_PICTURE_FILES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Finished:
    """A task, its columns, and how samples that were taken down become samples of it."""

    task: TaskSpec
    columns: dict[str, ColumnSpec]
    convert: Callable[[Columns], Columns]


class Kind(Protocol):
    """Samples of one kind."""

    columns: dict[str, ColumnSpec]  # in which they are taken down
    gap: int  # samples that overlap with one: to be left out between those for training and for testing

    def take_down(self, lists: dict[str, Any]) -> Columns:
        """The samples of a user, at least one; raises a sentence that says what is wrong with them."""

    def finish(self, training: Callable[[str], IntArray]) -> Finished:
        """Called after all samples; `training` counts the values that a column has in those for training."""


def told_from(x: Any, y: Any) -> KindName:
    """The kind of a sample; raises for those that other federations read."""
    first = x[0] if isinstance(x, list) and x else x
    if isinstance(x, str) and x.lower().endswith(_PICTURE_FILES):
        raise BadInputError(
            "x is the name of a picture, as in LEAF's CelebA: the pictures are needed, and the federation celeba reads "
            "them"
        )
    if isinstance(y, dict) or (isinstance(first, list) and not _is_number(_deepest(first))):
        raise BadInputError("x is a list of sequences of words, as in LEAF's Reddit, which the federation reddit reads")
    if isinstance(x, str) and isinstance(y, str) and len(y) == 1:
        return "characters"
    if isinstance(first, str):
        return "tweets"
    if _is_number(_deepest(x)):
        return "images" if isinstance(x, list) and len(x) == SIDE * SIDE else "features"
    raise BadInputError(f"x is {shown(x)}, which is no sample of LEAF's")


class Described:
    """Samples that FedArena wrote, with a description of everything."""

    def __init__(self, description: Description):
        self.columns = description.columns
        self.gap = description.gap
        self._task = description.task
        self._form = SampleForm(description)

    def take_down(self, lists: dict[str, Any]) -> Columns:
        """As they were."""
        return self._form.to_columns(lists)

    def finish(self, training: Callable[[str], IntArray]) -> Finished:
        """Nothing is left to be found out."""
        return Finished(self._task, self.columns, lambda columns: columns)


class Numbers:
    """Pictures and features: lists of numbers, and labels."""

    gap = 0

    def __init__(self, first: Any, shape: tuple[int, ...] | None, classes: int | None, are_pictures: bool):
        try:
            found = np.shape(first) or (1,)
        except ValueError:
            raise BadInputError("x must be a list of numbers, or of lists of equal length") from None
        if shape is not None and np.prod(shape) != np.prod(found):
            raise BadInputError(f"x has {np.prod(found):,} numbers, which do not fill the shape {list(shape)}")
        if shape is None and are_pictures:
            shape = (1, SIDE, SIDE) if found == (SIDE * SIDE,) else (1, *found)
            if len(shape) != 3:
                raise BadInputError(f"x has {np.prod(found):,} numbers; say what shape pictures have with shape")
        self._shape = shape or found
        self._labels = Labels(classes)
        self._are_bytes = are_pictures  # as long as no other value was seen
        self.columns = {"x": ColumnSpec(dtype="float32", shape=self._shape), "y": ColumnSpec(dtype="int64")}

    def take_down(self, lists: dict[str, Any]) -> Columns:
        """Numbers as they are; labels are numbered."""
        samples, width = len(lists["x"]), int(np.prod(self._shape))
        try:
            x = np.array(lists["x"], dtype=np.float64).reshape(samples, -1)
        except (TypeError, ValueError):
            raise BadInputError(f"x must be lists of {width:,} numbers") from None
        if x.shape[1] != width:
            raise BadInputError(f"x has {x.shape[1]:,} numbers in a sample, where the first sample had {width:,}")
        if self._are_bytes:
            whole = np.rint(x * LARGEST_BYTE)
            exact = (np.abs(x * LARGEST_BYTE - whole) < 1e-3) & (whole >= 0) & (whole <= LARGEST_BYTE)
            self._are_bytes = bool(exact.all())
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise BadInputError("x holds null, or a number that is too large for 32 bits")
        return {"x": x.reshape(samples, *self._shape), "y": self._labels.read(lists["y"])}

    def finish(self, training: Callable[[str], IntArray]) -> Finished:
        """Pictures that were bytes once become bytes again, a quarter of the size."""
        labels, are_bytes = self._labels.finish(), self._are_bytes
        task = TaskSpec(kind="classification", classes=labels.classes, label_names=labels.names)

        def convert(columns: Columns) -> Columns:
            x = np.rint(columns["x"] * LARGEST_BYTE).astype(np.uint8) if are_bytes else columns["x"]
            return {"x": x, "y": labels.class_of[columns["y"]]}

        x = ColumnSpec(dtype="uint8" if are_bytes else "float32", shape=self._shape)
        return Finished(task, {**self.columns, "x": x}, convert)


class Labels:
    """Labels of samples, which are numbered as they come until all have been seen."""

    def __init__(self, classes: int | None):
        self._classes = classes
        self._code_of: dict[LabelValue, int] = {}
        self._are_booleans = True

    def read(self, values: list[Any]) -> IntArray:
        """The numbers of labels: whole numbers, words, true and false, also those that are in a list by themselves."""
        while all(isinstance(value, list) and len(value) == 1 for value in values):
            values = [value[0] for value in values]
        kinds = {type(value) for value in values}
        if not kinds <= {bool, int, float, str}:
            wrong = next(value for value in values if type(value) not in (bool, int, float, str))
            raise BadInputError(f"y must be one label for every sample, a number or a word, not {shown(wrong)}")
        if self._are_booleans and kinds != {bool}:
            self._are_booleans = False
        if str in kinds:  # which are kept as they are, as long as nobody knows whether all are numbers
            distinct, place = list(dict.fromkeys(values)), None
        else:
            numbers, place = np.unique(np.array(values, dtype=np.float64), return_inverse=True)
            distinct = numbers.tolist()
        for value in distinct:
            self._check(value)
        code_of = self._code_of
        codes = [code_of.setdefault(value, len(code_of)) for value in distinct]
        if len(code_of) > MOST_LABELS:
            raise BadInputError(f"y holds more than {MOST_LABELS:,} different labels")
        if place is None:
            return np.array([code_of[value] for value in values], dtype=np.int64)
        return np.array(codes, dtype=np.int64)[place.reshape(-1)]

    def _check(self, value: LabelValue) -> None:
        number = as_number(value)
        if number is None and isinstance(value, str):
            return
        if number is None or number != np.floor(number):
            raise BadInputError(f"y holds {value!r}, which is no label: labels are whole numbers up to 2⁵³, or words")
        if self._classes is not None and number >= self._classes:
            raise BadInputError(f"y holds {int(number)}, which is no label from 0 to {self._classes - 1:,}")

    def finish(self) -> ClassLabels:
        """The class of every number that `read` gave.

        Whole numbers from 0 are classes themselves, also those in between that do not occur. Others, and words, are
        classes in order.
        """
        numbers = [as_number(value) for value in self._code_of]
        if not self._are_booleans and all(number is not None and 0 <= number < MOST_LABELS for number in numbers):
            class_of = np.array(numbers, dtype=np.float64).astype(np.int64)
            return ClassLabels(class_of, self._classes or max(2, int(class_of.max(initial=0)) + 1), None)
        values = [bool(value) for value in self._code_of] if self._are_booleans else list(self._code_of)
        found = sorted_classes(values, "y")
        if self._classes not in (None, found.classes):
            names = ", ".join((found.names or ())[:5])
            raise BadInputError(
                f"federation.classes is {self._classes}, but y holds {found.classes} labels that are no numbers from 0 "
                f"({names}{', …' if found.classes > 5 else ''}); leave classes out"
            )
        return found


def _deepest(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
