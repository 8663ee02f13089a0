"""The summary of a run: final and best scores, totals and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.core.errors import BadInputError
from fedarena.metrics import (
    PERSONAL,
    USED,
    KeptScores,
    Metric,
    MetricInfo,
    cost_to_level,
    count_outcomes,
    elapsed_hours,
    make_metric,
    round_levels,
    stratify,
    summarize_participation,
    summary_names,
    wasted_share,
)
from fedarena.metrics.class_strata import STRATA, class_strata
from fedarena.metrics.classes import summarize_classes
from fedarena.metrics.info import FORMER_METRICS
from fedarena.metrics.metric import Loss, WeightedLoss
from fedarena.models import Task
from fedarena.runs.config import RunConfig
from fedarena.storage.job_table import JobTable
from fedarena.storage.run_data import RunData
from fedarena.storage.tables import CLASSES
from fedarena.transforms.attacks import ATTACK_SUCCESS


def summarize(
    config: RunConfig,
    task: Task,
    baseline: dict[str, Any] | None,
    training_clients: int,
    tables: dict[str, pa.Table],
    status: str,
    message: str | None,
    attributes: pa.Table | None = None,
    warnings: Sequence[str] = (),
    attack: Mapping[str, Any] | None = None,
    running: npt.NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    `training_clients` is how many could be invited, `attributes` what is known about those who were evaluated,
    `warnings` what the user was told when the run began, `attack` who attacked and how, `running` who was still at work
    when it ended.
    """
    rounds, timings = tables["rounds"], tables["timings"]
    infos, lead = [metric.info for metric in task.metrics], task.lead.info
    evaluated = rounds.filter(pc.is_valid(rounds["eval_clients"])).to_pylist()
    sign = 1 if lead.higher_is_better else -1
    led = [row for row in evaluated if row[lead.name] is not None]
    best = max(led, key=lambda row: sign * row[lead.name], default=None)
    columns = [
        "round",
        "eval_clients",
        "eval_samples",
        *(n for info in infos for n in summary_names(info.name)),
        *(n for n in rounds.column_names if n.startswith(PERSONAL)),
    ]
    train_seconds = _total(timings, "train_seconds")
    clients = _total(rounds, "clients")
    jobs = JobTable.from_table(tables["jobs"])
    at_clients = len(jobs) > 0 and config.training != "centralized"
    participation = summarize_participation(jobs.index, jobs.used, training_clients, running)
    return {
        "name": config.name,
        "status": status,
        "message": message,
        "warnings": list(warnings),
        "seed": config.seed,
        "rounds": config.rounds,
        "rounds_done": rounds["round"][-1].as_py() if len(rounds) else 0,
        "metrics": [info.to_json() for info in infos],
        "primary_metric": lead.name,
        "final": {name: evaluated[-1][name] for name in columns} if evaluated else None,
        "best": {"round": best["round"], lead.name: best[lead.name]} if best else None,
        "baseline": baseline,
        "totals": {name: _total(rounds, name) for name in ("clients", "samples", "bytes_down", "bytes_up", "flops")},
        "timing": {
            "wall_seconds": train_seconds + _total(timings, "evaluate_seconds"),
            "clients_per_second": clients / train_seconds if train_seconds else None,
        },
        **({"participation": participation} if at_clients else {}),
        **({} if attack is None else {"attack": _summarize_attack(attack, rounds, evaluated)}),
        **_summarize_time(rounds, jobs, lead, baseline),
        **_summarize_classes(tables.get("classes")),
        **({} if attributes is None else {"strata": strata(tables["clients"], attributes, metrics=task.metrics)}),
    }


def _summarize_attack(
    attack: Mapping[str, Any], rounds: pa.Table, evaluated: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the corrupted clients did, and what came of it."""
    measured = [row[ATTACK_SUCCESS] for row in evaluated if row[ATTACK_SUCCESS] is not None]
    return {
        **attack,
        "corrupted_updates": _total(rounds, "corrupted"),
        "success": measured[-1] if measured else None,
    }


def _summarize_time(
    rounds: pa.Table, jobs: JobTable, lead: MetricInfo, baseline: dict[str, Any] | None
) -> dict[str, Any]:
    """What virtual time brought; nothing in a world where none passes."""
    hours = elapsed_hours(_floats(rounds, "end_seconds"))
    if not (len(hours) and hours[-1] > 0):
        return {}
    outcomes = count_outcomes(jobs.outcome_names, jobs.outcome)
    staleness = jobs.staleness[jobs.used]
    return {
        "virtual_hours": float(hours[-1]),
        "hours_to_level": _hours_to_levels(_floats(rounds, lead.name), hours, lead, baseline),
        "success_share": outcomes.get(USED, 0) / len(jobs) if len(jobs) else None,
        "failures": {reason: count for reason, count in outcomes.items() if reason != USED},
        "wasted": {
            "seconds": _total(rounds, "wasted_seconds"),
            "share": wasted_share(jobs.worked_seconds, jobs.used),
            "bytes": _total(rounds, "wasted_bytes"),
        },
        "staleness": {"mean": float(staleness.mean()), "max": int(staleness.max())} if len(staleness) else None,
        "joules": pc.sum(rounds["joules"]).as_py(),
    }


def _summarize_classes(classes: pa.Table | None) -> dict[str, Any]:
    """How fair the last evaluated model is to classes of different frequency; nothing where no metric tells."""
    if classes is None or not len(classes):
        return {}
    last = last_classes(classes)
    values = {name: _floats(last, name) for name in class_scores_in(last)}
    return {"classes": summarize_classes(class_frequency(last), last["class"].to_pylist(), values)}


def last_classes(classes: pa.Table, round: int | None = None) -> pa.Table:
    """Of the table of classes, the rows of the last evaluated round or of another."""
    number = pc.max(classes["round"]).as_py() if round is None else round
    return classes.filter(pc.equal(classes["round"], number))


def class_scores_in(classes: pa.Table) -> list[str]:
    """The columns of a table of classes that are scores."""
    known = {column.name for column in CLASSES}
    return [name for name in classes.column_names if name not in known]


def class_frequency(classes: pa.Table) -> npt.NDArray[np.int64]:
    """By how many samples classes are called frequent or rare: of training, or the evaluated ones if nobody knows."""
    known = "train_samples" if classes["train_samples"].null_count == 0 else "samples"
    return np.asarray(classes[known].to_numpy(), dtype=np.int64)


def classes_by_frequency(classes: pa.Table, round: int | None = None) -> pa.Table:
    """The scores of every class in a round, the most frequent class first, with the third that it belongs to."""
    rows = last_classes(classes, round)
    frequency = class_frequency(rows)
    order = pa.array(np.argsort(-frequency, kind="stable"))
    strata = pa.array([STRATA[stratum] for stratum in class_strata(frequency)], pa.string())
    return rows.add_column(3, "stratum", strata).take(order)


def _hours_to_levels(
    values: npt.NDArray[np.float64], hours: npt.NDArray[np.float64], lead: MetricInfo, baseline: dict[str, Any] | None
) -> dict[str, float | None]:
    """Until the leading metric reached some round levels, which are better than the start and than knowing nothing."""
    measured = values[np.isfinite(values)]
    if not measured.size:
        return {}
    start, best = float(measured[0]), float(measured.max() if lead.higher_is_better else measured.min())
    trivial = (baseline or {}).get(lead.name)
    if trivial is not None and lead.is_better(trivial, than=start):
        start = trivial
    span = None if lead.low is None or lead.high is None else lead.high - lead.low
    levels = round_levels(start, best, lead.higher_is_better, span)
    return {f"{level:g}": cost_to_level(values, hours, level, lead.higher_is_better) for level in levels}


def strata(
    clients: pa.Table,
    attributes: pa.Table,
    round: int | None = None,
    metrics: Sequence[Metric | MetricInfo] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Every metric by every attribute, in the last evaluated round or another; see `fedarena.metrics.stratify`.

    `metrics` are those of the run; without them, all that are known by the name of their column.
    """
    if not len(clients):
        return {}
    number = pc.max(clients["round"]).as_py() if round is None else round
    scores = clients.filter(pc.equal(clients["round"], number))
    if not len(scores):
        return {}
    place = {client: row for row, client in enumerate(attributes["client"].to_pylist())}
    rows = np.array([place[client] for client in scores["client"].to_pylist()], dtype=np.int64)
    samples = np.asarray(scores["samples"].to_numpy(), dtype=np.int64)
    personal = [PERSONAL] if f"{PERSONAL}samples" in scores.column_names else []
    metrics = known_metrics(scores.column_names) if metrics is None else metrics
    kept = {
        prefix + name: KeptScores(
            metric, _floats(scores, prefix + name), _predictions(scores, prefix), _parts(scores, prefix, metric)
        )
        for prefix in ["", *personal]
        for name, metric in ((metric.name, metric) for metric in metrics)
        if prefix + name in scores.column_names
    }
    names = [name for name in attributes.column_names if name != "client"]
    return {name: stratify(_known(attributes[name].take(pa.array(rows)).to_pylist()), samples, kept) for name in names}


def known_metrics(columns: Sequence[str]) -> list[Metric]:
    """The metrics that columns are called like."""
    weighted = WeightedLoss()
    found: list[Metric] = [weighted if {*weighted.part_names} <= {*columns} else Loss()] if "loss" in columns else []
    for name in columns:
        with suppress(BadInputError):
            found.append(make_metric(name))
    return found


def metrics_of_run(run: RunData) -> list[Metric | MetricInfo]:
    """The metrics of a run on disk; of somebody's own that cannot be imported here, what is known about them."""
    config, summary = run.config, run.summary
    named = (config.get("task") or {}).get("metrics") or []
    own: dict[str, Metric] = {}
    for name in (name for name in named if ":" in name):
        with suppress(BadInputError):
            metric = make_metric(name)
            own[metric.name] = metric
    infos = [MetricInfo.from_json(info) for info in summary.get("metrics") or ()] or list(FORMER_METRICS)
    known = own | {metric.name: metric for metric in known_metrics(run.clients.column_names)}
    return [known.get(info.name, info) for info in infos]


def _parts(scores: pa.Table, prefix: str, metric: Metric | MetricInfo) -> npt.NDArray[np.float64] | None:
    """The parts of the clients' states, if they were kept."""
    names = [prefix + name for name in metric.part_names] if isinstance(metric, Metric) else []
    if not names or not set(names) <= set(scores.column_names):
        return None
    return np.stack([_floats(scores, name) for name in names], 1)


def _known(values: list[Any]) -> list[Any]:
    """Numbers that are none as a word: JSON has no other way to say so, and nothing is less equal to itself."""
    return ["unknown" if isinstance(value, float) and not np.isfinite(value) else value for value in values]


def _predictions(scores: pa.Table, prefix: str) -> npt.NDArray[np.int64]:
    """How many predictions each client's means are of; runs of before told only how many samples."""
    told = f"{prefix}predictions" in scores.column_names and scores[f"{prefix}predictions"].null_count < len(scores)
    counts = scores[f"{prefix}predictions" if told else f"{prefix}samples"]
    return np.asarray(pc.fill_null(counts, 0).to_numpy(), dtype=np.int64)


def _floats(table: pa.Table, column: str) -> npt.NDArray[np.float64]:
    return np.asarray(pc.fill_null(table[column], float("nan")).to_numpy(), dtype=np.float64)


def _total(table: pa.Table, column: str) -> Any:
    return pc.sum(table[column]).as_py() or 0
