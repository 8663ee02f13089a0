"""Metrics: values that can be added up.

Every sample has a *state*, a few numbers. States of samples, of clients and of shards are added up, and `Metric.value`
makes the metric of a sum. So a client, a group of clients, and all of them together are scored from the same states.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry, nearest
from fedarena.metrics.info import LOSS, MetricInfo

FloatArray = npt.NDArray[np.float64]
State = TypeVar("State", Tensor, FloatArray)

# What a task predicts: one class of several, any number of labels, the token at every place, numbers, or what is said.
Predicts = Literal["classes", "labels", "tokens", "numbers", "transcripts"]
EVERYTHING: tuple[Predicts, ...] = ("classes", "labels", "tokens", "numbers", "transcripts")

# What lies between a metric's name and that of a part of its state, in the names of columns.
PART = "."


class Metric:
    """A value that can be added up; here, a mean over predictions.

    `state` gets what the model put out, ``[samples, …]``, and the batch: ``y``, what is right (-1 where a token that is
    predicted cannot be right, or a node has no label), ``loss`` and ``count``, every sample's loss and number of
    predictions, and where some predictions do not count, ``scored``, which says which do.
    """

    info: MetricInfo  # its name, its range, its direction
    predicts: Sequence[Predicts] = EVERYTHING  # the tasks it is for
    # Names of the state's numbers, which are kept for every client; so groups of clients can be scored later on. A
    # plain mean needs none, and a state that is too large to be kept has none.
    parts: tuple[str, ...] = ()
    # What it tells of every class alone, where there are several: columns of the table of classes.
    class_columns: tuple[str, ...] = ()

    def __init__(self, outputs: int = 1):
        self.outputs = outputs  # numbers that the model puts out for a prediction

    def know_classes(self, counts: Sequence[int] | None) -> None:
        """Gets to know how many training samples have each class; None where nobody knows."""

    def know_tokens(self, names: Sequence[str] | None) -> None:
        """Gets to know what tokens or characters stand for; None where nobody knows."""

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The state of every sample, ``[samples, …]``."""
        raise NotImplementedError

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The metric of sums of states, ``[..., …]``, over `count` predictions, ``[...]``; NaN where it has none."""
        return state / count

    def of_classes(self, state: FloatArray) -> dict[str, FloatArray]:
        """The `class_columns` of a sum of states: a value per class, NaN where a class has none."""
        return {}

    def occurrences(self, state: FloatArray) -> FloatArray:
        """How often each class is right in sums of states, ``[..., classes]``, where it has `class_columns`."""
        raise NotImplementedError

    @property
    def state_name(self) -> str:
        """What its states are called; metrics of the same states share them."""
        return self.name

    def state_in(self, states: Mapping[str, State]) -> State:
        """Its state among those of all metrics: under its own name, as somebody's own task may give it, or shared."""
        return states[self.name] if self.name in states else states[self.state_name]

    @property
    def name(self) -> str:
        """The name of its columns."""
        return self.info.name

    @property
    def is_mean(self) -> bool:
        """Whether it is a plain mean over predictions."""
        return type(self).value is Metric.value

    @property
    def part_names(self) -> tuple[str, ...]:
        """The columns of the parts of its state."""
        return tuple(f"{self.name}{PART}{part}" for part in self.parts)


class Mean(Metric):
    """The mean of a value of every prediction: `each` says which."""

    def each(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """A value for every prediction: ``[samples]``, or where a sample holds several, ``[samples, predictions]``."""
        raise NotImplementedError

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The sum over a sample's predictions that count."""
        values, scored = self.each(outputs, batch), batch.get("scored")
        return values if scored is None else torch.where(scored, values, 0).sum(-1)


class Loss(Metric):
    """What is minimized, on the evaluated samples."""

    info = LOSS

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of every sample."""
        return batch["loss"]


class WeightedLoss(Metric):
    """The loss of a task in which some samples weigh more than others."""

    info = LOSS
    parts = ("sum", "weight")

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The weighted loss of every sample, and its weight."""
        return torch.stack([batch["loss"], batch["weight"]], -1)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The weighted mean."""
        return divided(state[..., 0], state[..., 1])


METRICS: Registry[Callable[..., Metric]] = Registry("metric")
_TOP = re.compile(r"top_([1-9]\d{0,5})_accuracy")


def metric_names() -> list[str]:
    """The metrics there are, and one of those that have a number in their name."""
    return [*METRICS.names(), "top_5_accuracy"]


def make_metric(name: str, outputs: int = 1) -> Metric:
    """The metric of this name, or of somebody's own (``package.module:Name``)."""
    if top := _TOP.fullmatch(name):
        return METRICS.get("accuracy")(outputs, among=int(top[1]))
    if ":" not in name and name not in METRICS.names():
        raise BadInputError(f"There is no metric called {name!r}; {nearest(name, metric_names())}")
    kind = METRICS.get(name)
    try:
        inspect.signature(kind).bind(outputs)
    except TypeError as error:
        raise BadInputError(
            f"The metric {name} must be made with how many numbers a model puts out, "
            f"def __init__(self, outputs=1): {error}"
        ) from error
    made: Any = kind(outputs)
    if not isinstance(made, Metric) or not isinstance(getattr(made, "info", None), MetricInfo):
        raise BadInputError(
            f"{name} is not a metric: a subclass of fedarena.metrics.Metric whose `info` is a MetricInfo"
        )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", made.name):
        raise BadInputError(f"The metric {name} is called {made.name!r}; a name has letters, digits and _ only")
    return made


def divided(amount: FloatArray, by: FloatArray) -> FloatArray:
    """A quotient, NaN where there is nothing to divide by."""
    quotient = np.full(np.broadcast(amount, by).shape, np.nan)
    np.divide(amount, by, out=quotient, where=by > 0)
    return quotient


def mean_of_defined(values: FloatArray) -> FloatArray:
    """The mean over the last axis of the values that are not NaN; NaN where all are."""
    defined = ~np.isnan(values)
    return divided(np.where(defined, values, 0.0).sum(-1), defined.sum(-1).astype(np.float64))
