"""Scores of every class: what an average over classes hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedarena.metrics.class_strata import HEAD, STRATA, TAIL, class_strata
from fedarena.metrics.metric import FloatArray, Metric, mean_of_defined

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassScores:
    """How a model did on each class: a row per class."""

    samples: IntArray  # predictions for which it is right
    clients: IntArray  # that have such a sample
    values: dict[str, FloatArray]  # by name, such as "average_precision"; NaN where a class has none


def class_columns(metrics: Sequence[Metric]) -> list[str]:
    """What these metrics tell of every class; nothing where there is but one."""
    return list(dict.fromkeys(name for m in metrics if m.outputs > 1 for name in m.class_columns))


def summarize_classes(
    frequency: IntArray, names: Sequence[str], values: Mapping[str, FloatArray]
) -> dict[str, dict[str, Any]]:
    """How fair a model is to classes of different frequency: for every score of classes, what became of whom.

    ``head``, ``middle`` and ``tail`` are means over the thirds of the classes that most, some and fewest samples have,
    as far as they have a score; ``gap`` is how much more the head has than the tail, and ``tail_share`` what share of
    the head's score the tail has. ``spread`` is the standard deviation over classes, ``rank_correlation`` Spearman's
    of score and frequency (ties have their mean rank), and ``worst`` and ``worst_class`` are the least score and whose
    it is. What does not exist is None.
    """
    strata = class_strata(frequency)
    found: dict[str, dict[str, Any]] = {}
    for name, scores in values.items():
        defined = np.isfinite(scores)
        means = {stratum: _number(mean_of_defined(scores[strata == number])) for number, stratum in enumerate(STRATA)}
        head, tail = means[HEAD], means[TAIL]
        worst = int(np.nanargmin(scores)) if defined.any() else None
        found[name] = {
            "classes": int(defined.sum()),
            **means,
            "gap": None if head is None or tail is None else head - tail,
            "tail_share": tail / head if head and tail is not None else None,
            "spread": float(scores[defined].std()) if defined.any() else None,
            "rank_correlation": rank_correlation(frequency[defined], scores[defined]),
            "worst": None if worst is None else float(scores[worst]),
            "worst_class": None if worst is None else names[worst],
        }
    return found


def rank_correlation(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float | None:
    """Spearman's rank correlation; None where one of them does not vary.

    >>> rank_correlation(np.array([1, 5, 9]), np.array([0.1, 0.2, 0.9]))
    1.0
    """
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    ranks = np.stack([_ranks(one), _ranks(other)])
    ranks -= ranks.mean(1, keepdims=True)
    return float((ranks[0] * ranks[1]).sum() / np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))


def _ranks(values: npt.NDArray[Any]) -> FloatArray:
    """The place of each among all; equal ones have the mean of their places."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def _number(value: FloatArray) -> float | None:
    return float(value) if np.isfinite(value) else None
