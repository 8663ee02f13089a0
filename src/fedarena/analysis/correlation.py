"""Do metrics of a fleet tell how training on it goes? Correlations over runs, as in FLHetBench (CVPR 2024).

Metrics that end in -R go with the test score of runs with a deadline, those that end in -T with the virtual hours that
runs which wait for their clients take to reach a target score; scores are of the metric that the runs lead with.
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
from fedarena.analysis.distinct import distinct_runs, left_out_lines
from fedarena.analysis.leading_metric import baseline_of, leading_metric
from fedarena.core.errors import BadInputError
from fedarena.core.files import write_text
from fedarena.fleet.heterogeneity import PAPER_OPTIONS, HeterogeneityOptions, measure_heterogeneity
from fedarena.metrics import cost_to_level, elapsed_hours
from fedarena.metrics.info import MetricInfo
from fedarena.runs.building import prepare
from fedarena.runs.config import RunConfig, resolve
from fedarena.runs.observer import Observer
from fedarena.simulate import Simulation
from fedarena.storage.run_data import RunData, flatten_settings
from fedarena.train.systems_hooks import FORWARD_SHARE

# By protocol the end of the names of metrics that should foretell how its runs end.
SUFFIXES = {"deadline": "-R", "readiness": "-T"}
HOURS = "hours"
# A default target is so far on the way from knowing nothing to what the run that learned least reached.
_TARGET_SHARE = 0.9
_TARGET_DIGITS = 2  # after the point; of a metric without bounds, of what there is to learn
# Of the rounds, over which the final score is averaged, because single rounds scatter.
_LAST_SHARE = 0.1
# Settings that the metrics of a fleet do not depend on, but for the engine's precision: how large a model is.
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
    score: MetricInfo  # the metric that the runs lead with
    target: float | None  # the score that hours lead to; None where the score itself is what comes out
    points: list[Point]
    correlations: list[Correlation]
    options: HeterogeneityOptions  # of the first run

    @property
    def title(self) -> str:
        """How the group is called."""
        return f"{self.name}, {self.method}"

    @property
    def outcome(self) -> str:
        """The name of what came out: the metric that the runs lead with, or hours."""
        return self.score.name if self.target is None else HOURS


@dataclass(frozen=True)
class Study:
    """All groups, and sentences about runs that are in none."""

    groups: list[Group]
    notes: list[str]


def study_correlations(
    runs: Sequence[RunData],
    target: float | None = None,
    repetitions: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Study:
    """Measures the fleet of every run with a deadline or readiness, and correlates within each group."""
    notes: list[str] = []
    by_group: dict[tuple[Path, str, str, MetricInfo], list[RunData]] = {}
    for run in runs:
        if reason := _useless(run):
            notes.append(f"{run.path}: {reason}")
        else:
            method, protocol = run.config["algorithm"]["name"], run.config["protocol"]["name"]
            key = (run.path.resolve().parent, method, protocol, leading_metric([run]))
            by_group.setdefault(key, []).append(run)
    if not by_group:
        raise BadInputError(
            "There is nothing to correlate: no finished run has a fleet and the protocol deadline or readiness"
            + (f" ({notes[0]})" if notes else "")
        )
    for key, members in by_group.items():
        notes += left_out_lines(members)
        by_group[key] = distinct_runs(members)
    names = _distinct_names([folder for folder, *_ in by_group])
    measured = _Measured(repetitions, sum(map(len, by_group.values())), progress)
    groups = []
    for (folder, method, protocol, score), members in by_group.items():
        level = None if protocol == "deadline" else default_target(members, score) if target is None else target
        points, options = [], []
        for run, settings in zip(members, _differences(members), strict=True):
            metrics, used = measured(run)
            outcome = final_score(run, score) if level is None else hours_to(run, score, level)
            if outcome is None:
                never = "was never evaluated" if level is None else f"never reached {score.label} {level:g}"
                notes.append(f"{run.path}: it {never}")
                continue
            wanted = {metric: value for metric, value in metrics.items() if metric.endswith(SUFFIXES[protocol])}
            endless = [metric for metric, value in wanted.items() if not math.isfinite(value)]
            if endless:
                notes.append(f"{run.path}: {endless[0]} is infinite, because nobody is ever available")
                continue
            points.append(Point(run.label, (run.name,), settings, wanted, outcome))
            options.append(used)
        if points:
            means = over_seeds(points)
            found = correlate_points(means)
            groups.append(Group(names[folder], method, protocol, score, level, means, found, options[0]))
    if not groups:
        raise BadInputError(f"There is nothing to correlate: {notes[-1]}")
    return Study(groups, notes)


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
        same = group.score.label if group.target is None else HOURS
        return [f"No coefficients: the {same} of all fleets are the same"]
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


def final_score(run: RunData, metric: MetricInfo) -> float | None:
    """The test score of the last tenth of the rounds, the mean of its evaluations, and at least of the last one."""
    scores, rounds = _column(run, metric.name), _column(run, "round")
    evaluated = np.flatnonzero(np.isfinite(scores))
    if not len(evaluated):
        return None
    late = evaluated[rounds[evaluated] > (1 - _LAST_SHARE) * rounds[-1]]
    return float(scores[late if len(late) else evaluated[-1:]].mean())


def hours_to(run: RunData, metric: MetricInfo, level: float) -> float | None:
    """Virtual hours until the first evaluation that is `level` or better."""
    hours = elapsed_hours(_column(run, "end_seconds"))
    return cost_to_level(_column(run, metric.name), hours, level, metric.higher_is_better)


def default_target(runs: Sequence[RunData], metric: MetricInfo) -> float:
    """A score that all of these runs reach, and that is most of what there is to learn."""
    sign = 1 if metric.higher_is_better else -1
    best = min(float(np.nanmax(sign * _column(run, metric.name))) for run in runs)
    trivial = max(sign * _knowing_nothing(run, metric) for run in runs)
    learned = max(0.0, best - trivial)
    wanted = trivial + _TARGET_SHARE * learned if learned else best
    bounded = metric.low is not None and metric.high is not None
    exponent = 0 if bounded or not learned else math.ceil(math.log10(learned))
    step = 10.0 ** (exponent - _TARGET_DIGITS)
    rounded = round(math.floor(wanted / step + 1e-9) * step, _TARGET_DIGITS - exponent)
    return sign * (rounded or best)


def _knowing_nothing(run: RunData, metric: MetricInfo) -> float:
    """The baseline; without one the worst that a metric can be, or what a run began with."""
    if (baseline := baseline_of(run, metric)) is not None:
        return baseline[0]
    worst = metric.low if metric.higher_is_better else metric.high
    if worst is not None:
        return worst
    scores = _column(run, metric.name)
    return float(scores[np.isfinite(scores)][0])


def metric_options(simulation: Simulation, repetitions: int) -> HeterogeneityOptions:
    """The constants of the metrics as they are in a run; those that a run has not are the paper's.

    Metrics that end in -R are measured over as many rounds as the run has, and those that end in -T until as many
    updates have arrived as the run asks for, so that they see the same hours of the clients' traces.
    """
    load, clients = simulation.load(), simulation.training_clients
    trained = float(load.processed_samples(clients, np.ones(len(clients))).mean())
    scored = 0.0 if load.scored_samples is None else float(load.scored_samples(clients).mean())
    # Devices are timed at plain training: a method that does more on a sample is as slow as one with more samples.
    samples = trained * load.compute_factor + scored * FORWARD_SHARE
    flops = trained * load.flops_per_sample + scored * load.scoring_flops_per_sample
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
        model_bytes=load.download_bytes,
        upload_bytes=load.upload_bytes,
        samples=samples,
        flops_per_sample=flops / samples,
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
        relevant = {name: value for name, value in config.to_dict().items() if name not in _IRRELEVANT}
        key = json.dumps([relevant, config.engine.get("dtype")])
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
    if run.config["protocol"]["name"] not in SUFFIXES:
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
                "score": group.score.name,
                "target": group.target,
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
        "left_out": study.notes,
    }


def _plain_association(found: Association | None) -> Mapping[str, float | None] | None:
    if found is None:
        return None
    low, high = found.interval or (None, None)
    return {"value": found.value, "low": low, "high": high}
