"""The summary of a run: final and best scores, totals and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedarena.metrics import (
    PERSONAL,
    USED,
    cost_to_level,
    count_outcomes,
    elapsed_hours,
    round_levels,
    stratify,
    summarize_participation,
    summary_names,
    wasted_share,
)
from fedarena.runs.config import RunConfig
from fedarena.storage.job_table import JobTable

PRIMARY_METRIC = "accuracy"
METRICS = ("loss", PRIMARY_METRIC)


def summarize(
    config: RunConfig,
    baseline: dict[str, Any],
    training_clients: int,
    tables: dict[str, pa.Table],
    status: str,
    message: str | None,
    attributes: pa.Table | None = None,
) -> dict[str, Any]:
    """What ``summary.json`` holds.

    `training_clients` is how many could be invited, `attributes` what is known about those who were evaluated.
    """
    rounds, timings = tables["rounds"], tables["timings"]
    evaluated = rounds.filter(pc.is_valid(rounds[PRIMARY_METRIC])).to_pylist()
    best = max(evaluated, key=lambda row: row[PRIMARY_METRIC], default=None)
    columns = [
        "round",
        "eval_clients",
        "eval_samples",
        *(n for metric in METRICS for n in summary_names(metric)),
        *(n for n in rounds.column_names if n.startswith(PERSONAL)),
    ]
    train_seconds = _total(timings, "train_seconds")
    clients = _total(rounds, "clients")
    jobs = JobTable.from_table(tables["jobs"])
    at_clients = len(jobs) > 0 and config.training != "centralized"
    return {
        "name": config.name,
        "status": status,
        "message": message,
        "seed": config.seed,
        "rounds": config.rounds,
        "rounds_done": rounds["round"][-1].as_py() if len(rounds) else 0,
        "primary_metric": PRIMARY_METRIC,
        "final": {name: evaluated[-1][name] for name in columns} if evaluated else None,
        "best": {"round": best["round"], PRIMARY_METRIC: best[PRIMARY_METRIC]} if best else None,
        "baseline": baseline,
        "totals": {name: _total(rounds, name) for name in ("clients", "samples", "bytes_down", "bytes_up", "flops")},
        "timing": {
            "wall_seconds": train_seconds + _total(timings, "evaluate_seconds"),
            "clients_per_second": clients / train_seconds if train_seconds else None,
        },
        **({"participation": summarize_participation(jobs.index, jobs.used, training_clients)} if at_clients else {}),
        **_summarize_time(rounds, jobs, baseline),
        **({} if attributes is None else {"strata": strata(tables["clients"], attributes)}),
    }


def _summarize_time(rounds: pa.Table, jobs: JobTable, baseline: dict[str, Any]) -> dict[str, Any]:
    """What virtual time brought; nothing in a world where none passes."""
    hours = elapsed_hours(_floats(rounds, "end_seconds"))
    if not (len(hours) and hours[-1] > 0):
        return {}
    accuracy = _floats(rounds, PRIMARY_METRIC)
    measured = accuracy[np.isfinite(accuracy)]
    trivial = baseline.get("accuracy") or 0.0
    levels = round_levels(max(float(measured[0]), trivial), float(measured.max())) if measured.size else []
    outcomes = count_outcomes(jobs.outcome_names, jobs.outcome)
    staleness = jobs.staleness[jobs.used]
    return {
        "virtual_hours": float(hours[-1]),
        "hours_to_accuracy": {f"{level:g}": cost_to_level(accuracy, hours, level) for level in levels},
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


def strata(clients: pa.Table, attributes: pa.Table, round: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """Every metric by every attribute, in the last evaluated round or another; see `fedarena.metrics.stratify`."""
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
    means = {
        prefix + metric: (_floats(scores, prefix + metric), _predictions(scores, prefix))
        for prefix in ["", *personal]
        for metric in METRICS
    }
    names = [name for name in attributes.column_names if name != "client"]
    return {name: stratify(_known(attributes[name].take(pa.array(rows)).to_pylist()), samples, means) for name in names}


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
