"""Trials as lanes give what a run of each trial alone gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedarena
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.core.errors import BadInputError, DivergedError
from fedarena.hpo.lanes import train_trials

BASE: dict[str, Any] = {
    "model": "logistic_regression",
    "task.metrics": ["accuracy", "macro_f1"],
    "engine.dtype": "float64",
    "local.steps": 2,
    "local.batch_size": 8,
    "cohort": 3,
}
ROUNDS = 3
CLIENTS, FEATURES, CLASSES = 6, 5, 3


@pytest.fixture(scope="module", autouse=True)
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Six clients with 3 to 40 training samples of three classes."""
    path, random = tmp_path_factory.mktemp("lanes") / "made", np.random.default_rng(0)
    weights = random.normal(size=(FEATURES, CLASSES))

    def samples(count: int) -> dict[str, np.ndarray]:
        x = random.normal(size=(count, FEATURES)).astype(np.float32)
        return {"x": x, "y": (x @ weights + random.gumbel(size=(count, CLASSES))).argmax(1)}

    columns = {"x": ColumnSpec(dtype="float32", shape=(FEATURES,)), "y": ColumnSpec(dtype="int64", shape=())}
    task, source = TaskSpec(kind="classification", classes=CLASSES), SourceSpec(name="made", version=1, options={})
    with FederationWriter(path, name="made", task=task, columns=columns, source=source) as writer:
        for client, count in enumerate((3, 9, 16, 20, 33, 40)):
            writer.add_client(str(client), train=samples(count), validation=samples(4 + client), test=samples(7))
    BASE["federation"] = {"name": "store", "path": str(path)}
    return Federation.open(path)


def alone(base: dict[str, Any], trial: dict[str, Any], folder: Path, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """The scores of a run of one trial, after every round."""
    found: dict[str, np.ndarray] = {}
    settings = {**base, **trial, "rounds": rounds, "evaluation.every": 1, "evaluation.training_set": True}
    for part in ("validation", "test"):
        result = fedarena.run({**settings, "evaluation.part": part}, progress=False, runs_folder=folder)
        table = result.rounds.to_pydict()
        for metric in ("loss", "accuracy", "macro_f1"):
            found[f"{part}_{metric}"] = np.array(table[metric][1:], dtype=np.float64)
            found[f"train_{metric}"] = np.array(table[f"training_set_{metric}"][1:], dtype=np.float64)
    return found


def check(base: dict[str, Any], trials: list[dict[str, Any]], folder: Path, rounds: int = ROUNDS) -> None:
    curves = train_trials(base, trials, rounds=rounds)
    for number, trial in enumerate(trials):
        expected = alone(base, trial, folder, rounds)
        for name, values in expected.items():
            np.testing.assert_allclose(
                curves.metrics[name][number], values, rtol=0, atol=1e-10, err_msg=f"{trial} {name}"
            )


def test_a_mixed_batch(tmp_path: Path) -> None:
    trials = [
        {"local.lr": 0.1, "seed": 1},
        {"local.lr": 0.5, "local.steps": 4, "local.weight_decay": 0.01, "seed": 1},
        {"local.lr": 0.02, "local.steps": 1, "local.momentum": 0.9, "cohort": 6},
        {"local.lr": 0.3, "local.batch_size": 500, "algorithm.server_lr": 0.5, "cohort": 1},
    ]
    check(BASE, trials, tmp_path)
