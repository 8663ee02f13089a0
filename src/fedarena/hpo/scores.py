"""Names of scores, which way they are better, and what a course has come to by a round."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.metrics.info import LOSS, MetricInfo
from fedarena.metrics.metric import make_metric
from fedarena.train.engine import Part

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
GUIDE = "validation_loss"  # the round in which it is smallest is the one that counts
EPSILON = "epsilon"
VARIANCE = "_variance"  # over clients
_OVER_CLIENTS = re.compile(r"_(by_client|worst_decile|p\d+)$")


def score_name(part: str, metric: str) -> str:
    """A metric on a part of the samples.

    >>> score_name("test", "accuracy")
    'test_accuracy'
    """
    return f"{part}_{metric}"


def info_of(score: str) -> MetricInfo:
    """What is known about a score: that of its metric; a variance over clients, or privacy spent, is to be small."""
    if score == EPSILON:
        return MetricInfo(EPSILON, "ε", higher_is_better=False, low=0.0)
    part, _, metric = score.partition("_")
    if part not in PARTS or not metric:
        raise BadInputError(
            f"There is no score {quoted(score)}; scores are called like validation_loss, test_accuracy, "
            "validation_accuracy_worst_decile or validation_loss_variance"
        )
    if metric.endswith(VARIANCE):
        info_of(score.removesuffix(VARIANCE))
        return MetricInfo(score, f"variance of {metric.removesuffix(VARIANCE)} over clients", higher_is_better=False)
    metric = _OVER_CLIENTS.sub("", metric)
    return LOSS if metric == LOSS.name else make_metric(metric).info


def best_rounds(loss: FloatArray) -> IntArray:
    """For every place along the last axis, that of the smallest loss so far; the first of equal ones.

    A loss that is not finite ends a course: what comes after it does not count.

    >>> best_rounds(np.array([2.0, 3.0, 1.0, float("nan"), 0.5])).tolist()
    [0, 0, 2, 2, 2]
    """
    finite = np.where(np.logical_and.accumulate(np.isfinite(loss), axis=-1), loss, np.inf)
    best = np.minimum.accumulate(finite, axis=-1)
    before = np.concatenate([np.full_like(best[..., :1], np.inf), best[..., :-1]], axis=-1)
    places = np.where(finite < before, np.arange(loss.shape[-1]), 0)
    found: IntArray = np.maximum.accumulate(places, axis=-1)
    return found


def best_so_far(scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Scores round by round as those of the round, up to each, in which the validation loss was smallest.

    Privacy is spent whether or not a round was the best. Where no loss was finite yet, losses are infinite.
    """
    places = best_rounds(np.asarray(scores[GUIDE], dtype=np.float64))
    found = {
        name: np.asarray(values, dtype=np.float64)
        if name == EPSILON
        else np.take_along_axis(np.asarray(values, dtype=np.float64), places, -1)
        for name, values in scores.items()
    }
    return marked_where_failed(found)


def marked_where_failed(scores: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Scores of which, where the validation loss is not finite, none says anything: losses are infinite there."""
    failed = ~np.isfinite(scores[GUIDE])
    return {
        name: values if name == EPSILON else np.where(failed, _worst(name), values) for name, values in scores.items()
    }


def _worst(score: str) -> float:
    return np.nan if info_of(score).higher_is_better else np.inf
