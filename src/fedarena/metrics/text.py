"""Metrics of text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Metric


@METRICS.register("perplexity")
class Perplexity(Metric):
    """Among how many equally likely tokens the right one would be as surprising: e to the mean loss."""

    predicts = ("tokens",)
    info = MetricInfo("perplexity", "perplexity", higher_is_better=False, low=1.0, decimals=3)
    parts = ("loss",)

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of every sample."""
        return batch["loss"]

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The exponential of the mean; NaN where that is beyond all numbers."""
        with np.errstate(over="ignore"):
            found = np.exp(state / count)
        return np.where(np.isfinite(found), found, np.nan)
