"""What is to be learned from a table: its label columns as the column ``y`` of a federation, and the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.core.rounding import changed_by_rounding
from fedarena.data.class_labels import MOST_LABELS, LabelValue, sorted_classes
from fedarena.data.store.schema import AnyArray, ColumnSpec, IntArray, TaskSpec
from fedarena.data.tables.label_vectors import LabelVectors, read_vectors
from fedarena.data.tables.raw_table import RawTable
from fedarena.data.tables.values import (
    Marks,
    Mask,
    MissingMarks,
    Numbers,
    Values,
    Where,
    Words,
    read_names,
    read_values,
    refuse_booleans_and_numbers,
)

TableTask = Literal["auto", "classification", "multi_label", "regression"]
MOST_GUESSED_CLASSES = 20  # of whole numbers; whether more of them are classes is for somebody else to say

_MOST_LISTED = 5  # classes in a sentence


@dataclass(frozen=True)
class Labels:
    """The labels of all rows; those of rows without one are meaningless."""

    kind: Literal["classification", "multi_label", "regression"]
    y: AnyArray
    missing: Mask
    column: str  # to be named where one is missing
    names: tuple[str, ...] | None = None
    are_columns: bool = False  # the names are those of columns or places, not of what samples have

    def only_of(self, rows: IntArray) -> Labels:
        """Without those classes that only other rows have, which are left out."""
        if self.kind == "regression" or self.names is None or self.are_columns:
            return self
        is_class = self.kind == "classification"
        seen = np.flatnonzero(self._counts(rows))
        if len(seen) == len(self.names):
            return self
        if len(seen) < 1 + is_class:
            said = f"is {self.names[seen[0]]} in every" if is_class else "is nothing in any"
            raise BadInputError(
                f"The label {quoted(self.column)} {said} sample that is left, so there is nothing to learn."
            )
        place = np.zeros(len(self.names), dtype=np.int64)
        place[seen] = np.arange(len(seen))
        return replace(
            self, y=place[self.y] if is_class else self.y[:, seen], names=tuple(self.names[code] for code in seen)
        )

    def notes(self, training_rows: IntArray) -> tuple[str, ...]:
        """A sentence about classes that nobody learns."""
        if self.kind == "regression" or self.names is None:
            return ()
        counts = self._counts(training_rows).tolist()
        unseen = [name for name, count in zip(self.names, counts, strict=True) if count == 0]
        if not unseen:
            return ()
        listed = ", ".join(unseen[:_MOST_LISTED]) + (", …" if len(unseen) > _MOST_LISTED else "")
        return (f"No training sample has the label {listed}.",)

    def _counts(self, rows: IntArray) -> IntArray:
        """How many of some rows have each class."""
        if self.kind == "multi_label":
            return np.asarray(self.y[rows].sum(axis=0, dtype=np.int64))
        return np.bincount(self.y[rows], minlength=len(self.names or ()))

    def task(self, training_rows: IntArray, inputs: dict[str, int | None] | None) -> TaskSpec:
        """The task; numbers are said to lie where those of training samples lie."""
        if self.kind != "regression":
            assert self.names is not None
            return TaskSpec(kind=self.kind, classes=len(self.names), label_names=self.names, inputs=inputs)
        known = self.y[training_rows]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        numbers = 1 if self.y.ndim == 1 else self.y.shape[1]
        return TaskSpec(
            kind="regression",
            classes=numbers,
            label_names=self.names,
            value_range=(low, high) if low < high else None,
            inputs=inputs,
        )

    @property
    def spec(self) -> ColumnSpec:
        """The column that holds them."""
        return ColumnSpec(dtype=self.y.dtype.name, shape=self.y.shape[1:])


def read_labels(
    table: RawTable, names: Sequence[str], task: TableTask, separator: str | None, marks: MissingMarks, where: Where
) -> Labels:
    """The labels in one column, or in several."""
    if len(names) > 1:
        if separator is not None:
            raise BadInputError("label_separator is for one column of labels, not for several.")
        return _several(table, names, task, marks, where)
    (name,) = names
    of_column = marks.of(name)
    array = table.column(name, "label")
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        array = array.combine_chunks()
        if (vectors := read_vectors(name, array, task)) is not None:
            return _of_vectors(name, vectors)
        lengths = pc.fill_null(pc.list_value_length(array), 1)
        if task == "multi_label" or not pc.all(pc.equal(lengths, 1)).as_py():
            _check_several(task, f"Column {quoted(name)} holds lists of labels")
            values = read_values(name, pa.chunked_array([pc.list_flatten(array)]), of_column, where, None)
            missing = np.array(array.is_null().to_numpy(zero_copy_only=False), dtype=bool)
            return _multi_hot(name, values, pc.list_parent_indices(array).to_numpy(), missing)
        first = pc.list_element(pc.if_else(array.is_null(), pa.scalar([None], array.type), array), 0)
        array = pa.chunked_array([first])
    if separator is not None:
        _check_several(task, f"label_separator says that column {quoted(name)} holds several labels")
        return _separated(name, array, separator, of_column)
    if task == "multi_label":
        raise BadInputError(
            f"Column {quoted(name)} holds one label in every row; say what separates several with label_separator, or "
            "name a column of 0 and 1 for each label."
        )
    words_by = None if task == "classification" else "say that they are classes (task: classification)"
    return _single(name, read_values(name, array, of_column, where, words_by), task)


def _of_vectors(name: str, vectors: LabelVectors) -> Labels:
    """Labels that were written as a number for each of several places."""
    missing = vectors.missing
    names = tuple(f"{name}[{place}]" for place in range(vectors.numbers.shape[1]))
    if vectors.kind == "numbers":
        return Labels("regression", _rounded(name, vectors.numbers), missing, name, names)
    hot = np.nan_to_num(vectors.numbers)
    if vectors.kind == "multi_hot":
        return Labels("multi_label", hot.astype(np.uint8), missing, name, names, True)
    classes = np.where(missing, np.nan, hot.argmax(axis=1))
    return _single(name, Numbers(classes), "classification")


def _rounded(name: str, numbers: AnyArray) -> AnyArray:
    """Labels as models compare with them; refused where that would make different ones the same."""
    if changed := changed_by_rounding(numbers):
        raise BadInputError(
            f"The label {quoted(name)} holds numbers that differ by less than the seven digits that labels keep: "
            f"{changed[0]!r} would become {changed[1]!r}; subtract what they have in common before."
        )
    with np.errstate(over="ignore"):
        rounded = numbers.astype(np.float32)
    if np.isinf(rounded).any():
        raise BadInputError(
            f"The label {quoted(name)} holds {numbers[np.isinf(rounded)][0]:g}, which is too large for 32 bits."
        )
    return rounded


def _check_several(task: TableTask, why: str) -> None:
    if task not in ("auto", "multi_label"):
        raise BadInputError(f"{why}, which makes it a task of the kind multi_label, not {task}.")


def _single(name: str, values: Values, task: TableTask) -> Labels:
    missing = values.missing
    if isinstance(values, Words):
        if task == "regression":
            raise BadInputError(f"Column {quoted(name)} holds words such as {quoted(values.words[0])}, no numbers.")
        refuse_booleans_and_numbers(f"Column {quoted(name)}", values.words)
        return _classes(name, list(values.words), values.codes, missing)
    numbers = values.values
    distinct, codes = np.unique(numbers[~missing], return_inverse=True)
    if task == "auto":
        task = "classification" if values.are_booleans else _told_from(name, distinct, values.exact)
    if task == "regression":
        return Labels("regression", _rounded(name, numbers), missing, name)
    if values.exact is not None:
        return _classes(name, list(values.exact.words), values.exact.codes, missing)
    places = np.full(len(numbers), -1, dtype=np.int64)
    places[~missing] = codes.reshape(-1)
    classes: list[LabelValue] = distinct.astype(bool).tolist() if values.are_booleans else distinct.tolist()
    return _classes(name, classes, places, missing)


def _told_from(name: str, distinct: AnyArray, exact: Words | None) -> TableTask:
    """Numbers with a fraction are to be predicted, a few whole ones are classes; about many whole ones one must ask."""
    finite = distinct[np.isfinite(distinct)]
    if (finite != np.floor(finite)).any():
        return "regression"
    num_different = len(distinct) if exact is None else len(exact.words)
    if num_different > MOST_GUESSED_CLASSES:
        raise BadInputError(
            f"The label {quoted(name)} has {num_different:,} different whole numbers; say whether they are numbers to "
            "predict (task: regression) or classes (task: classification)."
        )
    return "classification"


def _classes(name: str, distinct: list[LabelValue], codes: IntArray, missing: Mask) -> Labels:
    if len(distinct) > MOST_LABELS:
        raise BadInputError(
            f"The label {quoted(name)} has {len(distinct):,} different values, more than {MOST_LABELS:,}."
        )
    found = sorted_classes(distinct, f"The label {quoted(name)}")
    return Labels("classification", np.append(found.class_of, 0)[codes], missing, name, found.names)


def _several(table: RawTable, names: Sequence[str], task: TableTask, marks: MissingMarks, where: Where) -> Labels:
    columns = {name: read_values(name, table.column(name, "label"), marks.of(name), where, None) for name in names}
    for name, values in columns.items():
        if isinstance(values, Words):
            raise BadInputError(
                f"Column {quoted(name)} holds words, but several label columns hold numbers, or 0 and 1."
            )
    numbers = np.stack([values.values for values in columns.values() if isinstance(values, Numbers)], axis=1)
    missing = np.asarray(np.isnan(numbers).any(axis=1))
    first_missing = names[int(np.argmax(np.isnan(numbers).any(axis=0)))]
    are_marks = bool(np.isin(numbers[~missing], (0, 1)).all())
    if task == "classification":
        raise BadInputError(
            f"{len(names)} label columns make a task of the kind multi_label or regression, not {task}."
        )
    if task == "regression" or (task == "auto" and not are_marks):
        return Labels("regression", _rounded(names[0], numbers), missing, first_missing, tuple(names), True)
    if not are_marks:
        raise BadInputError("A multi_label task of several columns has a 0 or a 1 in each.")
    return Labels("multi_label", np.nan_to_num(numbers).astype(np.uint8), missing, first_missing, tuple(names), True)


def _separated(name: str, array: pa.ChunkedArray, separator: str, marks: Marks) -> Labels:
    """Several labels in one text, or none if it is empty."""
    texts = read_names(name, array, "label")
    is_missing = np.array([marks.has(text) for text in texts.words] + [False], dtype=bool)
    split = [[part.strip() for part in text.split(separator) if part.strip()] for text in texts.words]
    distinct = list(
        dict.fromkeys(part for number, parts in enumerate(split) if not is_missing[number] for part in parts)
    )
    if not distinct:
        raise BadInputError(f"Column {quoted(name)} holds no labels.")
    place_of = {part: place for place, part in enumerate(distinct)}
    hot = np.zeros((len(split) + 1, len(distinct)), dtype=np.uint8)
    for number, parts in enumerate(split):
        if not is_missing[number]:
            hot[number, [place_of[part] for part in parts]] = 1
    return _named_hot(name, list(distinct), hot[texts.codes], is_missing[texts.codes])


def _multi_hot(name: str, values: Values, rows: IntArray, missing: Mask) -> Labels:
    words = values.as_words() if isinstance(values, Numbers) else values
    if words.missing.any():
        raise BadInputError(f"Column {quoted(name)} holds a list with an empty label.")
    if not words.words:
        raise BadInputError(f"Column {quoted(name)} holds no labels.")
    hot = np.zeros((len(missing), len(words.words)), dtype=np.uint8)
    hot[rows, words.codes] = 1
    return _named_hot(name, list(words.words), hot, missing)


def _named_hot(name: str, distinct: list[LabelValue], hot: AnyArray, missing: Mask) -> Labels:
    if len(distinct) == 1:
        return Labels("multi_label", hot, missing, name, (str(distinct[0]),))
    found = sorted_classes(distinct, f"The label {quoted(name)}")
    order = np.argsort(found.class_of, kind="stable")
    if found.names is None or len(found.names) != len(distinct):
        raise BadInputError(f"The label {quoted(name)} has two ways to write the same number.")
    return Labels("multi_label", hot[:, order], missing, name, found.names)
