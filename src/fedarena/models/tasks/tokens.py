"""What tasks have in common that predict tokens at many places of a text, of which some are scored."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from fedarena.models.spec import DataSpec
from fedarena.models.tasks.base import Task, Tensors, check_scores, cross_entropy


class OfTokens(Task):
    """Cross-entropy, mean over the tokens that are scored; a text that has more of them counts more."""

    predicts = "tokens"

    def __init__(
        self, module: nn.Module, spec: DataSpec, *, metrics: tuple[str, ...] | None = None, lead: str | None = None
    ):
        self._padding = -1 if spec.padding is None else spec.padding
        self._unknown = -1 if spec.unknown is None else spec.unknown
        super().__init__(module, spec, metrics=metrics, lead=lead)

    @abstractmethod
    def _scored(self, batch: Tensors) -> Tensor:
        """Which tokens are to be predicted."""

    def drawn_example(self, samples: int, random: torch.Generator) -> Tensors:
        """Texts of any tokens, of which inputs and targets are made."""
        return {
            name: torch.randint(self._codes.get(name, self.spec.classes), tokens.shape, generator=random)
            for name, tokens in self.example(samples).items()
        }

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """Over the tokens that are scored."""
        total, count = self._sums(values, batch)
        if "mask" in batch:
            total, count = total * batch["mask"], count * batch["mask"]
        return total.sum() / count.sum().clamp(min=1)

    def check_outputs(self, outputs: Tensor, batch: Tensors) -> None:
        """There must be a score for every token of the vocabulary."""
        check_scores(outputs, batch["y"], self.spec.classes)

    def losses(self, outputs: Tensor, batch: Tensors) -> Tensor:
        """Cross-entropy of every token."""
        return cross_entropy(outputs, batch["y"])

    def _sums(self, values: Tensor, batch: Tensors) -> tuple[Tensor, Tensor]:
        """For every text the sum over its tokens that are scored, and their number."""
        scored = self._scored(batch)
        return (values * scored).sum(-1), scored.sum(-1)
