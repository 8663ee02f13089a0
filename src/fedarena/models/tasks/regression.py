"""Numbers that are to be predicted."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fedarena.models.tasks.base import TASKS, Task, Tensors, check_same_shape


@TASKS.register("regression")
class Regression(Task):
    """One number per sample, or several; squared error, mean over the numbers."""

    predicts = "numbers"
    kinds: ClassVar[tuple[str, ...]] = ("regression", "rating")
    usual_metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2")
    baseline_rule = "always the mean of the training samples"

    def example_targets(self, samples: int) -> Tensor:
        """Zeros."""
        return torch.zeros(samples, self.spec.classes)

    def targets(self, y: Tensor) -> Tensor:
        """The numbers, ``[samples, numbers]``."""
        y = y.to(self._dtype)
        return y if y.dim() > 1 else y.unsqueeze(-1)

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be one for every target."""
        check_same_shape(outputs, batch["y"])

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """The squared error of every sample."""
        return (outputs - batch["y"]).square().mean(-1)
