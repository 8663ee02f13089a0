"""What samples of LEAF's files are (pictures, lines of characters, tweets, features), told from the first one.

Samples are taken down as they come, in numbers that need no vocabulary; once all have been seen, a kind knows its task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.data.leaf.description import Description
from fedarena.data.leaf.samples import LARGEST_BYTE, SampleForm, shown
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec

KindName = Literal["auto", "images", "features", "characters", "tweets"]
Columns = dict[str, AnyArray]

SIDE = 28  # of FEMNIST's pictures, the only ones that LEAF has in JSON
MOST_LABELS = 100_000
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
    """Pictures and features: lists of numbers, and labels 0, 1, 2, …"""

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
        """Numbers as they are; labels are checked."""
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
        task = TaskSpec(kind="classification", classes=self._labels.classes())
        if not self._are_bytes:
            return Finished(task, self.columns, lambda columns: columns)

        def to_bytes(columns: Columns) -> Columns:
            return {"x": np.rint(columns["x"] * LARGEST_BYTE).astype(np.uint8), "y": columns["y"]}

        return Finished(task, {**self.columns, "x": ColumnSpec(dtype="uint8", shape=self._shape)}, to_bytes)


class Labels:
    """Labels of samples, as numbers."""

    def __init__(self, classes: int | None):
        self._classes = classes
        self._seen = np.zeros(MOST_LABELS, dtype=bool)

    @property
    def seen(self) -> IntArray:
        """Those that occurred."""
        return np.flatnonzero(self._seen)

    def classes(self) -> int:
        """How many there are to choose from: as said, or as many as are needed for those that occurred."""
        return self._classes or max(2, int(self.seen.max(initial=0)) + 1)

    def read(self, values: list[Any]) -> IntArray:
        """Whole numbers, also those written as 1.0 or "1"."""
        try:
            numbers = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.empty(0)
        if numbers.shape != (len(values),):
            raise BadInputError("y must be one number for every sample")
        limit = min(self._classes or MOST_LABELS, MOST_LABELS)
        wrong = np.flatnonzero(~((numbers >= 0) & (numbers < limit) & (numbers == np.floor(numbers))))
        if len(wrong):
            raise BadInputError(f"y holds {values[wrong[0]]!r}, which is no label from 0 to {limit - 1:,}")
        labels: IntArray = numbers.astype(np.int64)
        self._seen[labels] = True
        return labels


def _deepest(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
