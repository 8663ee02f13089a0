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


class OwnSamples:
    """The samples of one client, whatever number it has: what an engine on its device reads from."""

    def __init__(self, parts: Mapping[str, Columns]):
        self._parts = {part: parts[part] for part in PARTS if part in parts}
        if "train" not in self._parts:
            raise BadInputError("There are no training samples")

    @classmethod
    def given(cls, value: Any, form: Form, spec: DataSpec, who: str) -> OwnSamples:
        """What a user's function gave, checked; `who` names that function."""
        parts = {
            part: _checked(columns, form, spec, f"{who}: the {part} samples" if part != "train" else who)
            for part, columns in _parts_in(value, form, who).items()
        }
        if not len(next(iter(parts["train"].values()))):
            raise BadInputError(f"{who} gives no training sample")
        return cls(parts)

    def numbers(self) -> dict[str, int]:
        """How many samples there are in every part."""
        return {part: self._count(part) for part in PARTS}

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

    def form(self) -> dict[str, list[Any]]:
        """Type and shape of one sample, by column, for the server to compare."""
        return {name: [values.dtype.name, list(values.shape[1:])] for name, values in self._parts["train"].items()}

    def _count(self, part: str) -> int:
        columns = self._parts.get(part)
        return 0 if columns is None else len(next(iter(columns.values())))

    def _nothing(self) -> Columns:
        return {name: values[:0] for name, values in self._parts["train"].items()}


def _parts_in(value: Any, form: Form, who: str) -> dict[str, Any]:
    """Training, validation and test samples, each as columns by name or as a pair (x, y)."""
    if isinstance(value, Mapping) and "train" in value and "train" not in form:
        if unknown := [key for key in value if key not in PARTS]:
            raise BadInputError(f"{who} gives {quoted(unknown[0])}, but the parts are train, validation and test")
        return dict(value)
    return {"train": value}


def _checked(value: Any, form: Form, spec: DataSpec, who: str) -> Columns:
    wanted = ", ".join(form)
    if isinstance(value, tuple | list) and set(form) == {"x", "y"}:
        if len(value) != 2:
            raise BadInputError(f"{who} must be a pair (x, y), not {len(value)} things")
        value = dict(zip(("x", "y"), value, strict=True))
    if not isinstance(value, Mapping):
        pair = " or a pair (x, y)" if set(form) == {"x", "y"} else ""
        raise BadInputError(f"{who} must be a dictionary with the columns {wanted}{pair}, not {type(value).__name__}")
    if value.keys() != form.keys():
        raise BadInputError(f"{who} must have the columns {wanted}, not {quoted(', '.join(map(str, value)))}")
    columns = {name: _column(value[name], dtype, shape, f"{who}: {name}") for name, (dtype, shape) in form.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length:,}" for name, length in lengths.items())
        raise BadInputError(f"{who} must have as many entries in every column, but {said}")
    _check_values(columns, spec, who)
    return columns


def _column(value: Any, dtype: str, shape: tuple[int, ...], what: str) -> Array:
    """One column as an array of the type that the run has; a number must not become another one by that."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        values = np.asarray(value)
    except ValueError as error:
        raise BadInputError(f"{what} is not an array: {error}") from error
    if values.shape[1:] != shape or values.ndim == 0:
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
