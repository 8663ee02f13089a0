"""Metrics of numbers: how far predictions are from what they should be. Of several numbers, the mean over them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Mean, Metric, divided, mean_of_defined

# Of the sum of squares: a smaller spread of the right numbers is but rounding.
_NO_SPREAD = 1e-12


@METRICS.register("mse")
class MeanSquaredError(Mean):
    """The mean squared error."""

    predicts = ("numbers",)
    info = MetricInfo("mse", "MSE", higher_is_better=False, low=0.0)

    def each(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The squared error."""
        return (outputs.double() - batch["y"].double()).square().mean(-1)


@METRICS.register("rmse")
class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean squared error, in the unit of what is predicted."""

    info = MetricInfo("rmse", "RMSE", higher_is_better=False, low=0.0)
    parts = ("squared_error",)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The root of the mean."""
        root: FloatArray = np.sqrt(state / count)
        return root


@METRICS.register("mae")
class MeanAbsoluteError(Mean):
    """The mean absolute error."""

    predicts = ("numbers",)
    info = MetricInfo("mae", "MAE", higher_is_better=False, low=0.0)

    def each(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The absolute error."""
        return (outputs.double() - batch["y"].double()).abs().mean(-1)


@METRICS.register("r2")
class ExplainedVariance(Metric):
    """R², the share of the variance of the right numbers that predictions explain; below 0 if their mean does better.

    A client has none if it has a single sample, or if all its right numbers are the same.
    """

    predicts = ("numbers",)
    info = MetricInfo("r2", "R²", high=1.0)

    def __init__(self, outputs: int = 1):
        super().__init__(outputs)
        self.parts = ("squared_error", "right", "squared_right") if outputs == 1 else ()

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Squared error, right number, its square: ``[samples, 3]``; of several numbers ``[samples, 3, numbers]``."""
        right = batch["y"].double()
        state = torch.stack([(outputs.double() - right).square(), right, right.square()], -2)
        return state.squeeze(-1) if self.outputs == 1 else state

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """One minus the squared error by the spread of the right numbers around their mean."""
        state = state[..., None] if self.outputs == 1 else state
        errors, right, squares = np.moveaxis(state, -2, 0)
        spread = squares - right**2 / np.asarray(count)[..., None]
        return mean_of_defined(1 - divided(errors, np.where(spread > _NO_SPREAD * squares, spread, 0.0)))
