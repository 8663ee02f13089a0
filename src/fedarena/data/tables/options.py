"""The options of a federation from a table, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.options import by_path
from fedarena.core.outside_text import quoted
from fedarena.core.registry import nearest
from fedarena.data.splits import SampleOrder, Split, SplitKind
from fedarena.data.tables.features import Categories, Missing, Normalize
from fedarena.data.tables.labels import TableTask
from fedarena.data.tables.values import ALL_COLUMNS

_COLUMN = ("client", "part", "group")
_COLUMNS = ("label", "features", "drop", "categorical", "attributes")
_CHOICES = {"task": TableTask, "categories": Categories, "normalize": Normalize, "order": SampleOrder}


@dataclass(frozen=True)
class TableOptions:
    """What `from_table` was asked for."""

    label: tuple[str, ...]
    client: str | None
    partition: dict[str, Any] | None
    features: tuple[str, ...] | None
    drop: tuple[str, ...]
    categorical: tuple[str, ...]
    categories: Categories
    task: TableTask
    label_separator: str | None
    missing: dict[str, Missing]  # by column
    indicators: bool
    na_values: dict[str, list[Any]]  # by column
    normalize: Normalize
    split: Split | None  # unless columns say how the table is divided
    order: SampleOrder
    part: str | None
    group: str | None
    attributes: tuple[str, ...]

    @classmethod
    def checked(
        cls,
        *,
        partition: Any,
        missing: Any,
        na_values: Any,
        split: SplitKind | None,
        train_fraction: float | None,
        validation_fraction: float | None,
        split_seed: int | None,
        **others: Any,
    ) -> TableOptions:
        """Options as somebody gave them, after a check that they can be meant."""
        for name in _COLUMN:
            if not isinstance(others[name], str | None):
                raise BadInputError(f"{name} must be the name of a column, not {quoted(others[name])}.")
        for name in _COLUMNS:
            others[name] = None if others[name] is None else column_names(others[name], name)
        if not others["label"]:
            raise BadInputError("label must name the column that is to be predicted.")
        for name, choices in _CHOICES.items():
            _check_choice(others[name], choices, name)
        if others["client"] is not None and partition is not None:
            raise BadInputError(
                "client names a column that says whose a sample is; partition is for tables without one."
            )
        if not isinstance(partition, str | Mapping | None):
            raise BadInputError(
                f"partition must be a name, or a mapping with a name and options, not {quoted(partition)}."
            )
        if others["client"] in others["label"]:
            raise BadInputError(f"label names {quoted(others['client'])}, which client names, too.")
        chosen = {"name": partition} if isinstance(partition, str) else partition
        if chosen is not None:
            chosen = {key: by_path(value) for key, value in chosen.items()}
        given = {"split": split, "train_fraction": train_fraction, "validation_fraction": validation_fraction}
        given["split_seed"] = split_seed
        return cls(
            partition=chosen,
            missing=_treatments(missing),
            na_values=_marks(na_values),
            split=_split(given, others["part"], others["group"]),
            **others,
        )

    def treatment(self, column: str) -> Missing:
        """What is done about a missing value in a column."""
        return self.missing.get(column, self.missing.get(ALL_COLUMNS, "refuse"))

    def to_json(self) -> dict[str, Any]:
        """For the manifest of a store."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.split is not None:
            given |= {"split": self.split.kind, "split_seed": self.split.seed}
            given |= {"train_fraction": self.split.train_fraction}
            given |= {"validation_fraction": self.split.validation_fraction}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {
            name: value for name, value in plain.items() if value is not None and value is not False and value != []
        }


def column_names(value: Any, option: str) -> tuple[str, ...]:
    """The names of columns that an option holds, which may be a single one."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise BadInputError(f"{option} must be the name of a column, or a list of names, not {quoted(value)}.")
    if len(set(names)) < len(names):
        raise BadInputError(f"{option} names {quoted(next(name for name in names if names.count(name) > 1))} twice.")
    return names


def _check_choice(value: Any, choices: Any, what: str) -> None:
    names = get_args(choices)
    if value not in names:
        raise BadInputError(f"{what} cannot be {quoted(value)}; {nearest(str(value), names)}")


def _treatments(missing: Any) -> dict[str, Missing]:
    by_column = dict(missing) if isinstance(missing, Mapping) else {ALL_COLUMNS: missing}
    for name, value in by_column.items():
        _check_choice(value, Missing, "missing" if name == ALL_COLUMNS else f"missing of {quoted(name)}")
    return by_column


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _split(given: dict[str, Any], part: str | None, group: str | None) -> Split | None:
    if part is not None or group is not None:
        for name, value in given.items():
            if value is not None:
                said = "group" if part is None else "part"
                raise BadInputError(f"{name} is {quoted(value)}, but the column that {said} names divides the table.")
        return None
    for name, kind in (("train_fraction", int | float), ("validation_fraction", int | float), ("split_seed", int)):
        value = given[name] = _plain(given[name])
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind) or not value >= 0):
            what = "a whole number" if kind is int else "a number"
            raise BadInputError(f"{name} must be {what} from 0, not {quoted(value)}.")
    _check_choice(given["split"] or "within_client", SplitKind, "split")
    train_fraction = given["train_fraction"]
    return Split(
        given["split"] or "within_client",
        0.8 if train_fraction is None else float(train_fraction),
        float(given["validation_fraction"] or 0.0),
        given["split_seed"] or 0,
    )


def _marks(na_values: Any) -> dict[str, list[Any]]:
    """Marks of missing values by column, as JSON has them."""
    if not isinstance(na_values, Mapping):
        na_values = {ALL_COLUMNS: na_values}
    by_column = {
        str(name): sorted(marks, key=str) if isinstance(marks, list | tuple | set | frozenset) else [marks]
        for name, marks in na_values.items()
    }
    by_column = {name: [_plain(mark) for mark in marks] for name, marks in by_column.items()}
    for mark in (mark for marks in by_column.values() for mark in marks):
        if not isinstance(mark, str | int | float) or isinstance(mark, bool):
            raise BadInputError(f"na_values are texts or numbers, not {quoted(mark)}.")
    return {name: marks for name, marks in by_column.items() if marks}
