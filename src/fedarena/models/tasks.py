"""Tasks: what a model is trained for and how it is scored, as functions of (parameters, batch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedarena.models.dropout import dropout_key
from fedarena.models.spec import DataSpec

Tensors = dict[str, Tensor]


class Task(Protocol):
    """A model with its loss and metrics.

    `loss` is the mean over the predictions of a batch; where the batch has a ``"mask"`` of its samples, over those that
    count. Where it has a ``"key"`` (an int64 scalar), what the model drops out depends on that alone.

    `measure` gives sums per sample, so that any grouping (per client, over all) is a plain sum: for every metric a
    vector ``[samples]``, and under ``"count"`` the number of predictions.
    """

    module: nn.Module

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics: the first is the loss, the second is the one that reports lead with."""

    def example(self, samples: int) -> Tensors:
        """Columns of so many meaningless samples, to try a model out."""

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The columns of a federation as the inputs ``x`` and targets ``y`` of the model."""

    def predict(self, params: Tensors, batch: Tensors) -> Tensor:
        """The scores of all classes, last dimension, for every prediction: ``[samples, …, classes]``."""

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """The mean of one value per prediction, ``[samples, …]``, over the predictions that count."""

    def loss(self, params: Tensors, batch: Tensors) -> Tensor:
        """Mean loss of the model with these parameters on this batch."""

    def measure(self, params: Tensors, batch: Tensors) -> Tensors:
        """Per-sample sums of every metric, and the number of predictions they are sums over."""


class Classification:
    """One label per sample, cross-entropy."""

    metrics = ("loss", "accuracy")

    def __init__(self, module: nn.Module, spec: DataSpec):
        self.module = module
        self._shape, self._is_text = spec.input_shape, spec.is_text

    def example(self, samples: int) -> Tensors:
        """Features and labels that are all 0."""
        x = torch.zeros(samples, *self._shape, dtype=torch.long if self._is_text else None)
        return {"x": x, "y": torch.zeros(samples, dtype=torch.long)}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """Features as floats (bytes become 0..1) or as tokens, and labels as class numbers."""
        x = columns["x"]
        if self._is_text:
            return {"x": x.long(), "y": columns["y"].long()}
        scale = 1 / 255 if x.dtype == torch.uint8 else 1
        dtype = next(self.module.parameters()).dtype
        return {"x": x.to(dtype) * scale, "y": columns["y"].long()}

    def predict(self, params: Tensors, batch: Tensors) -> Tensor:
        """Scores ``[samples, classes]``."""
        return _predict(self.module, params, batch)

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """Over the samples."""
        if "mask" not in batch:
            return values.mean()
        return (values * batch["mask"]).sum() / batch["mask"].sum().clamp(min=1)

    def loss(self, params: Tensors, batch: Tensors) -> Tensor:
        """Mean cross-entropy over the samples."""
        return self.mean(_cross_entropy(self.predict(params, batch), batch["y"]), batch)

    def measure(self, params: Tensors, batch: Tensors) -> Tensors:
        """Cross-entropy and correctness of every sample."""
        logits, target = self.predict(params, batch), batch["y"]
        loss = _cross_entropy(logits, target)
        return {"loss": loss, "accuracy": logits.argmax(-1) == target, "count": torch.ones_like(target)}


class NextToken:
    """Predict every token of a sequence from those before it, cross-entropy; padding is not scored."""

    metrics = ("loss", "accuracy")

    def __init__(self, module: nn.Module, spec: DataSpec):
        self.module = module
        self._padding = -1 if spec.padding is None else spec.padding
        self._unknown = -1 if spec.unknown is None else spec.unknown
        self._length = spec.input_shape[0]

    def example(self, samples: int) -> Tensors:
        """Sequences of a token that is not padding."""
        return {"tokens": torch.full((samples, self._length + 1), self._padding + 1)}

    def batch(self, columns: Mapping[str, Tensor]) -> Tensors:
        """The tokens but the last as input, the tokens but the first as target."""
        tokens = columns["tokens"].long()
        return {"x": tokens[:, :-1], "y": tokens[:, 1:]}

    def predict(self, params: Tensors, batch: Tensors) -> Tensor:
        """Scores ``[samples, tokens, classes]``."""
        return _predict(self.module, params, batch)

    def mean(self, values: Tensor, batch: Tensors) -> Tensor:
        """Over the tokens that are not padding."""
        total, count = self._sums(values, batch["y"])
        if "mask" in batch:
            total, count = total * batch["mask"], count * batch["mask"]
        return total.sum() / count.sum().clamp(min=1)

    def loss(self, params: Tensors, batch: Tensors) -> Tensor:
        """Mean cross-entropy over the tokens that are not padding."""
        return self.mean(_cross_entropy(self.predict(params, batch), batch["y"]), batch)

    def measure(self, params: Tensors, batch: Tensors) -> Tensors:
        """Summed cross-entropy and number of correct tokens of every sequence."""
        logits, target = self.predict(params, batch), batch["y"]
        loss, count = self._sums(_cross_entropy(logits, target), target)
        right = (logits.argmax(-1) == target) & (target != self._padding) & (target != self._unknown)
        return {"loss": loss, "accuracy": right.sum(-1), "count": count}

    def _sums(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """For every sequence the sum over its tokens that are not padding, and their number."""
        scored = target != self._padding
        return (values * scored).sum(-1), scored.sum(-1)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Of every prediction. Torch's own function also looks for labels to ignore, which takes small models long."""
    return -F.log_softmax(logits, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _predict(module: nn.Module, params: Tensors, batch: Tensors) -> Tensor:
    with dropout_key(batch.get("key")):
        logits: Tensor = torch.func.functional_call(module, params, (batch["x"],))
    return logits


def make_task(module: nn.Module, spec: DataSpec) -> Task:
    """The task that a federation of this form asks for."""
    return NextToken(module, spec) if spec.kind == "next_token" else Classification(module, spec)
