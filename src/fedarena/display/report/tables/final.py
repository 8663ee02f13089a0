"""The table of results: every method after its last evaluated round, in the metric that runs lead with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedarena.analysis.leading_metric import leading_metric, metrics_of, runs_with
from fedarena.display.report.methods import methods_of
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
    level: float | None  # of the metric, the same for all; None without a clock
    rows: list[FinalRow]

    @cached_property
    def columns(self) -> list[Column]:
        """The columns that have something to say about these rows."""

        def known(column: Column) -> bool:
            return column.value is not None and any(column.value(row) is not None for row in self.rows)

        everything = final_columns(self.metric, self.others, self.level)
        return [column for column in everything if not column.shown_if_known or known(column)]

    def column(self, key: str) -> Column:
        """A column, shown or not."""
        return next(column for column in final_columns(self.metric, self.others, self.level) if column.key == key)

    @property
    def winner(self) -> FinalRow | None:
        """The best row, the first of several; None where no row has a score."""
        return self.best_by(lambda row: row.score)

    def best_by(self, score: Callable[[FinalRow], Spread | None]) -> FinalRow | None:
        """The row that is best in a score of the leading metric."""
        sign = 1 if self.metric.higher_is_better else -1
        found = [(sign * value.mean, row) for row in comparable(self.rows) if (value := score(row)) is not None]
        return max(found, key=lambda pair: pair[0])[1] if found else None


def final_table(runs: Sequence[RunData], metric: MetricInfo | None = None) -> FinalTable:
    """One row per label, in the order the labels first appear, of the runs that have the metric."""
    metric = metric or leading_metric(runs)
    methods = methods_of(runs_with(runs, metric))
    counted = [run for method in methods for run in method.runs]
    others = tuple(other for other in metrics_of(counted) if other.name != metric.name)
    level = comparing_level(methods, metric)
    return FinalTable(metric, others, level, [final_row(method, metric, others, level) for method in methods])
