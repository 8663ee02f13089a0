"""Runs grouped into methods, and the numbers that tables and figures are made of.

Runs that differ only in their seed share a label; together they are one *method*. Averages over seeds use the
finished runs. Only where a method has none do unfinished ones stand in, and the tables then say so. A seed counts
once: the same seed again gives the same numbers, and would make a spread over seeds look smaller than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedarena.analysis.distinct import distinct_runs
from fedarena.analysis.leading_metric import baseline_of
from fedarena.core.errors import BadInputError
from fedarena.metrics import elapsed_hours
from fedarena.metrics.info import MetricInfo
from fedarena.storage.job_table import JobTable
from fedarena.storage.run_data import RunData
from fedarena.storage.tables import sent_bytes

FloatArray = NDArray[np.float64]
_EVALUATED = "eval_clients"  # a column of the rounds that has a value only where a round was evaluated


@dataclass(frozen=True)
class Method:
    """The runs of one label, each of another seed, in the order they were given."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the configuration."""
        return str(self.runs[0].config.get("algorithm", {}).get("name", ""))

    @property
    def counted(self) -> tuple[RunData, ...]:
        """The runs that enter averages: finished ones, or all evaluated ones where none is finished."""
        evaluated = tuple(run for run in self.runs if was_evaluated(run))
        return tuple(run for run in evaluated if run.status == "finished") or evaluated

    def mean_final(self, name: str) -> float:
        """A column of the last evaluated round, averaged over the counted runs."""
        return float(np.mean([evaluation_curve(run)[name][-1] for run in self.counted]))

    def mean_curve(self) -> Mapping[str, FloatArray]:
        """Evaluated rounds, averaged over the counted runs: rounds that all of them evaluated, and the end of each.

        Runs that end by the clock end after different rounds; the last point is the mean of all these ends.
        """
        curves = [evaluation_curve(run) for run in self.counted]
        if not curves:
            return {}
        common = curves[0]["round"]
        for curve in curves[1:]:
            common = np.intersect1d(common, curve["round"])
        ends = [curve["round"][-1] for curve in curves if curve["round"].size]
        at_end: list[Any] = [False] * len(curves)
        if len(set(ends)) > 1 and all(run.status == "finished" for run in self.counted):
            common = common[common < min(ends)]
            at_end = [curve["round"] == curve["round"][-1] for curve in curves]
        kept = [np.isin(curve["round"], common) | end for curve, end in zip(curves, at_end, strict=True)]
        return _Columns(
            [name for name in curves[0] if all(name in curve for curve in curves)],
            lambda name: np.mean([curve[name][rows] for curve, rows in zip(curves, kept, strict=True)], axis=0),
        )


def methods_of(runs: Sequence[RunData]) -> tuple[Method, ...]:
    """Groups distinct runs by label, in order of first appearance."""
    if not runs:
        raise BadInputError("There is no run to report on; give at least one run's folder.")
    groups: dict[str, list[RunData]] = {}
    for run in distinct_runs(runs):
        groups.setdefault(run.label, []).append(run)
    return tuple(Method(label, tuple(members)) for label, members in groups.items())


def mean_curves(runs: Sequence[RunData]) -> Iterator[tuple[Method, Mapping[str, FloatArray]]]:
    """Every method that was evaluated, with the means over its seeds."""
    for method in methods_of(runs):
        curve = method.mean_curve()
        if curve and curve["round"].size:
            yield method, curve


def column(table: pa.Table, name: str) -> FloatArray:
    """A column as floats; null becomes NaN."""
    return _floats(table.column(name))


def _floats(found: pa.ChunkedArray) -> FloatArray:
    values = pc.cast(found, pa.float64(), safe=False)
    return np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)


def evaluation_curve(run: RunData) -> Mapping[str, FloatArray]:
    """All columns of the evaluated rounds, and `hours`, `bytes`, `flops` and `joules` spent until each of them.

    Hours are of virtual time and NaN in a run without a clock; joules are NaN where they are not known. Bytes are those
    that were planned; `real_bytes` are those that were really sent, where that depends on what was learned.
    """
    rounds = run.rounds
    evaluated = rounds.column(_EVALUATED).is_valid().to_numpy()

    def amounts(name: str) -> FloatArray:
        return np.nan_to_num(column(rounds, name))

    def sent(name: str) -> FloatArray:
        return np.nan_to_num(_floats(sent_bytes(rounds, name)))

    spent: dict[str, Callable[[], FloatArray]] = {
        "bytes": lambda: amounts("bytes_down") + amounts("bytes_up"),
        "real_bytes": lambda: sent("bytes_down") + sent("bytes_up"),
        "flops": lambda: amounts("flops"),
        "joules": lambda: _known_joules(rounds),
    }

    def computed(name: str) -> FloatArray:
        if name == "hours":
            hours = elapsed_hours(column(rounds, "end_seconds")) if has_clock(run) else np.full(len(rounds), np.nan)
            return np.asarray(hours[evaluated])
        return np.asarray((np.cumsum(spent[name]()) if name in spent else column(rounds, name))[evaluated])

    return _Columns([*rounds.column_names, *spent, "hours"], computed)


class _Columns(Mapping[str, FloatArray]):
    """Columns that are computed when they are first asked for: most tables and figures need two of dozens."""

    def __init__(self, names: Iterable[str], compute: Callable[[str], FloatArray]):
        self._found: dict[str, FloatArray | None] = dict.fromkeys(names)
        self._compute = compute

    def __getitem__(self, name: str) -> FloatArray:
        found = self._found[name]
        if found is None:
            self._found[name] = found = self._compute(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _known_joules(rounds: pa.Table) -> FloatArray:
    joules = column(rounds, "joules")
    return np.nan_to_num(joules) if np.isfinite(joules).any() else joules


def has_clock(run: RunData) -> bool:
    """Whether virtual time passes in a run; it does not in the ideal world."""
    ends = column(run.rounds, "end_seconds")
    return len(ends) > 0 and bool(ends[-1] > ends[0])


def jobs_in(run: RunData) -> JobTable | None:
    """The jobs of a run; None where no virtual time passes or no job has ended."""
    return JobTable.from_table(run.jobs) if has_clock(run) and run.jobs.num_rows else None


def jobs_of(method: Method) -> list[JobTable]:
    """The jobs of each counted run that has any."""
    return [jobs for run in method.counted if (jobs := jobs_in(run)) is not None]


def training_clients(run: RunData) -> int | None:
    """How many clients could have been invited; None where the run does not say."""
    known = (run.summary.get("participation") or run.fleet or {}).get("clients")
    return None if known is None else int(known)


def was_evaluated(run: RunData) -> bool:
    """Whether any of its rounds was evaluated."""
    return bool(run.rounds.column(_EVALUATED).null_count < run.rounds.num_rows)


def last_evaluation(run: RunData) -> dict[str, Any] | None:
    """The row of the last evaluated round, or None before the first evaluation."""
    evaluated = run.rounds.filter(run.rounds.column(_EVALUATED).is_valid())
    return evaluated.slice(evaluated.num_rows - 1).to_pylist()[0] if evaluated.num_rows else None


def client_results(run: RunData, metric: MetricInfo) -> tuple[FloatArray, FloatArray]:
    """Samples and score of every client that has samples, in the run's last evaluated round."""
    last = _last_clients(run)
    samples, score = column(last, "samples"), column(last, metric.name)
    measured = np.isfinite(score)
    return samples[measured], score[measured]


def scores_by_client(run: RunData, metric: MetricInfo) -> dict[str, float]:
    """The score of every client that has one, in the run's last evaluated round."""
    if metric.name not in run.clients.column_names:
        return {}
    last = _last_clients(run)
    found = last.filter(pa.array(np.isfinite(column(last, metric.name))))
    return dict(zip(found.column("client").to_pylist(), column(found, metric.name).tolist(), strict=True))


def samples_by_client(run: RunData) -> dict[str, int]:
    """How many samples every client has that was evaluated, in the run's last evaluated round."""
    last = _last_clients(run)
    return dict(zip(last.column("client").to_pylist(), last.column("samples").to_pylist(), strict=True))


def _last_clients(run: RunData) -> pa.Table:
    """The clients with samples in the last evaluated round."""
    rounds = run.clients.column("round")
    last = run.clients.filter(pc.equal(rounds, pc.max(rounds)))
    return last.filter(pc.greater(last.column("samples"), 0))


def conditions(run: RunData) -> str:
    """What must be the same for scores of two runs to mean the same: the federation, and who is evaluated on what."""
    evaluation = run.config.get("evaluation") or {}
    samples = (run.config.get("federation"), run.data_fingerprint("federation"))
    return repr((*samples, run.evaluated_part, evaluation.get("max_clients")))


def baselines(runs: Sequence[RunData], metric: MetricInfo) -> dict[float, str]:
    """What each trivial predictor scores that the runs were compared with, and its rule."""
    found: dict[float, str] = {}
    for run in runs:
        if (baseline := baseline_of(run, metric)) is not None:
            found.setdefault(*baseline)
    return found
