"""Every class beside every method, and what became of frequent and of rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.display.report.methods import Method, column, methods_of
from fedarena.display.report.tables.final_row import Spread
from fedarena.metrics import PERSONAL
from fedarena.metrics.classes import rank_correlation
from fedarena.metrics.info import MetricInfo
from fedarena.runs.summary import class_frequency, class_scores_in, classes_by_frequency, last_classes
from fedarena.storage.run_data import RunData

FloatArray = NDArray[np.float64]

# Scores of classes, in the order in which they are preferred where nobody asks for one.
SCORES: Final = {
    name: MetricInfo(name, label, low=0.0, high=1.0)
    for name, label in {
        "average_precision": "average precision",
        "f1": "F1",
        "recall": "recall",
        "precision": "precision",
        "auc": "AUC",
    }.items()
}


@dataclass(frozen=True)
class ClassScoresOf:
    """How a method did on every class, over the seeds that count; a row per seed."""

    method: str  # its label; several may be of one method
    is_personal: bool  # whether it is about clients with their own models
    by_seed: FloatArray  # ``[seeds, classes]``, NaN where a class has no score

    @property
    def means(self) -> FloatArray:
        """Over the seeds that have a score."""
        defined = np.isfinite(self.by_seed)
        found = np.full(self.by_seed.shape[1], np.nan)
        np.divide(np.where(defined, self.by_seed, 0.0).sum(0), defined.sum(0), out=found, where=defined.any(0))
        return found

    def spread(self, classes: NDArray[np.bool_]) -> Spread | None:
        """Over seeds, of the mean over some classes as far as they have a score."""
        each = [row[classes & np.isfinite(row)] for row in self.by_seed]
        return Spread.of([float(row.mean()) for row in each if len(row)])


@dataclass(frozen=True)
class ClassTable:
    """The classes that some methods predict, the most frequent one first, and a score of each under every method."""

    metric: MetricInfo
    names: list[str]
    strata: list[str]
    frequency: NDArray[np.int64]  # by which they are in this order
    train_samples: list[int | None]
    samples: list[int]  # evaluated, that have the class
    clients: list[int]
    all_samples: int
    all_clients: int
    methods: dict[str, ClassScoresOf]

    def stratum(self, name: str) -> NDArray[np.bool_]:
        """Which classes are of a third."""
        return np.array([stratum == name for stratum in self.strata], dtype=np.bool_)

    @property
    def everything(self) -> NDArray[np.bool_]:
        """All classes."""
        return np.ones(len(self.names), dtype=np.bool_)

    @property
    def best(self) -> str | None:
        """The method with the highest mean over all classes, if there is any."""
        found = {label: scores.spread(self.everything) for label, scores in self.methods.items()}
        known = {label: spread.mean for label, spread in found.items() if spread is not None}
        return max(known, key=lambda label: known[label], default=None)

    def kept_share(self, label: str, stratum: str) -> float | None:
        """What share of the best method's score a method has on a third of the classes."""
        best = self.best
        own, reference = (
            None if one is None else self.methods[one].spread(self.stratum(stratum)) for one in (label, best)
        )
        return own.mean / reference.mean if own is not None and reference is not None and reference.mean else None

    def correlation(self, label: str) -> float | None:
        """Spearman's rank correlation of how frequent a class is and its score."""
        values = self.methods[label].means
        known = np.isfinite(values)
        return rank_correlation(self.frequency[known], values[known])


def tells_classes(run: RunData) -> bool:
    """Whether a run has scores of single classes."""
    return len(run.classes) > 0


def check_tells_classes(runs: Sequence[RunData]) -> None:
    """Raises where no run has scores of single classes."""
    if not any(map(tells_classes, runs)):
        raise BadInputError(
            "These runs tell nothing of single classes: none of their metrics is a mean over classes, such as "
            "average_precision or macro_f1 (task.metrics)"
        )


def class_tables(runs: Sequence[RunData], metric: str | None = None) -> list[ClassTable]:
    """A table for every list of classes that is predicted; runs without scores of classes are in none."""
    found: dict[tuple[str, ...], list[RunData]] = {}
    for run in filter(tells_classes, runs):
        found.setdefault(tuple(last_classes(run.classes)["class"].to_pylist()), []).append(run)
    return [_table(members, metric) for members in found.values()]


def class_table(runs: Sequence[RunData], metric: str | None = None) -> ClassTable:
    """The only such table."""
    check_tells_classes(runs)
    found = class_tables(runs, metric)
    if len(found) > 1:
        raise BadInputError("These runs predict different classes; look at those that predict the same")
    return found[0]


def _table(runs: Sequence[RunData], metric: str | None) -> ClassTable:
    scores = dict.fromkeys(name.removeprefix(PERSONAL) for run in runs for name in class_scores_in(run.classes))
    if metric is not None and metric not in scores:
        raise BadInputError(f"These runs have no {metric!r} of classes; {nearest(metric, scores)}")
    chosen = metric or next((name for name in SCORES if name in scores), next(iter(scores)))
    info = SCORES.get(chosen) or MetricInfo(chosen, chosen.replace("_", " "))
    first = classes_by_frequency(runs[0].classes)
    methods: dict[str, ClassScoresOf] = {}
    for method in methods_of(runs):
        for prefix, label in (("", method.label), (PERSONAL, f"{method.label}, personal")):
            if rows := _by_seed(method, prefix + chosen):
                in_order = np.stack(rows)[:, first["index"].to_numpy()]
                methods[label] = ClassScoresOf(method.label, prefix == PERSONAL, in_order)
    last = runs[0].clients.filter(pc.equal(runs[0].clients["round"], pc.max(runs[0].clients["round"])))
    return ClassTable(
        info,
        first["class"].to_pylist(),
        first["stratum"].to_pylist(),
        class_frequency(first),
        first["train_samples"].to_pylist(),
        first["samples"].to_pylist(),
        first["clients"].to_pylist(),
        int(column(last, "predictions").sum()),
        len(last),
        methods,
    )


def _by_seed(method: Method, name: str) -> list[FloatArray]:
    """A score of every class, in the order of their numbers, of every run that counts."""
    counted = [run for run in method.counted if tells_classes(run) and name in run.classes.column_names]
    return [column(last_classes(run.classes), name) for run in counted]
