"""The unit cube that models work in: one axis per hyperparameter, and which of them have an order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.hpo.space import Hyperparameter, Space

FloatArray = npt.NDArray[np.float64]
_DRAWN = 64  # points at once, for one that was not proposed yet


def has_order(one: Hyperparameter) -> bool:
    """Whether neighbouring values resemble each other: ranges, and choices among numbers that are sorted."""
    if one.kind != "choice":
        return True
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in one.choices):
        return False
    return list(one.choices) in (sorted(one.choices), sorted(one.choices, reverse=True))


def count_of(one: Hyperparameter) -> int | None:
    """How many values there are; None for a range of real numbers."""
    if one.kind == "choice":
        return len(one.choices)
    return int(one.high) - int(one.low) + 1 if one.kind == "int" else None


class Axes:
    """Configurations as points of the unit cube, many at once.

    A value that stands for part of an axis (a whole number, a choice) is in the middle of it. Choices without an order
    lie on an axis, too, but only whether two of them are equal means anything (`categories`).
    """

    def __init__(self, space: Space):
        self.space = space
        self.ordered = np.array([has_order(one) for one in space])
        self.counts = [count_of(one) for one in space]
        self.categories = [0 if has_order(one) else len(one.choices) for one in space]
        # The smallest distance of two values; that of whole numbers on a log scale is the one between the last two.
        self.steps = np.array([_smallest_step(one) for one in space])

    def __len__(self) -> int:
        return len(self.space)

    @property
    def is_finite(self) -> bool:
        """Whether there is only so much to try."""
        return all(count is not None for count in self.counts)

    def snap(self, points: FloatArray) -> FloatArray:
        """Every coordinate moved to the middle of what stands for its value."""
        snapped = np.clip(points, 0.0, 1.0)
        for axis, one in enumerate(self.space):
            count = self.counts[axis]
            if count is None:
                continue
            if one.log:
                low, high = math.log(one.low - 0.5), math.log(one.high + 0.5)
                values = np.floor(np.exp(low + (high - low) * snapped[:, axis]) + 0.5)
                snapped[:, axis] = (np.log(np.clip(values, one.low, one.high)) - low) / (high - low)
            else:
                snapped[:, axis] = (np.minimum(np.floor(snapped[:, axis] * count), count - 1) + 0.5) / count
        return snapped

    def draw(self, number: int, generator: np.random.Generator) -> FloatArray:
        """Points drawn uniformly."""
        return self.snap(generator.random((number, len(self))))

    def category(self, points: FloatArray, axis: int) -> npt.NDArray[np.int64]:
        """Which choice each point has on an axis without an order."""
        count = self.categories[axis]
        return np.minimum((points[:, axis] * count).astype(np.int64), count - 1)


class Tried:
    """Which configurations were proposed already; asking again would tell nothing new."""

    def __init__(self, axes: Axes):
        self._axes = axes
        self._points: set[bytes] = set()

    def add(self, configuration: Mapping[str, Any]) -> None:
        """Remembers one."""
        self._points.add(self._key(self._axes.space.places(configuration)))

    def has(self, point: FloatArray) -> bool:
        """Whether the configuration at a (snapped) point was proposed."""
        return self._key(point) in self._points

    def first_new(self, points: FloatArray) -> FloatArray | None:
        """The first of some points that was not proposed yet."""
        return next((point for point in points if not self.has(point)), None)

    def draw_new(self, generator: np.random.Generator) -> FloatArray:
        """A point drawn uniformly, if possible one that was not proposed yet."""
        points = self._axes.draw(_DRAWN, generator)
        new = self.first_new(points)
        return points[0] if new is None else new

    def or_new(self, point: FloatArray, generator: np.random.Generator) -> FloatArray:
        """This (snapped) point, or another one if it was proposed."""
        return self.draw_new(generator) if self.has(point) else point

    def _key(self, point: FloatArray) -> bytes:
        return np.round(point, 9).tobytes()


def _smallest_step(one: Hyperparameter) -> float:
    count = count_of(one)
    if count is None:
        return 0.0
    if one.log and one.kind == "int":
        return one.place_of(one.high) - one.place_of(one.high - 1)
    return 1.0 / count
