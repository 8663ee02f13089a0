"""Metrics of how right classes are ranked by their scores: the area under the ROC curve, and average precision.

They need the scores of all samples. For every right class of a sample it is counted how many samples have a score for
that class that is as high or higher, among all and among those for which it is right; that is all that both metrics
need, also where scores are the same, and it is exact. Scores that are not numbers have no order, and the metrics no
value then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedarena.metrics.classification import are_labels, one_hot
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Metric
from fedarena.metrics.scores import Array, Scores

IntArray = npt.NDArray[np.int64]

# From so many thresholds on it is faster to sort the scores than to look every one of them up.
_MANY = 1000


@dataclass(frozen=True)
class Ranks:
    """The ranks of right classes; an entry for every score that one or more of them have.

    Entries are sorted by class and score.
    """

    labels: IntArray  # the class
    right: IntArray  # how many right ones have just this score
    right_from: IntArray  # how many right ones have this score or a higher one
    all_from: IntArray  # how many samples have this score or a higher one
    all_equal: IntArray  # how many samples have just this score
    samples: int  # that were ranked, for every class
    undefined: IntArray  # classes without an order, because a score is not a number


def rank(scores: Scores, all_classes_together: bool) -> Ranks:
    """Ranks among the scores of the same class, or of all classes."""
    labels, positives = scores.positives
    chunks: Iterable[Array] = scores.chunks()
    if all_classes_together:
        labels = np.zeros_like(labels)
        chunks = (chunk.reshape(-1, 1) for chunk in chunks)
    order = np.lexsort((positives, labels))
    labels, positives = labels[order], positives[order]
    first = np.ones(len(labels), dtype=bool)
    first[1:] = (labels[1:] != labels[:-1]) | (positives[1:] != positives[:-1])
    begins = np.flatnonzero(first)
    right = np.diff(np.append(begins, len(labels)))
    labels, thresholds = labels[begins], positives[begins]
    present, bounds = np.unique(labels, return_index=True)
    stretches = list(zip(present.tolist(), bounds.tolist(), np.append(bounds, len(labels))[1:].tolist(), strict=True))
    reached = np.zeros(len(labels), dtype=np.int64)  # scores from this threshold on and below the next one
    beyond = np.zeros(len(labels), dtype=np.int64)  # scores from this threshold on, where they are counted that way
    equal = np.zeros(len(labels), dtype=np.int64)
    samples = 0
    for chunk in chunks:
        samples += len(chunk)
        by_class = np.ascontiguousarray(chunk.T)
        for label, begin, end in stretches if len(chunk) else ():
            own = thresholds[begin:end]
            if len(own) > _MANY:
                ordered = np.sort(by_class[label])
                below = np.searchsorted(ordered, own, side="left")
                beyond[begin:end] += len(ordered) - below
                equal[begin:end] += np.searchsorted(ordered, own, side="right") - below
                continue
            place = np.searchsorted(own, by_class[label], side="right")
            reached[begin:end] += np.bincount(place, minlength=end - begin + 1)[1:]
            hit = place[own[place - 1] == by_class[label]]  # place 0 compares with the largest, which it is below
            equal[begin:end] += np.bincount(hit, minlength=end - begin + 1)[1:]
    all_from = beyond + _from_here_on(reached, labels)
    return Ranks(labels, right, _from_here_on(right, labels), all_from, equal, samples, scores.undefined)


def _from_here_on(counts: IntArray, labels: IntArray) -> IntArray:
    """The sum of an entry and of all after it of the same class."""
    backwards = np.cumsum(counts[::-1])[::-1]
    last = np.searchsorted(labels, labels, side="right")
    after = np.append(backwards, 0)[last]
    sums: IntArray = backwards - after
    return sums


class RankingMetric(Metric):
    """A metric that needs the scores of all samples; its state is made of them, and grows with their number."""

    predicts = ("classes", "labels")
    all_classes_together = False

    def of(self, ranks: Ranks) -> float:
        """The metric of some ranks: the mean over the classes that have one.

        NaN where none has, or where there is no order.
        """
        if len(ranks.undefined):
            return float("nan")
        _, values = self.of_each(ranks)
        return float(values.mean()) if len(values) else float("nan")

    def of_each(self, ranks: Ranks) -> tuple[IntArray, FloatArray]:
        """The classes that have a value, sorted, and their values, whether their scores are numbers or not."""
        raise NotImplementedError

    def of_ranked_classes(self, ranks: Ranks) -> dict[str, FloatArray]:
        """Its `class_columns`: a value per class, NaN where a class has none."""
        present, values = self.of_each(ranks)
        found = np.full(self.outputs, np.nan)
        found[present] = values
        found[ranks.undefined] = np.nan
        return dict.fromkeys(self.class_columns, found)

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """There is no sum that it could be computed from."""
        raise NotImplementedError


@METRICS.register("average_precision")
class AveragePrecision(RankingMetric):
    """The mean over classes of average precision: the precision at the score of every right one, averaged.

    Classes that never are right have none and are left out. FLAIR's C-AP.
    """

    info = MetricInfo("average_precision", "average precision", low=0.0, high=1.0)
    class_columns: tuple[str, ...] = ("average_precision",)

    def of_each(self, ranks: Ranks) -> tuple[IntArray, FloatArray]:
        """Of the classes that are right at least once."""
        if not len(ranks.labels):
            return ranks.labels, np.empty(0)
        precision = ranks.right_from / ranks.all_from
        begins = _beginnings(ranks.labels)
        sums = np.add.reduceat(precision * ranks.right, begins)
        return ranks.labels[begins], sums / ranks.right_from[begins]


@METRICS.register("micro_average_precision")
class MicroAveragePrecision(AveragePrecision):
    """Average precision of all classes together, as if they were one. FLAIR's O-AP."""

    info = MetricInfo("micro_average_precision", "micro average precision", low=0.0, high=1.0)
    all_classes_together = True
    class_columns: tuple[str, ...] = ()


@METRICS.register("auc")
class AreaUnderCurve(RankingMetric):
    """The area under the ROC curve, mean over classes: how likely a right one scores higher than a wrong one.

    Classes that are always or never right have none and are left out.
    """

    info = MetricInfo("auc", "AUC", low=0.0, high=1.0)
    class_columns: tuple[str, ...] = ("auc",)

    def of_each(self, ranks: Ranks) -> tuple[IntArray, FloatArray]:
        """Of the classes that are sometimes right; equal scores count half."""
        if not len(ranks.labels):
            return ranks.labels, np.empty(0)
        begins = _beginnings(ranks.labels)
        positives = ranks.right_from[begins]
        negatives = ranks.samples - positives
        repeats = np.diff(np.append(begins, len(ranks.labels)))
        wrong_equal = ranks.all_equal - ranks.right
        wrong_below = np.repeat(negatives, repeats) - (ranks.all_from - ranks.right_from)
        wins = np.add.reduceat(ranks.right * (2 * wrong_below + wrong_equal), begins)  # twice, to stay with integers
        defined = negatives > 0
        return ranks.labels[begins][defined], wins[defined] / (2.0 * positives[defined] * negatives[defined])


def _beginnings(labels: IntArray) -> IntArray:
    """Where each class begins."""
    return np.flatnonzero(np.append(True, labels[1:] != labels[:-1]))


def ranking_scores(outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What samples are ranked by, and which classes are right: both ``[samples, classes]``."""
    if are_labels(outputs, batch):
        return outputs, batch["y"] > 0
    return outputs.log_softmax(-1), one_hot(batch["y"], outputs)
