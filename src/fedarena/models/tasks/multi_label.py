"""Any number of labels per sample, or one that a sample has or has not."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import TASKS, Task, Tensors, check_same_shape


@TASKS.register("multi_label")
class MultiLabel(Task):
    """Any number of labels per sample; binary cross-entropy of every label, mean over labels."""

    predicts = "labels"
    kinds: ClassVar[tuple[str, ...]] = ("multi_label",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("average_precision", "micro_average_precision", "macro_f1", "micro_f1")
    baseline_rule: ClassVar[str | None] = "always the labels' frequencies as scores"

    def example_targets(self, samples: int) -> Tensor:
        """No labels."""
        return torch.zeros(samples, self.spec.classes, dtype=torch.long)

    def targets(self, y: Tensor) -> Tensor:
        """1 for every label that a sample has, and else 0."""
        return y.to(self._dtype)

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be one for every target."""
        check_same_shape(outputs, batch["y"])

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """The mean over labels of binary cross-entropy, for every sample."""
        return F.binary_cross_entropy_with_logits(outputs, batch["y"], reduction="none").mean(-1)


@TASKS.register("binary")
class Binary(MultiLabel):
    """One of two labels, of which the model scores the second alone: binary cross-entropy."""

    kinds: ClassVar[tuple[str, ...]] = ("classification",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "auc", "average_precision")
    baseline_rule: ClassVar[str | None] = "always the more frequent label"

    @classmethod
    def model_spec(cls, spec: DataSpec) -> DataSpec:
        """A model with one output."""
        if spec.classes != 2:
            raise BadInputError(f"The task binary is for 2 classes, and this federation has {spec}")
        return replace(spec, classes=1, class_counts=spec.class_counts and spec.class_counts[1:])

    def example_targets(self, samples: int) -> Tensor:
        """The first label."""
        return torch.zeros(samples, dtype=torch.long)

    def targets(self, y: Tensor) -> Tensor:
        """1 where it is the second label."""
        return super().targets(y).unsqueeze(-1)
