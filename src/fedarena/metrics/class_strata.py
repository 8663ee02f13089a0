"""Metrics of frequent and of rare classes: the classes are divided into thirds by how many training samples have them.

The head is the third that most training samples have, the tail the third that fewest have. Which classes these are is
the same for all clients, parts and methods. Averages over all classes hide what rare ones lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.metrics.classification import ClassConfusions, class_recall
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.metric import METRICS, FloatArray, Metric, mean_of_defined
from fedarena.metrics.ranking import AveragePrecision, IntArray, Ranks

HEAD, MIDDLE, TAIL = STRATA = ("head", "middle", "tail")


def class_strata(counts: Sequence[int] | npt.NDArray[np.int64]) -> IntArray:
    """The third that each class belongs to: 0 for those that most samples have, 2 for those that fewest have.

    Of classes that equally many have, the first is the more frequent one.

    >>> class_strata([5, 90, 0, 40, 7, 60]).tolist()
    [2, 0, 2, 1, 1, 0]
    """
    strata = np.empty(len(counts), dtype=np.int64)
    most_first = np.argsort(-np.asarray(counts, dtype=np.int64), kind="stable")
    for number, classes in enumerate(np.array_split(most_first, len(STRATA))):
        strata[classes] = number
    return strata


class _OfStratum(Metric):
    """A metric of the classes of one stratum."""

    stratum: ClassVar[str]

    def __init__(self, outputs: int = 1):
        super().__init__(outputs)
        self._chosen: npt.NDArray[np.bool_] | None = None  # which classes are of the stratum

    def know_classes(self, counts: Sequence[int] | None) -> None:
        """Finds out which classes are of the stratum."""
        if counts is None:
            raise BadInputError(
                f"The metric {self.name} needs to know how many training samples have each class, which nobody tells "
                "for this task; leave it out"
            )
        if len(counts) < len(STRATA):
            raise BadInputError(f"The metric {self.name} is for 3 classes or more; here, {len(counts)} are predicted")
        self._chosen = class_strata(counts) == STRATA.index(self.stratum)

    @property
    def chosen(self) -> npt.NDArray[np.bool_]:
        """Which classes are of the stratum."""
        assert self._chosen is not None, "it was told how frequent classes are"
        return self._chosen


class _StratumAveragePrecision(_OfStratum, AveragePrecision):
    """Average precision, mean over the classes of a stratum that occur."""

    def of(self, ranks: Ranks) -> float:
        """The mean over classes; NaN where none occurs, or one has no order."""
        if self.chosen[ranks.undefined].any():
            return float("nan")
        present, values = self.of_each(ranks)
        kept = values[self.chosen[present]]
        return float(kept.mean()) if len(kept) else float("nan")


class _StratumRecall(_OfStratum, ClassConfusions):
    """Recall, mean over the classes of a stratum that occur."""

    def value(self, state: FloatArray, count: FloatArray) -> FloatArray:
        """The mean over classes."""
        return mean_of_defined(class_recall(state)[..., self.chosen])


@METRICS.register("head_average_precision")
class HeadAveragePrecision(_StratumAveragePrecision):
    """Average precision, mean over the third of the classes that most training samples have."""

    info = MetricInfo("head_average_precision", "average precision of frequent classes", low=0.0, high=1.0)
    stratum = HEAD


@METRICS.register("middle_average_precision")
class MiddleAveragePrecision(_StratumAveragePrecision):
    """Average precision, mean over the third of the classes that are neither frequent nor rare."""

    info = MetricInfo("middle_average_precision", "average precision of middling classes", low=0.0, high=1.0)
    stratum = MIDDLE


@METRICS.register("tail_average_precision")
class TailAveragePrecision(_StratumAveragePrecision):
    """Average precision, mean over the third of the classes that fewest training samples have."""

    info = MetricInfo("tail_average_precision", "average precision of rare classes", low=0.0, high=1.0)
    stratum = TAIL


@METRICS.register("head_recall")
class HeadRecall(_StratumRecall):
    """Recall, mean over the third of the classes that most training samples have."""

    info = MetricInfo("head_recall", "recall of frequent classes", low=0.0, high=1.0)
    stratum = HEAD


@METRICS.register("middle_recall")
class MiddleRecall(_StratumRecall):
    """Recall, mean over the third of the classes that are neither frequent nor rare."""

    info = MetricInfo("middle_recall", "recall of middling classes", low=0.0, high=1.0)
    stratum = MIDDLE


@METRICS.register("tail_recall")
class TailRecall(_StratumRecall):
    """Recall, mean over the third of the classes that fewest training samples have."""

    info = MetricInfo("tail_recall", "recall of rare classes", low=0.0, high=1.0)
    stratum = TAIL
