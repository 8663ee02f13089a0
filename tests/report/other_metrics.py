"""Runs that lead with something else than the accuracy: made-up runs with another metric in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from conftest import summarize
from fedarena.metrics.info import LOSS, MetricInfo
from fedarena.storage.run_data import RunData

MSE = MetricInfo("mse", "MSE", higher_is_better=False, low=0.0, decimals=2)
MAE = MetricInfo("mae", "mean absolute error", higher_is_better=False, low=0.0, decimals=2)
R2 = MetricInfo("r2", "R²", high=1.0)
OF_ACCURACY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mse": lambda accuracy: 5000 * (1 - accuracy),
    "mae": lambda accuracy: 60 * (1 - accuracy),
    "r2": lambda accuracy: 2 * accuracy - 0.5,
}


def with_metrics(run: RunData, metrics: Sequence[MetricInfo] = (MSE,)) -> RunData:
    """The same run with these metrics, of which the first leads, instead of accuracy."""
    clients = run.clients
    rows = run.rounds.to_pylist()
    prefixes = [prefix for prefix in ("", "personal_") if f"{prefix}accuracy" in clients.column_names]
    rounds = clients["round"].to_numpy()
    for metric in metrics:
        for prefix in prefixes:
            values = OF_ACCURACY[metric.name](clients[f"{prefix}accuracy"].to_numpy())
            clients = clients.append_column(prefix + metric.name, pa.array(values))
            samples = clients["samples"].to_numpy()
            for row in rows:
                inside = rounds == row["round"]
                if inside.any():
                    row |= summarize(prefix + metric.name, values[inside], samples[inside], metric.higher_is_better)
    gone = [name for name in run.rounds.column_names if "accuracy" in name]
    added = [name for name in rows[0] if name not in run.rounds.column_names]
    fields = [field for field in run.rounds.schema if field.name not in gone]
    schema = pa.schema([*fields, *((name, pa.float64()) for name in added)])
    lead = metrics[0]
    trivial = float(OF_ACCURACY[lead.name](np.array(0.178)))
    return replace(
        run,
        rounds=pa.Table.from_pylist(rows, schema=schema),
        clients=clients.drop_columns([f"{prefix}accuracy" for prefix in prefixes]),
        summary={
            **run.summary,
            "metrics": [metric.to_json() for metric in (LOSS, *metrics)],
            "primary_metric": lead.name,
            "baseline": {lead.name: trivial, "metric": lead.name, "rule": "always the mean"},
            "final": next((row for row in reversed(rows) if row["eval_clients"] is not None), None),
        },
    )
