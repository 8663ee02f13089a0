"""A problem of one's own that takes milliseconds a round."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    "federation": {
        "name": "digits",
        "partition": {"name": "dirichlet", "clients": 5},
        "train_fraction": 0.6,
        "validation_fraction": 0.2,
    },
    "model": "logistic_regression",
    "task.metrics": ["accuracy", "macro_f1"],
    "engine": "reference",
    "local.steps": 2,
    "rounds": 9,
    "search": {
        "local.lr": {"from": 0.01, "to": 1.0, "log": True, "bins": 3},
        "local.batch_size": [4, 16],
        "local.weight_decay": {"from": 0.0, "to": 0.001, "bins": 2},
    },
}
CONFIGURATION = {"local.lr": 0.1, "local.batch_size": 16, "local.weight_decay": 0.001}
