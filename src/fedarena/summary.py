"""The summary of a run: final and best scores, totals and times."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fedarena.config import RunConfig
from fedarena.metrics import PERSONAL, summary_names

PRIMARY_METRIC = "accuracy"
METRICS = ("loss", PRIMARY_METRIC)


def summarize(
    config: RunConfig, baseline: dict[str, Any], tables: dict[str, pa.Table], status: str, message: str | None
) -> dict[str, Any]:
    """What ``summary.json`` holds."""
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
    }


def _total(table: pa.Table, column: str) -> Any:
    return pc.sum(table[column]).as_py() or 0
