"""The courses of a table of FedHPO-Bench's LR problems: as lanes, and one at a time. Needs torch and numpy alone."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedarena.algorithms import ALGORITHMS
from fedarena.hpo.lanes.arrangement import Trial
from fedarena.hpo.lanes.curves import TrialCurves
from fedarena.hpo.lanes.planning import Scene
from fedarena.hpo.lanes.training import LaneTrainer
from fedarena.models import DataSpec, Task, build_model, trainable_parameters
from fedarena.models.tasks import task_class
from fedarena.simulate import Simulation, simulate
from fedarena.simulate.selectors import SELECTORS
from fedarena.train import CohortEngine, LocalTraining
from fedarena.train.hardware import Hardware

PARTS = ("train", "validation", "test")
METRICS = ("accuracy", "macro_f1")
Settings = dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """Of several clients, one after the other."""

    columns: dict[str, np.ndarray]
    offsets: np.ndarray


class Arrays:
    """A federation of a few clients whose samples are arrays."""

    def __init__(self, parts: dict[str, Samples]):
        self.parts = parts
        self.all_clients = np.arange(len(parts["train"].offsets) - 1)

    def samples(self, clients: np.ndarray, part: str) -> Samples:
        """The samples of these clients."""
        stored = self.parts[part]
        rows = [np.arange(stored.offsets[client], stored.offsets[client + 1]) for client in clients]
        taken = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum([len(some) for some in rows])]).astype(np.int64)
        return Samples({name: values[taken] for name, values in stored.columns.items()}, offsets)

    def counts(self, clients: np.ndarray, part: str) -> np.ndarray:
        """How many samples these clients have."""
        counts: np.ndarray = np.diff(self.parts[part].offsets)[clients]
        return counts

    def with_samples(self, part: str) -> np.ndarray:
        """Clients that have some of a part."""
        return self.all_clients[self.counts(self.all_clients, part) > 0]

    @property
    def spec(self) -> DataSpec:
        """What a model needs to know."""
        labels = [stored.columns["y"].max() for stored in self.parts.values() if len(stored.columns["y"])]
        return DataSpec("classification", int(max(labels)) + 1, self.parts["train"].columns["x"].shape[1:])


def read_arrays(path: Path) -> dict[str, Arrays]:
    """Federations by name, from a file of `write_arrays`."""
    with np.load(path) as file:
        names = sorted({key.split("/")[0] for key in file.files})
        return {
            name: Arrays(
                {
                    part: Samples({c: file[f"{name}/{part}/{c}"] for c in ("x", "y")}, file[f"{name}/{part}/offsets"])
                    for part in PARTS
                }
            )
            for name in names
        }


def write_arrays(path: Path, federations: dict[str, Arrays]) -> None:
    """Writes federations to one file."""
    flat = {
        f"{name}/{part}/{column}": values
        for name, arrays in federations.items()
        for part, stored in arrays.parts.items()
        for column, values in {**stored.columns, "offsets": stored.offsets}.items()
    }
    np.savez_compressed(path, **flat)


def grid(seeds: int, cohorts: int) -> list[Settings]:
    """The courses of Table 8 for LR, on its bins: 672 configurations by seeds and numbers of clients in a round."""
    values = {
        "seed": range(seeds),
        "cohort": range(1, cohorts + 1),
        "batch_size": [4 << power for power in range(7)],
        "weight_decay": np.linspace(0, 0.001, 4).tolist(),
        "steps": range(1, 5),
        "lr": np.geomspace(1e-5, 1, 6).tolist(),
    }
    return [dict(zip(values, some, strict=True)) for some in itertools.product(*values.values())]


class Courses:
    """The courses of one table."""

    def __init__(self, data: Arrays, rounds: int, note_rounds: np.ndarray, dtype: str, device: str):
        self.data, self.rounds, self.note_rounds = data, rounds, note_rounds
        self.dtype, self.device = dtype, device
        self.clients = data.with_samples("train")

    def lanes(self, courses: list[Settings]) -> tuple[float, TrialCurves]:
        """Seconds for all of them, from settings to scores, and what came of them."""
        begin = time.perf_counter()
        models = {seed: self._model(seed) for seed in {course["seed"] for course in courses}}
        task = next(iter(models.values()))
        starts = {
            seed: {name: p.detach().clone() for name, p in trainable_parameters(one.module).items()}
            for seed, one in models.items()
        }
        trials = []
        for number, course in enumerate(courses):
            local, algorithm = self._method(course)
            trials.append(
                Trial(number, course["seed"], course["cohort"], local, algorithm, task, starts[course["seed"]])
            )
        scored: Any = {part: self.data.with_samples(part) for part in PARTS}
        scene = Scene(self.data, self.clients, scored, SELECTORS.get("uniform")(), self.rounds)  # type: ignore[arg-type]
        hardware = Hardware(self.device, 1, self.dtype, "full")  # type: ignore[arg-type]
        order: list[int] = []
        parts = []
        for numbers, curves in LaneTrainer(scene, trials, hardware, self.note_rounds, best=True).run():
            order += numbers
            parts.append(curves)
        curves = TrialCurves.join(parts).take(np.argsort(order))
        return time.perf_counter() - begin, curves

    def alone(self, course: Settings, device: str, workers: int) -> tuple[float, list[float]]:
        """Seconds for one with the cohort engine, and its validation losses.

        As in lanes, the validation loss is computed after every round, everything else at noted rounds.
        """
        begin = time.perf_counter()
        task = self._model(course["seed"])
        local, algorithm = self._method(course)
        options: Any = {"device": device, "dtype": self.dtype, "workers": workers}
        engine = CohortEngine(task, algorithm, local, self.data, course["seed"], **options)  # type: ignore[arg-type]
        simulation = Simulation(
            seed=course["seed"],
            rounds=self.rounds,
            cohort=course["cohort"],
            task=task,
            algorithm=algorithm,
            engine=engine,
            training_clients=self.clients,
            evaluation_clients=self.data.with_samples("validation"),
            evaluation_part="validation",
            evaluate_every=1,
            flops_per_sample=0.0,
            client_ids=lambda clients: [str(client) for client in clients],
        )
        noted = set(self.note_rounds.tolist())
        losses: list[float] = []
        for outcome in simulate(simulation):
            if outcome.snapshot.round:
                losses.append(outcome.row["loss"])
            if outcome.snapshot.round in noted:
                for part in ("train", "test"):
                    engine.evaluate(outcome.snapshot.state["params"], self.data.with_samples(part), part)  # type: ignore[arg-type]
        return time.perf_counter() - begin, losses

    def _model(self, seed: int) -> Task:
        spec = self.data.spec
        kind = task_class("classification", spec)
        return kind(build_model("logistic_regression", spec, {}, seed), spec, metrics=METRICS)

    def _method(self, course: Settings) -> tuple[LocalTraining, Any]:
        settings = {name: course[name] for name in ("steps", "batch_size", "lr", "weight_decay")}
        local = LocalTraining(epochs=None, **settings)
        algorithm = ALGORITHMS.get("fedavg")()
        algorithm.prepare(len(self.clients), local, self.rounds)
        return local, algorithm


def environment(device: str) -> dict[str, Any]:
    """Where it was measured."""
    import os
    import platform

    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"python": platform.python_version(), "torch": torch.__version__, "cores": cores, "gpu": gpu}
