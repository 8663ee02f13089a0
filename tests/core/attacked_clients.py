"""Runs with corrupted clients on the small problem of `logistic_clients`, and the same in plain NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from logistic_clients import (
    CLASSES,
    COHORT,
    FEATURES,
    LOCAL,
    SEED,
    SIZES,
    cohorts,
    logistic_simulation,
    losses_and_gradient,
    make_clients,
)

from fedarena.algorithms import FedAvg
from fedarena.models import DataSpec
from fedarena.simulate import RoundOutcome, Simulation, simulate
from fedarena.train.batches import batch_indices
from fedarena.transforms.attacks import Attack, AttackedRun
from fedarena.transforms.poisoned_data import PoisonedData

_NUMBERS = itertools.count()
Samples = list[tuple[np.ndarray, np.ndarray]]


def attacked_simulation(
    make_federation: Any, engine_kind: Any, attack: Attack, algorithm: Any = None, **parts: Any
) -> Simulation:
    """The small problem with an attack, put together as a run does."""
    federation = make_federation(make_clients(), CLASSES, name=f"attacked {next(_NUMBERS)}")
    simulation = logistic_simulation(federation, algorithm or FedAvg(), LOCAL, engine_kind)
    engine = simulation.engine
    if attack.poisons_data:
        engine = engine_kind(
            simulation.task,
            simulation.algorithm,
            LOCAL,
            PoisonedData(federation, attack, SEED),
            SEED,
            dtype="float64",
        )
    simulation = replace(simulation, engine=engine, attack=attack, **parts)
    spec = DataSpec("classification", CLASSES, (FEATURES,))
    corrupted = len(simulation.corrupted_clients)
    attack.prepare(AttackedRun(spec, simulation.task, len(SIZES), corrupted, COHORT, SEED))
    return simulation


def play(make_federation: Any, engine_kind: Any, attack: Attack, *args: Any, **parts: Any) -> list[RoundOutcome]:
    return list(simulate(attacked_simulation(make_federation, engine_kind, attack, *args, **parts)))


def corrupted_of(attack: Attack) -> list[int]:
    return attack.corrupted_clients(np.arange(len(SIZES)), SEED).tolist()


def trained(w: np.ndarray, client: int, round: int, samples: Samples | None = None) -> np.ndarray:
    """What a client's training changes the model by."""
    x, y = (samples or list(make_clients().values()))[client]
    start = w
    for rows in batch_indices(len(x), LOCAL, SEED, round, client):
        w = w - LOCAL.lr * losses_and_gradient(w, x[rows], y[rows])[1]
    return w - start


def federated(
    start: np.ndarray,
    attack: Attack,
    lie: Callable[[np.ndarray, np.ndarray, int, list[int], np.ndarray], np.ndarray] | None = None,
    poisoned: Samples | None = None,
) -> np.ndarray:
    """Federated averaging in which corrupted clients train on poisoned samples, or lie about their updates.

    `lie` gets the updates of a round (a row each), who of them is corrupted, the round, who they are, and the model.
    """
    w, corrupted = start, corrupted_of(attack)
    for round, cohort in cohorts():
        bad = np.isin(cohort, corrupted) & (round >= attack.from_round)
        data = [poisoned if is_bad else None for is_bad in bad]
        updates = np.array([trained(w, c, round, samples) for c, samples in zip(cohort, data, strict=True)])
        if lie is not None and bad.any():
            updates[bad] = lie(updates, bad, round, cohort, w)
        sizes = np.array([SIZES[c] for c in cohort], dtype=float)
        w = w + sizes @ updates / sizes.sum()
    return w
