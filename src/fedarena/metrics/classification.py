"""Metrics of classes and labels: accuracy and what corrects it for classes of different size.

A task that predicts classes has one right class per prediction, the one of the highest score should be it. A task that
predicts labels has any number of right ones; those with a score above 0, which is a probability above one half, are
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedarena.metrics.info import ACCURACY, MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Mean, Metric, Predicts, divided, mean_of_defined


def are_labels(outputs: Tensor, batch: Mapping[str, Tensor]) -> bool:
    """Whether any number of labels may be right, and not one class."""
    return batch["y"].dim() == outputs.dim()


def one_hot(classes: Tensor, outputs: Tensor) -> Tensor:
    """Which class it is, ``[..., classes]``; none where the class is -1."""
    return classes.unsqueeze(-1) == torch.arange(outputs.shape[-1], device=outputs.device)


@METRICS.register("accuracy")
class Accuracy(Mean):
    """The share of predictions that are right: all of a sample's labels, or its class (or one of the best `among`)."""

    predicts: Sequence[Predicts] = ("classes", "labels", "tokens")

    def __init__(self, outputs: int = 1, among: int | None = None):
        super().__init__(outputs)
        self.among = among
        self.info = ACCURACY
        if among is not None:
            self.predicts = ("classes", "tokens")
            self.info = MetricInfo(f"top_{among}_accuracy", f"top-{among} accuracy", low=0.0, high=1.0)

    def each(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Whether it is right."""
        right = batch["y"]
        if are_labels(outputs, batch):
            return ((outputs > 0) == (right > 0)).all(-1)
        if self.among is None:
            return outputs.argmax(-1) == right
        best = outputs.topk(min(self.among, outputs.shape[-1]), -1).indices
        return (best == right.unsqueeze(-1)).any(-1)


class _Confusions(Metric):
    """For every class: how often it was rightly predicted, wrongly predicted, and missed."""

    predicts = ("classes", "labels")

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Hits, false alarms and misses of every class, ``[samples, 3, classes]``."""
        if are_labels(outputs, batch):
            predicted, right = outputs > 0, batch["y"] > 0
        else:
            predicted, right = one_hot(outputs.argmax(-1), outputs), one_hot(batch["y"], outputs)
        state = torch.stack([predicted & right, predicted & ~right, ~predicted & right], -2)
        if (scored := batch.get("scored")) is None:
            return state
        return (state & scored[..., None, None]).sum(-3)  # over a sample's predictions that count


@METRICS.register("macro_f1")
class MacroF1(_Confusions):
    """The mean over classes of F1, the harmonic mean of precision and recall.

    Classes that neither occur nor are predicted are left out.
    """

    info = MetricInfo("macro_f1", "macro F1", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        return mean_of_defined(_f1(state))


@METRICS.register("micro_f1")
class MicroF1(_Confusions):
    """F1 of all classes together, so that frequent ones count more."""

    info = MetricInfo("micro_f1", "micro F1", low=0.0, high=1.0)
    parts = ("hits", "false_alarms", "misses")

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Hits, false alarms and misses, ``[samples, 3]``."""
        return super().state(outputs, batch).sum(-1)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """Of the sums over classes."""
        return _f1(state[..., None])[..., 0]


@METRICS.register("balanced_accuracy")
class BalancedAccuracy(_Confusions):
    """The mean over the classes that occur of the share of them that is recognized.

    Of labels, the mean over labels of the same for having and for not having the label.
    """

    info = MetricInfo("balanced_accuracy", "balanced accuracy", low=0.0, high=1.0)

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """As for F1; of labels ``[samples, 3, 2, labels]``, for having and for not having the label."""
        state = super().state(outputs, batch)
        if not are_labels(outputs, batch):
            return state
        hits, alarms, misses = state.unbind(-2)
        return torch.stack([state, torch.stack([~(hits | alarms | misses), misses, alarms], -2)], -2)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        of_labels = state.shape[-2] == 2
        hits, _, misses = np.moveaxis(state, -3 if of_labels else -2, 0)
        recall = divided(hits, hits + misses)
        return mean_of_defined(mean_of_defined(np.moveaxis(recall, -2, -1)) if of_labels else recall)


def _f1(state: FloatArray) -> FloatArray:
    """Of every class; NaN where it neither occurs nor is predicted."""
    hits, alarms, misses = np.moveaxis(state, -2, 0)
    return divided(2 * hits, 2 * hits + alarms + misses)
