"""A device's own samples: what its user's function gives, checked against what the run is made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.models import DataSpec
from fedarena.train.engine import IntArray, Part

Array = npt.NDArray[Any]
Columns = dict[str, Array]
Form = Mapping[str, tuple[str, tuple[int, ...]]]  # by column: type and shape of one sample, as the run's data have it

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class _Samples:
    columns: Columns
    offsets: IntArray


class RawSamples:
    """What the user's function gave, before it is known what a run needs; `who` names that function.

    That is a pair (x, y), columns by name, or either of these for each of train, validation and test.
    """

    def __init__(self, value: Any, who: str):
        self.who = who
        self.parts = {part: _columns(columns, part, who) for part, columns in _parts(value, who).items()}
        if not self.numbers()["train"]:
            raise BadInputError(f"{who} gives no training sample")

    def numbers(self) -> dict[str, int]:
        """How many samples there are in every part."""
        return {part: len(next(iter(self.parts[part].values()))) if part in self.parts else 0 for part in PARTS}

    def form(self) -> dict[str, list[Any]]:
        """Type and shape of one sample, by column, for the server to compare."""
        return {name: [values.dtype.name, list(values.shape[1:])] for name, values in self.parts["train"].items()}


def _parts(value: Any, who: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("train"), Mapping | tuple | list):
        return {"train": value}
    if unknown := [key for key in value if key not in PARTS]:
        raise BadInputError(f"{who} gives {quoted(unknown[0])}, but the parts are train, validation and test")
    return dict(value)


def _columns(value: Any, part: str, who: str) -> Columns:
    what = who if part == "train" else f"{who}: the {part} samples"
    if isinstance(value, tuple | list) and len(value) == 2:
        value = dict(zip(("x", "y"), value, strict=True))
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise BadInputError(
            f"{what} must be a pair (x, y) or a dictionary of columns, not {quoted(type(value).__name__)}"
        )
    columns = {name: _array(values, f"{what}: {name}") for name, values in value.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise BadInputError(f"{what} must have as many entries in every column, but {said}")
    return columns


def _array(value: Any, what: str) -> Array:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        values = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise BadInputError(f"{what} is not an array: {error}") from error
    if values.ndim == 0 or values.dtype.kind not in "fiu":
        raise BadInputError(f"{what} must be an array of numbers, not {values.dtype} of shape {list(values.shape)}")
    return values


class OwnSamples:
    """The samples of one client, whatever number it has: what an engine on its device reads from."""

    def __init__(self, parts: Mapping[str, Columns]):
        self._parts = {part: parts[part] for part in PARTS if part in parts}
        if "train" not in self._parts:
            raise BadInputError("There are no training samples")

    @classmethod
    def given(cls, raw: RawSamples, form: Form, spec: DataSpec) -> OwnSamples:
        """What a user's function gave, checked against what a run is made for."""
        parts = {
            part: _checked(columns, form, spec, raw.who if part == "train" else f"{raw.who}: the {part} samples")
            for part, columns in raw.parts.items()
        }
        return cls(parts)

    def samples(self, clients: IntArray, part: Part) -> _Samples:
        """The same samples for whoever is asked about; an engine asks about this client alone."""
        parts = self._parts.values() if part == "all" else [self._parts.get(part) or self._nothing()]
        once = {name: np.concatenate([one[name] for one in parts]) for name in self._parts["train"]}
        count = len(next(iter(once.values())))
        if len(clients) == 1:
            return _Samples(once, np.array([0, count]))
        columns = {name: np.concatenate([values] * len(clients)) for name, values in once.items()}
        return _Samples(columns, count * np.arange(len(clients) + 1))

    def counts(self, clients: IntArray, part: Part) -> IntArray:
        """How many samples each of these clients has."""
        number = sum(map(self._count, PARTS)) if part == "all" else self._count(part)
        return np.full(len(clients), number, dtype=np.int64)

    def _count(self, part: str) -> int:
        columns = self._parts.get(part)
        return 0 if columns is None else len(next(iter(columns.values())))

    def _nothing(self) -> Columns:
        return {name: values[:0] for name, values in self._parts["train"].items()}


def _checked(given: Columns, form: Form, spec: DataSpec, who: str) -> Columns:
    if given.keys() != form.keys():
        raise BadInputError(f"{who} must have the columns {', '.join(form)}, not {quoted(', '.join(given))}")
    columns = {name: _column(given[name], dtype, shape, f"{who}: {name}") for name, (dtype, shape) in form.items()}
    _check_values(columns, spec, who)
    return columns


def _column(values: Array, dtype: str, shape: tuple[int, ...], what: str) -> Array:
    """One column with the type that the run has; a number must not become another one by that."""
    if values.shape[1:] != shape:
        raise BadInputError(
            f"{what} must have the shape [samples{''.join(f', {size}' for size in shape)}], not {list(values.shape)}"
        )
    wanted = np.dtype(dtype)
    alike = {"f": "f", "i": "iu", "u": "iu"}[wanted.kind]
    if values.dtype.kind not in alike:
        raise BadInputError(f"{what} must hold numbers of the type {dtype}, not {values.dtype}")
    if wanted.kind == "f":
        if not np.isfinite(values).all():
            raise BadInputError(f"{what} holds numbers that are infinite or undefined")
    elif values.size:
        limits = np.iinfo(wanted)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise BadInputError(
                f"{what} must hold numbers from {limits.min} to {limits.max}, not from {values.min()} to {values.max()}"
            )
    return np.ascontiguousarray(values.astype(wanted, copy=False))


def _check_values(columns: Columns, spec: DataSpec, who: str) -> None:
    """Codes and labels must be among those that the model has room for: others would end training, or count wrongly."""
    if spec.kind in ("next_token", "masked_token"):
        _check_range(columns["tokens"], 0, spec.vocabulary, f"{who}: tokens")
        return
    for part in spec.inputs:
        if part.values is not None and part.name in columns:
            _check_range(columns[part.name], 0, part.values, f"{who}: {part.name}")
    if spec.is_text and not spec.inputs:
        _check_range(columns["x"], 0, spec.vocabulary, f"{who}: x")
    y = columns["y"]
    if spec.kind in ("classification", "transcription", "translation"):
        _check_range(y, 0, spec.classes, f"{who}: y")
    elif spec.kind == "multi_label":
        _check_range(y, 0, 2, f"{who}: y")
    elif spec.kind == "node_classification":
        _check_range(y, -1, spec.classes, f"{who}: y")
    elif spec.value_range is not None and y.size:
        least, most = spec.value_range
        if y.min() < least or y.max() > most:
            raise BadInputError(f"{who}: y must be from {least:g} to {most:g}, not from {y.min():g} to {y.max():g}")


def _check_range(values: Array, least: int, end: int, what: str) -> None:
    if values.size and (values.min() < least or values.max() >= end):
        raise BadInputError(
            f"{what} must hold whole numbers from {least} to {end - 1}, not from {values.min()} to {values.max()}"
        )
