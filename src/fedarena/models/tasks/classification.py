"""One label per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import TASKS, Task, Tensors, check_scores, cross_entropy


@TASKS.register("classification")
class Classification(Task):
    """One label per sample, cross-entropy.

    `class_weights` has a number for every class, by which the loss of its samples is multiplied; the mean is over
    weights, then, as in torch's `CrossEntropyLoss`. `label_smoothing` is the share of what is right that is spread over
    all classes.
    """

    predicts = "classes"
    kinds: ClassVar[tuple[str, ...]] = ("classification",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    baseline_rule = "always the most frequent label"

    def __init__(
        self,
        module: nn.Module,
        spec: DataSpec,
        *,
        class_weights: tuple[float, ...] | None = None,
        label_smoothing: float = 0.0,
        metrics: tuple[str, ...] | None = None,
        lead: str | None = None,
    ):
        self.class_weights = check_weights(class_weights, spec.classes)
        if not 0 <= label_smoothing <= 1:
            raise BadInputError(f"task.label_smoothing must be from 0 to 1, not {label_smoothing}")
        self.label_smoothing = label_smoothing
        super().__init__(module, spec, metrics=metrics, lead=lead)

    @property
    def has_weights(self) -> bool:
        """Whether classes weigh differently."""
        return self.class_weights is not None

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be a score for every class."""
        check_scores(outputs, batch["y"], self.spec.classes)

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """Cross-entropy of every sample, times its weight."""
        if self.class_weights is None and not self.label_smoothing:
            return cross_entropy(outputs, batch["y"])
        surprise = -F.log_softmax(outputs, -1)
        if self.class_weights is not None:
            surprise = surprise * self._weights_on(surprise.device)
        right = surprise.gather(-1, batch["y"].unsqueeze(-1)).squeeze(-1)
        return (1 - self.label_smoothing) * right + self.label_smoothing * surprise.mean(-1)

    def weights(self, batch: Tensors) -> Tensor:
        """The weight of every sample's class."""
        return self._weights_on(batch["y"].device)[batch["y"]]

    def _weights_on(self, device: torch.device) -> Tensor:
        """The weights where the model computes; they stay there, as recorded steps must not copy."""
        assert self.class_weights is not None
        if self.class_weights.device != device or self.class_weights.dtype != self._dtype:
            self.class_weights = self.class_weights.to(device, self._dtype)
        return self.class_weights


def check_weights(weights: Sequence[float] | None, classes: int) -> Tensor | None:
    """The weights as a tensor."""
    if weights is None:
        return None
    if len(weights) != classes:
        raise BadInputError(f"task.class_weights has {len(weights)} numbers for {classes} classes")
    if min(weights) < 0 or max(weights) <= 0:
        raise BadInputError("task.class_weights must not be negative, and not all 0")
    return torch.tensor(weights, dtype=torch.float64)
