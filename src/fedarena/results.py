"""Results as Python gets them: a run with its tables, plots and model, and several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from fedarena import display
from fedarena.analysis.leading_metric import leading_metric, metrics_of
from fedarena.core.errors import BadInputError
from fedarena.core.registry import nearest
from fedarena.core.words import counted
from fedarena.display.report.attack.judged import Judged, judged
from fedarena.display.report.classes.table import class_table
from fedarena.display.report.privacy.spent import PrivacySpent, privacy_spent
from fedarena.display.reporting import REPORT_FILE
from fedarena.metrics.info import MetricInfo
from fedarena.runs.summary import classes_by_frequency, metrics_of_run, strata
from fedarena.runs.trained_model import Which, trained_model
from fedarena.storage.run_data import RunData, label_runs, read_predictions

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Result(RunData):
    """A run's tables (`rounds`, `clients`, `timings`: Arrow tables; ``.to_pandas()`` converts), summary and plots."""

    def plot(self, metric: str | None = None) -> go.Figure:
        """A metric over rounds with the spread over clients; by default the one that the run leads with."""
        return display.metric_figure([self], None if metric is None else self._metric(metric))

    @property
    def privacy(self) -> PrivacySpent | None:
        """What the run spent of its privacy, of which budget, by which bound; None if it is not private.

        `rounds` has ε round by round.
        """
        return privacy_spent(self)

    @property
    def judged(self) -> Judged:
        """Which shares of the updates of corrupted and of honest clients a defence rejected, over all rounds."""
        return judged([self])

    def by_attribute(self, name: str, round: int | None = None) -> pa.Table:
        """Every metric by what is known about clients, such as ``play``: one row per value, most samples first.

        It is about the last evaluated round, or `round`.
        """
        known = (
            [] if self.attributes is None else [known for known in self.attributes.column_names if known != "client"]
        )
        if self.attributes is None or name not in known:
            raise BadInputError(
                f"Nothing called {name!r} is known about the clients of {self.name}; {nearest(name, known)}"
            )
        metrics = metrics_of_run(self)
        found = strata(self.clients, self.attributes.select(["client", name]), round, metrics)
        if not found:
            raise BadInputError(
                f"{self.name} has not evaluated any client" + ("" if round is None else f" in round {round}")
            )
        columns = dict.fromkeys(key for row in found[name] for key in row)  # a group may lack a score that others have
        return pa.table({column: [row.get(column) for row in found[name]] for column in columns})

    def by_class(self, round: int | None = None) -> pa.Table:
        """The scores of every class, the most frequent one first, in the last evaluated round or another.

        `stratum` is the third of the classes (``head``, ``middle``, ``tail``) by how many training samples have them.
        """
        if not len(self.classes):
            raise BadInputError(
                f"{self.name} tells nothing of single classes: none of its metrics is a mean over classes, such as "
                "average_precision or macro_f1 (task.metrics)"
            )
        found = classes_by_frequency(self.classes, round)
        if not len(found):
            raise BadInputError(f"{self.name} has not evaluated any class in round {round}")
        return found

    def model(self, which: Which = "last", *, client: str | None = None) -> nn.Module:
        """The trained model with its weights, as a plain module of torch in evaluation mode.

        It is that of the last round, or the ``"best"`` one by the leading metric, in runs with ``keep="best"``. For a
        method with personal models, `client` is whose own model it shall be.
        """
        return trained_model(self.path, which, client)

    def state_dict(self, which: Which = "last", *, client: str | None = None) -> dict[str, Tensor]:
        """The weights of `model`, by torch's names."""
        return self.model(which, client=client).state_dict()

    @property
    def predictions(self) -> pa.Table:
        """What the last model answered for every sample it was evaluated on, with ``evaluation.predictions=true``."""
        return read_predictions(self.path)

    def write_report(self, path: Path | str | None = None) -> Path:
        """Writes the HTML report, by default as ``report.html`` in the run folder."""
        return display.write_report([self], Path(path) if path else self.path / REPORT_FILE)

    def __repr__(self) -> str:
        metric = leading_metric([self])
        final = self.summary.get("final") or {}
        return (
            f"<Result {self.name!r} {self.status}, {metric.label} {metric.text(final.get(metric.name))}, {self.path}>"
        )

    def _metric(self, name: str) -> MetricInfo:
        known = {metric.name: metric for metric in metrics_of([self])}
        if name not in known:
            raise BadInputError(f"{self.name} has no metric {name!r}; {nearest(name, known)}")
        return known[name]


class Comparison(Sequence[Result]):
    """Several runs, labelled by what distinguishes them; runs of one label with different seeds are one method.

    It is a sequence of the runs: ``comparison[0]`` is the first, and ``comparison["name"]`` the one of that name.
    `failures` has a sentence for every run of a suite that failed.
    """

    def __init__(self, runs: Sequence[Result], failures: Sequence[str] = ()):
        if not runs:
            raise BadInputError("There are no runs to compare; give results, or folders of runs")
        self.runs: list[Result] = label_runs(list(runs))  # type: ignore[assignment]
        self.failures = list(failures)

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.runs)

    @overload
    def __getitem__(self, place: int | str) -> Result: ...
    @overload
    def __getitem__(self, place: slice) -> list[Result]: ...
    def __getitem__(self, place: int | str | slice) -> Result | list[Result]:
        if not isinstance(place, str):
            return self.runs[place]
        named = {run.name: run for run in self.runs}
        if place not in named:
            raise BadInputError(f"There is no run called {place!r}; {nearest(place, named)}")
        return named[place]

    @property
    def methods(self) -> list[str]:
        """The labels, in the order in which they first appear."""
        return list(dict.fromkeys(run.label for run in self.runs))

    def table(self, metric: str | None = None) -> pa.Table:
        """One row per method after its last evaluated round, as the report's table of results has it.

        Numbers are means over seeds, and ``…_std`` their standard deviation, empty for a single seed. The score is that
        of `metric`, by default the one that the runs lead with; it is empty for methods that do not measure it.
        """
        found = display.final_table(self.runs, None if metric is None else self._metric(metric))
        name = found.metric.name
        of_method = {row.label: row for row in found.rows}
        no_score: dict[str, Any] = dict.fromkeys(("score", "score_by_client", "score_worst_decile", "personal_score"))
        for label in self.methods:
            if label not in of_method:
                (row,) = display.final_table([run for run in self.runs if run.label == label]).rows
                of_method[label] = replace(row, **no_score)
        metrics = dict.fromkeys(known for row in of_method.values() for known in row.metrics)
        rows = []
        for row in (of_method[label] for label in self.methods):
            scores = {
                name: row.score,
                f"{name}_by_client": row.score_by_client,
                f"{name}_worst_decile": row.score_worst_decile,
                f"personal_{name}": row.personal_score,
                **{known: row.metrics.get(known) for known in metrics},
                "epsilon": row.epsilon,
                "attack_success": row.attack_success,
                "bytes": row.bytes,
                "flops": row.flops,
                "virtual_hours": row.hours,
                "wall_seconds": row.wall_seconds,
            }
            values: dict[str, Any] = {
                "method": row.label, "seeds": len(row.seeds), "status": row.status, "round": row.round
            }  # fmt: skip
            for column, spread in scores.items():
                values |= {column: spread and spread.mean, f"{column}_std": spread and spread.std}
            rows.append(values)
        table = pa.Table.from_pylist(rows)
        return table.select([c for c in table.column_names if table[c].null_count < len(table)])

    def by_class(self, metric: str | None = None) -> pa.Table:
        """A row per class, the most frequent one first, with a column for every method: means over seeds.

        `metric` is a column of the tables of classes, by default average precision where runs have it. Methods must be
        evaluated on the same clients' samples.
        """
        found = class_table(self.runs, metric)
        columns: dict[str, Any] = {
            "class": found.names,
            "stratum": found.strata,
            "train_samples": found.train_samples,
            "samples": found.samples,
            "clients": found.clients,
        }
        for label, scores in found.methods.items():
            columns[label] = pa.array(scores.means, mask=~np.isfinite(scores.means))
        return pa.table(columns)

    def robustness(self, metric: str | None = None) -> pa.Table:
        """A row for every attack, defence and share of corrupted clients: means over seeds, empty where all diverged.

        The score is that of `metric`, by default the one that the runs lead with; or their ``"attack_success"``.
        """
        from fedarena.display.report.attack.matrix import SUCCESS, robustness_matrix

        column = SUCCESS if metric == SUCCESS else (self._metric(metric) if metric else leading_metric(self.runs)).name
        found = robustness_matrix(self.runs, column)
        if found is None:
            raise BadInputError(
                "These runs are no matrix: there must be two defences or more, with several attacks or several shares"
            )
        return pa.Table.from_pylist(
            [
                {
                    "attack": cell.attack,
                    "defence": cell.defence,
                    "share": cell.share,
                    column: cell.score and cell.score.mean,
                    f"{column}_std": cell.score and cell.score.std,
                }
                for cell in found.cells.values()
            ]
        )

    def to_pandas(self) -> Any:
        """The table as a data frame of pandas."""
        return self.table().to_pandas()

    def plot(self, metric: str | None = None) -> go.Figure:
        """A metric over rounds, a curve per method; by default the one that the runs lead with."""
        return display.metric_figure(self.runs, None if metric is None else self._metric(metric))

    def write_report(
        self, path: Path | str = "report.html", *, title: str | None = None, levels: Sequence[float] | None = None
    ) -> Path:
        """Writes the HTML report that compares the runs; see `fedarena.write_report`."""
        return display.write_report(self.runs, path, title, levels)

    def _metric(self, name: str) -> MetricInfo:
        known = {metric.name: metric for metric in metrics_of(self.runs)}
        if name not in known:
            raise BadInputError(f"These runs have no metric {name!r}; {nearest(name, known)}")
        return known[name]

    def __repr__(self) -> str:
        return f"<Comparison of {counted(len(self.runs), 'run')}: {', '.join(self.methods)}>"

    def _repr_html_(self) -> str:
        shown: str = self.to_pandas()._repr_html_()
        return shown
