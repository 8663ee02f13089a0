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

# What metrics share: hits, false alarms and misses, of every class and of all of them.
CLASS_CONFUSIONS, ALL_CONFUSIONS = "confusions of classes", "confusions of all classes"


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


class ClassConfusions(Metric):
    """For every class: how often it was rightly predicted, wrongly predicted, and missed."""

    predicts = ("classes", "labels")
    class_columns: tuple[str, ...] = ("precision", "recall", "f1")

    @property
    def state_name(self) -> str:
        """The same for all metrics of this state."""
        return CLASS_CONFUSIONS if type(self).state is ClassConfusions.state else self.name

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

    def of_classes(self, state: FloatArray) -> dict[str, FloatArray]:
        """Precision, recall and F1 of every class."""
        return {"precision": class_precision(state), "recall": class_recall(state), "f1": class_f1(state)}

    def occurrences(self, state: FloatArray) -> FloatArray:
        """Hits and misses."""
        found: FloatArray = state[..., 0, :] + state[..., 2, :]
        return found


@METRICS.register("macro_f1")
class MacroF1(ClassConfusions):
    """The mean over classes of F1, the harmonic mean of precision and recall.

    Classes that neither occur nor are predicted are left out.
    """

    info = MetricInfo("macro_f1", "macro F1", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        return mean_of_defined(class_f1(state))


@METRICS.register("macro_precision")
class MacroPrecision(ClassConfusions):
    """The mean over classes of precision, the share of predictions of a class that are right.

    A class that occurs but is never predicted counts as 0, as scikit-learn has it; classes that neither occur nor are
    predicted are left out. FLAIR's C-P.
    """

    info = MetricInfo("macro_precision", "macro precision", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        return mean_of_defined(class_precision(state))


@METRICS.register("macro_recall")
class MacroRecall(ClassConfusions):
    """The mean over the classes that occur of recall, the share of them that is predicted. FLAIR's C-R."""

    info = MetricInfo("macro_recall", "macro recall", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        return mean_of_defined(class_recall(state))


@METRICS.register("f1_of_averages")
class F1OfAverages(ClassConfusions):
    """The harmonic mean of macro precision and macro recall; `macro_f1` is the mean of the classes' harmonic means.

    FLAIR's C-F1.
    """

    info = MetricInfo("f1_of_averages", "F1 of macro precision and recall", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """0 where both are 0."""
        precision, recall = mean_of_defined(class_precision(state)), mean_of_defined(class_recall(state))
        both = precision + recall
        return np.where(both == 0, 0.0, divided(2 * precision * recall, both))


class _AllConfusions(ClassConfusions):
    """Hits, false alarms and misses of all classes together, so that frequent ones count more."""

    class_columns: tuple[str, ...] = ()
    parts: tuple[str, ...] = ("hits", "false_alarms", "misses")

    @property
    def state_name(self) -> str:
        """The same for all metrics of this state."""
        return ALL_CONFUSIONS if type(self).state is _AllConfusions.state else self.name

    def state(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Hits, false alarms and misses, ``[samples, 3]``."""
        if not are_labels(outputs, batch) or "scored" in batch:
            return super().state(outputs, batch).sum(-1)
        predicted, right = outputs > 0, batch["y"] > 0
        hits = (predicted & right).sum(-1)
        return torch.stack([hits, predicted.sum(-1) - hits, right.sum(-1) - hits], -1)


@METRICS.register("micro_f1")
class MicroF1(_AllConfusions):
    """F1 of all classes together, so that frequent ones count more. FLAIR's O-F1."""

    info = MetricInfo("micro_f1", "micro F1", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """Of the sums over classes."""
        return class_f1(state[..., None])[..., 0]


@METRICS.register("micro_precision")
class MicroPrecision(_AllConfusions):
    """The share of all predictions of classes that are right; 0 where none is predicted though some occur.

    FLAIR's O-P.
    """

    info = MetricInfo("micro_precision", "micro precision", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """Of the sums over classes."""
        return class_precision(state[..., None])[..., 0]


@METRICS.register("micro_recall")
class MicroRecall(_AllConfusions):
    """The share of all right classes that are predicted. FLAIR's O-R."""

    info = MetricInfo("micro_recall", "micro recall", low=0.0, high=1.0)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """Of the sums over classes."""
        return class_recall(state[..., None])[..., 0]


@METRICS.register("balanced_accuracy")
class BalancedAccuracy(ClassConfusions):
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
        of_labels = self._is_of_labels(state)
        hits, _, misses = np.moveaxis(state, -3 if of_labels else -2, 0)
        recall = divided(hits, hits + misses)
        return mean_of_defined(mean_of_defined(np.moveaxis(recall, -2, -1)) if of_labels else recall)

    def of_classes(self, state: FloatArray) -> dict[str, FloatArray]:
        """Precision, recall and F1 of every class, or of having every label."""
        return super().of_classes(self._having(state))

    def occurrences(self, state: FloatArray) -> FloatArray:
        """Hits and misses."""
        return super().occurrences(self._having(state))

    def _having(self, state: FloatArray) -> FloatArray:
        return state[..., 0, :] if self._is_of_labels(state) else state

    @staticmethod
    def _is_of_labels(state: FloatArray) -> bool:
        return int(state.shape[-2]) == 2


def class_precision(state: FloatArray) -> FloatArray:
    """Of every class; 0 where it occurs and is never predicted, NaN where it does neither."""
    hits, alarms, misses = np.moveaxis(state, -2, 0)
    return np.where((hits + alarms == 0) & (misses > 0), 0.0, divided(hits, hits + alarms))


def class_recall(state: FloatArray) -> FloatArray:
    """Of every class; NaN where it does not occur."""
    hits, _, misses = np.moveaxis(state, -2, 0)
    return divided(hits, hits + misses)


def class_f1(state: FloatArray) -> FloatArray:
    """Of every class; NaN where it neither occurs nor is predicted."""
    hits, alarms, misses = np.moveaxis(state, -2, 0)
    return divided(2 * hits, 2 * hits + alarms + misses)
