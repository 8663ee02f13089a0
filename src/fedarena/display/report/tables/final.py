"""The table of results: every method after its last evaluated round, in the metric that runs lead with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedarena.analysis.leading_metric import leading_metric, metrics_of, runs_with
from fedarena.display.report.methods import has_clock, methods_of
from fedarena.display.report.tables.final_columns import Column, final_columns
from fedarena.display.report.tables.final_row import FinalRow, Spread, comparable, final_row
from fedarena.display.report.tables.reach import comparing_level
from fedarena.metrics.info import MetricInfo
from fedarena.storage.run_data import RunData


@dataclass(frozen=True)
class FinalTable:
    """All rows, the metric that they are compared by, and the other metrics that some of them have."""

    metric: MetricInfo
    others: tuple[MetricInfo, ...]
    levels: tuple[float, ...]  # of the metric, the same for all; those asked for, or one where there is a clock
    rows: list[FinalRow]

    @cached_property
    def columns(self) -> list[Column]:
        """The columns that have something to say about these rows."""

        def known(column: Column) -> bool:
            return column.value is not None and any(column.value(row) is not None for row in self.rows)

        return [column for column in self._everything if not column.shown_if_known or known(column)]

    @property
    def _everything(self) -> list[Column]:
        timed = any(row.hours is not None for row in self.rows)
        return final_columns(self.metric, self.others, self.levels, timed)

    def column(self, key: str) -> Column:
        """A column, shown or not."""
        return next(column for column in self._everything if column.key == key)

    @property
    def winner(self) -> FinalRow | None:
        """The best row, the first of several; None where no row has a score."""
        return self.best_by(lambda row: row.score)

    def best_by(self, score: Callable[[FinalRow], Spread | None]) -> FinalRow | None:
        """The row that is best in a score of the leading metric."""
        sign = 1 if self.metric.higher_is_better else -1
        found = [(sign * value.mean, row) for row in comparable(self.rows) if (value := score(row)) is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None


def final_table(
    runs: Sequence[RunData], metric: MetricInfo | None = None, levels: Sequence[float] | None = None
) -> FinalTable:
    """One row per label, in the order the labels first appear, of the runs that have the metric.

    `levels` of it are those that the table tells the cost of reaching; without any, where there is a clock, one is
    chosen that all methods reach.
    """
    metric = metric or leading_metric(runs)
    methods = methods_of(runs_with(runs, metric))
    everything = [run for method in methods for run in method.runs]
    counted = [run for method in methods for run in method.counted]
    others = tuple(other for other in metrics_of(everything) if other.name != metric.name)
    if levels is None:
        level = comparing_level(methods, metric)
        levels = () if level is None else (level,)
    cost = "hours" if any(map(has_clock, counted)) else "round"
    rows = [final_row(method, metric, others, levels, cost) for method in methods]
    return FinalTable(metric, others, tuple(levels), rows)
