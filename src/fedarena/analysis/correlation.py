"""Do metrics of a fleet tell how training on it goes? Correlations over runs, as in FLHetBench (CVPR 2024).

Metrics that end in -R go with the test accuracy of runs with a deadline, those that end in -T with the virtual hours
that runs which wait for their clients take to reach a target accuracy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.analysis.association import (
    FEWEST_FOR_INTERVAL,
    FEWEST_POINTS,
    Association,
    FloatArray,
    associate,
    pearson,
    spearman,
    varies,
)
from fedarena.core.errors import BadInputError
from fedarena.core.files import write_text
from fedarena.fleet.heterogeneity import PAPER_OPTIONS, HeterogeneityOptions, measure_heterogeneity
from fedarena.metrics import cost_to_level, elapsed_hours
from fedarena.runs.building import prepare
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.observer import Observer
from fedarena.simulate import Simulation
from fedarena.storage.run_data import RunData, flatten_settings

# By protocol: what its runs are judged by, and the end of the names of metrics that should foretell it.
OUTCOMES = {"deadline": "accuracy", "readiness": "hours"}
SUFFIXES = {"deadline": "-R", "readiness": "-T"}
# A default target is so far on the way from knowing nothing to what the run that learned least reached.
_TARGET_SHARE = 0.9
_TARGET_STEP = 0.01
# Of the rounds, over which the final accuracy is averaged, because single rounds scatter.
_LAST_SHARE = 0.1
# Settings that the metrics of a fleet do not depend on.
_IRRELEVANT = ("name", "evaluation", "engine", "client_states_ram_bytes")


@dataclass(frozen=True)
class Point:
    """Runs that differ by their seed alone: what the metrics say about their fleets, and what came out, on average."""

    label: str
    runs: tuple[str, ...]  # their names
    settings: dict[str, Any]  # those in which the runs of a group differ
    metrics: dict[str, float]
    outcome: float


@dataclass(frozen=True)
class Correlation:
    """A metric against what came out, over the points of a group; no coefficient where one of both does not vary."""

    metric: str
    x: FloatArray
    y: FloatArray
    pearson: Association | None
    spearman: Association | None


@dataclass(frozen=True)
class Group:
    """Runs of one folder, method and protocol."""

    name: str
    method: str
    protocol: str
    outcome: str  # accuracy or hours
    target: float | None  # the accuracy that hours lead to
    points: list[Point]
    correlations: list[Correlation]
    options: HeterogeneityOptions  # of the first run

    @property
    def title(self) -> str:
        """How the group is called."""
        return f"{self.name}, {self.method}"


@dataclass(frozen=True)
class Study:
    """All groups, and sentences about runs that are in none."""

    groups: list[Group]
    remarks: list[str]


def study_correlations(
    runs: Sequence[RunData],
    target: float | None = None,
    repetitions: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Study:
    """Measures the fleet of every run with a deadline or readiness, and correlates within each group."""
    remarks: list[str] = []
    by_group: dict[tuple[Path, str, str], list[RunData]] = {}
    for run in runs:
        if reason := _useless(run):
            remarks.append(f"{run.path}: {reason}")
        else:
            key = (run.path.resolve().parent, run.config["algorithm"]["name"], run.config["protocol"]["name"])
            by_group.setdefault(key, []).append(run)
    if not by_group:
        raise BadInputError(
            "There is nothing to correlate: no finished run has a fleet and the protocol deadline or readiness"
            + (f" ({remarks[0]})" if remarks else "")
        )
    names = _distinct_names([folder for folder, _, _ in by_group])
    measured = _Measured(repetitions, sum(map(len, by_group.values())), progress)
    groups = []
    for (folder, method, protocol), members in by_group.items():
        level = None if protocol == "deadline" else default_target(members) if target is None else target
        points, options = [], []
        for run, settings in zip(members, _differences(members), strict=True):
            metrics, used = measured(run)
            outcome = final_accuracy(run) if level is None else hours_to(run, level)
            if outcome is None:
                never = "was never evaluated" if level is None else f"never reached an accuracy of {level:g}"
                remarks.append(f"{run.path}: it {never}")
                continue
            wanted = {metric: value for metric, value in metrics.items() if metric.endswith(SUFFIXES[protocol])}
            endless = [metric for metric, value in wanted.items() if not math.isfinite(value)]
            if endless:
                remarks.append(f"{run.path}: {endless[0]} is infinite, because nobody is ever available")
                continue
            points.append(Point(run.label, (run.name,), settings, wanted, outcome))
            options.append(used)
        if points:
            means = over_seeds(points)
            found = correlate_points(means)
            groups.append(Group(names[folder], method, protocol, OUTCOMES[protocol], level, means, found, options[0]))
    if not groups:
        raise BadInputError(f"There is nothing to correlate: {remarks[-1]}")
    return Study(groups, remarks)


def _distinct_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Every folder's name, with as many of those above it as it takes to tell them apart."""
    different = list(dict.fromkeys(folders))
    for depth in range(1, max(len(folder.parts) for folder in different) + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in different]
        if len(set(names)) == len(names):
            break
    return dict(zip(different, names, strict=True))


def over_seeds(points: Sequence[Point]) -> list[Point]:
    """One point for all with the same label: the means of their metrics and outcomes."""
    by_label: dict[str, list[Point]] = {}
    for point in points:
        by_label.setdefault(point.label, []).append(point)
    return [
        replace(
            alike[0],
            runs=tuple(name for point in alike for name in point.runs),
            metrics={name: float(np.mean([point.metrics[name] for point in alike])) for name in alike[0].metrics},
            outcome=float(np.mean([point.outcome for point in alike])),
        )
        for alike in by_label.values()
    ]


def reasons(group: Group) -> list[str]:
    """Sentences about what a reader may miss: coefficients or intervals, and why there are none."""
    fleets = len(group.points)
    if fleets < FEWEST_POINTS:
        return [f"There is no coefficient of fewer than {FEWEST_POINTS} fleets"]
    outcomes = np.array([point.outcome for point in group.points])
    if not varies(outcomes):
        return [f"No coefficients: the {group.outcome} of all fleets are the same"]
    alike = [found.metric for found in group.correlations if not varies(found.x)]
    told = [f"The same for all of these fleets: {', '.join(alike)}"] if alike else []
    if fleets < FEWEST_FOR_INTERVAL:
        return [*told, f"With {fleets} fleets there are no intervals; it takes {FEWEST_FOR_INTERVAL} at least"]
    return [*told, "In brackets: 95 % of a bootstrap over fleets"]


def correlate_points(points: Sequence[Point]) -> list[Correlation]:
    """Every metric against the outcome."""
    y = np.array([point.outcome for point in points])
    found = []
    for metric in points[0].metrics:
        x = np.array([point.metrics[metric] for point in points])
        both = (associate(coefficient, x, y, seed=0) for coefficient in (pearson, spearman))
        found.append(Correlation(metric, x, y, *both))
    return found


def final_accuracy(run: RunData) -> float | None:
    """The test accuracy of the last tenth of the rounds, the mean of its evaluations, and at least of the last one."""
    accuracy, rounds = _column(run, "accuracy"), _column(run, "round")
    evaluated = np.flatnonzero(np.isfinite(accuracy))
    if not len(evaluated):
        return None
    late = evaluated[rounds[evaluated] > (1 - _LAST_SHARE) * rounds[-1]]
    return float(accuracy[late if len(late) else evaluated[-1:]].mean())


def hours_to(run: RunData, level: float) -> float | None:
    """Virtual hours until the first evaluation at or above `level`."""
    return cost_to_level(_column(run, "accuracy"), elapsed_hours(_column(run, "end_seconds")), level)


def default_target(runs: Sequence[RunData]) -> float:
    """An accuracy that all of these runs reach, and that is most of what there is to learn."""
    best = min(float(np.nanmax(_column(run, "accuracy"))) for run in runs)
    trivial = max(float((run.summary.get("baseline") or {}).get("accuracy") or 0.0) for run in runs)
    wanted = trivial + _TARGET_SHARE * (best - trivial) if best > trivial else best
    return round(math.floor(wanted / _TARGET_STEP + 1e-9) * _TARGET_STEP, 2) or best


def metric_options(simulation: Simulation, repetitions: int) -> HeterogeneityOptions:
    """The constants of the metrics as they are in a run; those that a run has not are the paper's.

    Metrics that end in -R are measured over as many rounds as the run has, and those that end in -T until as many
    updates have arrived as the run asks for, so that they see the same hours of the clients' traces.
    """
    load, clients = simulation.load(), simulation.training_clients
    share = getattr(simulation.protocol, "share", PAPER_OPTIONS.ready_share)
    limited = math.isfinite(simulation.protocol.deadline_seconds)
    return replace(
        PAPER_OPTIONS,
        deadline_seconds=simulation.protocol.deadline_seconds if limited else PAPER_OPTIONS.deadline_seconds,
        ready_share=share,
        rounds=simulation.rounds,
        trips=simulation.rounds * simulation.cohort,
        cohort=simulation.cohort,
        break_seconds=simulation.clock.overhead_seconds or PAPER_OPTIONS.break_seconds,
        model_bytes=round((load.download_bytes + load.upload_bytes) / 2),
        samples=float(load.processed_samples(clients, np.ones(len(clients))).mean()),
        flops_per_sample=load.flops_per_sample,
        repetitions=repetitions,
    )


class _Measured:
    """Metrics of runs' fleets; runs that differ in nothing that matters are measured once."""

    def __init__(self, repetitions: int, runs: int, progress: Callable[[int, int], None]):
        self._repetitions, self._runs, self._progress = repetitions, runs, progress
        self._known: dict[str, tuple[dict[str, float], HeterogeneityOptions]] = {}
        self._done = 0

    def __call__(self, run: RunData) -> tuple[dict[str, float], HeterogeneityOptions]:
        config = resolve(run.config)
        key = json.dumps({name: value for name, value in config.to_dict().items() if name not in _IRRELEVANT})
        if key not in self._known:
            self._known[key] = self._measure(run, config)
        self._done += 1
        self._progress(self._done, self._runs)
        return self._known[key]

    def _measure(self, run: RunData, config: RunConfig) -> tuple[dict[str, float], HeterogeneityOptions]:
        simulation = prepare(config, Observer()).simulation
        assert simulation.fleet is not None  # or the run would not have been of use
        before = (run.fleet or {}).get("fingerprint")
        if before is not None and before != simulation.fleet.fleet.fingerprint:
            raise BadInputError(
                f"The fleet {config.fleet['name']!r} is not the one that the run {run.path} was made with, "
                "so its metrics would say nothing about the run"
            )
        options = metric_options(simulation, self._repetitions)
        found = measure_heterogeneity(simulation.fleet, simulation.training_clients, options)
        return {name: estimate.mean for name, estimate in found.metrics.items()}, options


def _useless(run: RunData) -> str | None:
    """Why a run cannot be used, if it cannot."""
    if run.status != "finished":
        return f"the run is {run.status}, not finished"
    if run.config["protocol"]["name"] not in OUTCOMES:
        return f"its protocol is {run.config['protocol']['name']}, not deadline or readiness"
    if run.config["fleet"]["name"] == "ideal":
        return "it has no phones to measure"
    return None


def _differences(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """For each run the settings in which it differs from others."""
    flat = [flatten_settings(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings if key not in ("name", "seed"))
    different = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    return [{key: settings.get(key) for key in different} for settings in flat]


def _column(run: RunData, name: str) -> FloatArray:
    values = pc.cast(run.rounds[name], pa.float64())
    return np.asarray(pc.fill_null(values, float("nan")).to_numpy(), dtype=np.float64)


def write_study(study: Study, path: Path) -> None:
    """Writes everything as JSON: coefficients, and every run's metrics and outcome."""
    write_text(path, json.dumps(as_plain(study), indent=1) + "\n")


def as_plain(study: Study) -> dict[str, Any]:
    """A study as plain values."""
    return {
        "groups": [
            {
                "name": group.name,
                "method": group.method,
                "protocol": group.protocol,
                "outcome": group.outcome,
                "target_accuracy": group.target,
                "options": group.options.as_dict(),
                "correlations": {
                    found.metric: {
                        "points": len(found.x),
                        "pearson": _plain_association(found.pearson),
                        "spearman": _plain_association(found.spearman),
                    }
                    for found in group.correlations
                },
                "points": [
                    {"runs": list(p.runs), "settings": p.settings, "metrics": p.metrics, group.outcome: p.outcome}
                    for p in group.points
                ],
            }
            for group in study.groups
        ],
        "left_out": study.remarks,
    }


def _plain_association(found: Association | None) -> Mapping[str, float | None] | None:
    if found is None:
        return None
    low, high = found.interval or (None, None)
    return {"value": found.value, "low": low, "high": high}
