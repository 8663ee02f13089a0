"""Runs with plausible numbers from seeded random numbers; every summary column is computed from the clients table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedarena.storage.recorder import table_schemas
from fedarena.storage.run_data import RunData

METRICS = ("loss", "accuracy")
BASELINE = {"accuracy": 0.178, "label": " ", "rule": "always the most frequent label, ' '"}
# What an algorithm's accuracy ends at, and how fast it gets there.
QUALITY = {"fedavg": (0.40, 0.06), "fedprox": (0.41, 0.05), "fedyogi": (0.45, 0.09)}


def summarize(metric: str, values: np.ndarray, samples: np.ndarray, higher_is_better: bool) -> dict[str, float]:
    """The columns of the rounds table for one metric, straight from their definitions."""
    worst_first = np.sort(values) if higher_is_better else np.sort(values)[::-1]
    tenth = max(1, round(len(values) / 10))
    return {
        metric: float((values * samples).sum() / samples.sum()),
        f"{metric}_by_client": float(values.mean()),
        **{f"{metric}_p{p}": float(np.percentile(values, p)) for p in (10, 25, 50, 75, 90)},
        f"{metric}_worst_decile": float(worst_first[:tenth].mean()),
    }


def build_run(
    label: str = "fedavg",
    seed: int = 0,
    *,
    algorithm: str | None = None,
    rounds: int = 60,
    every: int = 5,
    clients: int = 238,
    stop_after: int | None = None,
    status: str = "finished",
    message: str | None = None,
    name: str | None = None,
    baseline: dict[str, Any] | None = BASELINE,
    final_metrics: dict[str, float] | None = None,
    config: dict[str, Any] | None = None,
    personal: float | None = None,
) -> RunData:
    """One run; `final_metrics` overwrites columns of its last evaluated round.

    With `personal`, clients have models of their own, whose accuracy is that much higher.
    """
    algorithm = algorithm or (label if label in QUALITY else "fedavg")
    ceiling, pace = QUALITY[algorithm]
    random = np.random.default_rng([seed, sum(map(ord, label))])
    samples = np.random.default_rng(7).lognormal(4.0, 1.2, clients).astype(np.int64) + 2
    skill = random.normal(0, 0.05, clients) - 0.05 / np.sqrt(samples / 20)
    done = rounds if stop_after is None else stop_after
    schemas = table_schemas(METRICS if personal is None else (*METRICS, *(f"personal_{metric}" for metric in METRICS)))
    round_rows, timing_rows, client_tables = [], [], [schemas["clients"].empty_table()]
    for number in range(done + 1):
        trained = 0 if number == 0 else 20
        row: dict[str, Any] = {
            "round": number,
            "clients": trained,
            "samples": trained * 140,
            "steps": trained * 9,
            "train_loss": 4.5 * np.exp(-number * pace) + 1.9 if trained else None,
            "bytes_down": trained * 1_320_000 + number,
            "bytes_up": trained * 1_310_000,
            "flops": trained * 140 * 3.1e7,
        }
        if number % every == 0 or number == rounds:
            progress = 1 - np.exp(-number * pace)
            spread, noise = 0.3 + 0.7 * progress, random.normal(0, 0.01)
            accuracy = np.clip(0.01 + ceiling * progress + spread * skill + noise * progress, 0, 1)
            loss = np.clip(4.6 - 2.7 * progress - 3 * spread * skill, 0.1, None)
            row |= summarize("accuracy", accuracy, samples, True) | summarize("loss", loss, samples, False)
            row |= {"eval_clients": clients, "eval_samples": int(samples.sum())}
            columns = {
                "round": np.full(clients, number),
                "client": [f"client-{index}" for index in range(clients)],
                "samples": samples,
                "predictions": samples,
                "loss": loss,
                "accuracy": accuracy,
            }
            if personal is not None:
                own = np.clip(accuracy + personal * progress, 0, 1)
                row |= {"personal_clients": clients, "personal_samples": int(samples.sum())}
                row |= summarize("personal_accuracy", own, samples, True) | summarize(
                    "personal_loss", 0.5 * loss, samples, False
                )
                columns |= {"personal_samples": samples, "personal_predictions": samples}
                columns |= {"personal_loss": 0.5 * loss, "personal_accuracy": own}
            client_tables.append(pa.table(columns, schema=schemas["clients"]))
        round_rows.append(row)
        seconds = 0.5 + 0.1 * random.random()
        timing_rows.append(
            {
                "round": number,
                "train_seconds": seconds if trained else 0.0,
                "evaluate_seconds": 0.8 if "accuracy" in row else 0.0,
                "clients_per_second": trained / seconds if trained else None,
            }
        )
    if final_metrics:
        [row for row in round_rows if "accuracy" in row][-1].update(final_metrics)
    train_seconds = sum(row["train_seconds"] for row in timing_rows)
    name = name or f"{label}-seed{seed}"
    return RunData(
        path=Path("runs") / name,
        name=name,
        label=label,
        config={
            "name": name,
            "seed": seed,
            "rounds": rounds,
            "cohort": 20,
            "federation": {"name": "chitchat", "sequence_length": 64, "split": "by_client"},
            "model": {"name": "lstm", "hidden": 128},
            "algorithm": {"name": algorithm} | ({"mu": 0.01} if algorithm == "fedprox" else {}),
            "local": {"epochs": 1, "steps": None, "batch_size": 16, "lr": 0.5},
            "evaluation": {"every": every, "part": "test", "max_clients": None},
            "engine": {"name": "cohort", "device": "cpu"},
            **(config or {}),
        },
        environment={
            "seed": seed,
            "command": ["fedarena", "run", "name=a run"],
            "versions": {"python": "3.11.7", "fedarena": "0.1.0", "torch": "2.9.0"},
            "hardware": {"processor": "a processor", "cores": 2, "memory_bytes": 8_000_000_000, "gpus": []},
        },
        summary={
            "status": status,
            "message": message,
            "rounds_done": done,
            "rounds": rounds,
            "seed": seed,
            "baseline": baseline,
            "timing": {
                "wall_seconds": train_seconds + sum(row["evaluate_seconds"] for row in timing_rows),
                "clients_per_second": 20 * done / train_seconds if done else None,
            },
        },
        status=status,
        rounds=pa.Table.from_pylist(round_rows, schema=schemas["rounds"]),
        clients=pa.concat_tables(client_tables),
        timings=pa.Table.from_pylist(timing_rows, schema=schemas["timings"]),
        jobs=schemas["jobs"].empty_table(),
    )


@pytest.fixture(scope="session")
def make_run() -> Callable[..., RunData]:
    return build_run


@pytest.fixture(scope="session")
def comparison() -> list[RunData]:
    """Three methods with three seeds each; one seed of fedprox diverged."""
    runs = [build_run(label, seed) for label in ("fedavg", "fedprox", "fedyogi") for seed in (0, 1, 2)]
    runs[5] = build_run("fedprox", 2, stop_after=22, status="diverged", message="The training loss became nan.")
    return runs


@pytest.fixture(scope="session")
def browser_path() -> str:
    """An installed Chromium or Chrome."""
    for name in ("chromium", "google-chrome", "chromium-browser"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium or Chrome is installed")
