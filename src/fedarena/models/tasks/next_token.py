"""The next token at every place of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from fedarena.metrics.totals import COUNT
from fedarena.models.tasks.base import TASKS, Tensors
from fedarena.models.tasks.tokens import OfTokens


@TASKS.register("next_token")
class NextToken(OfTokens):
    """Predict every token of a sequence from those before it, cross-entropy; padding is not scored."""

    kinds: ClassVar[tuple[str, ...]] = ("next_token",)
    usual_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    baseline_rule = "always the most frequent label"

    def example(self, samples: int) -> Tensors:
        """Sequences of a token that is not padding."""
        return {"tokens": torch.full((samples, self.spec.input_shape[0] + 1), self._padding + 1)}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The tokens but the last as input, the tokens but the first as target."""
        tokens = columns["tokens"].long()
        return {"x": tokens[:, :-1], "y": tokens[:, 1:]}

    def _scored(self, batch: Tensors) -> Tensor:
        """Tokens that are not padding."""
        return batch["y"] != self._padding

    def seen(self, outputs: Tensor, batch: Tensors) -> Tensors:
        """What is right is -1 where nothing is: for padding, and for tokens that the vocabulary lacks."""
        target = batch["y"]
        loss, count = self._sums(self.losses(outputs, batch), batch)
        scored = self._scored(batch)
        right = torch.where(scored & (target != self._unknown), target, -1)
        return {**batch, "y": right, "loss": loss, COUNT: count, "scored": scored}
