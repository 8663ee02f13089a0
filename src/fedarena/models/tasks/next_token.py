"""The next token at every place of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedarena.metrics.totals import COUNT
from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import TASKS, Task, Tensors, check_scores, cross_entropy


@TASKS.register("next_token")
class NextToken(Task):
    """Predict every token of a sequence from those before it, cross-entropy; padding is not scored."""

    predicts = "tokens"
    kinds: ClassVar[tuple[str, ...]] = ("next_token",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    baseline_rule = "always the most frequent label"

    def __init__(
        self, module: nn.Module, spec: DataSpec, *, metrics: tuple[str, ...] | None = None, lead: str | None = None
    ):
        self._padding = -1 if spec.padding is None else spec.padding
        self._unknown = -1 if spec.unknown is None else spec.unknown
        super().__init__(module, spec, metrics=metrics, lead=lead)

    def example(self, samples: int) -> Tensors:
        """Sequences of a token that is not padding."""
        return {"tokens": torch.full((samples, self.spec.input_shape[0] + 1), self._padding + 1)}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The tokens but the last as input, the tokens but the first as target."""
        tokens = columns["tokens"].long()
        return {"x": tokens[:, :-1], "y": tokens[:, 1:]}

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """Over the tokens that are not padding."""
        total, count = self._sums(values, batch["y"])
        if "mask" in batch:
            total, count = total * batch["mask"], count * batch["mask"]
        return total.sum() / count.sum().clamp(min=1)

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be a score for every token of the vocabulary."""
        check_scores(outputs, batch["y"], self.spec.classes)

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """Cross-entropy of every token."""
        return cross_entropy(outputs, batch["y"])

    def seen(self, outputs: Tensor, batch: Tensors) -> Tensors:
        """What is right is -1 where nothing is: for padding, and for tokens that the vocabulary lacks."""
        target = batch["y"]
        loss, count = self._sums(self.losses(outputs, batch), target)
        scored = target != self._padding
        right = torch.where(scored & (target != self._unknown), target, -1)
        return {**batch, "y": right, "loss": loss, COUNT: count, "scored": scored}

    def _sums(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """For every sequence the sum over its tokens that are not padding, and their number."""
        scored = target != self._padding
        return (values * scored).sum(-1), scored.sum(-1)
