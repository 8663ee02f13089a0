"""Ratings: how much somebody likes something, on a scale."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedarena.models.tasks.base import TASKS
from fedarena.models.tasks.regression import Regression


@TASKS.register("rating")
class Rating(Regression):
    """A rating on a scale, squared error. Metrics take predictions beyond the ends of the scale for the ends."""

    kinds: ClassVar[tuple[str, ...]] = ("rating",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae")
    baseline_rule = "always the mean rating of the training samples"

    def answers(self, outputs: Tensor) -> Tensor:
        """Ratings on the scale."""
        return outputs if self.spec.value_range is None else outputs.clamp(*self.spec.value_range)
