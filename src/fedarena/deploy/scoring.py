"""Evaluation by devices, for servers that have no samples: each sends the sums of its metrics' states, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fedarena.client import codec
from fedarena.client.scores import COUNTS, STATES, client_states
from fedarena.core.errors import BadInputError, TrainingStuckError
from fedarena.deploy.admission import Admission, RefusedError
from fedarena.deploy.coordinator import Coordinator
from fedarena.deploy.rules import Rule
from fedarena.deploy.tasks import Course, Task, new_task_id
from fedarena.deploy.update_form import UpdateForm
from fedarena.metrics.ranking import RankingMetric
from fedarena.metrics.totals import COUNT, Totals
from fedarena.models import Tensors
from fedarena.runs.deployed import DeployOptions
from fedarena.train import ClientScores, Engine
from fedarena.train.engine import Part
from fedarena.train.evaluation import client_scores
from fedarena.train.tensors import unflatten_groups

_LOOK_SECONDS = 1.0


class ScoringRule(Rule):
    """Everybody who was asked, but nobody for longer than so many seconds."""

    def __init__(self, seconds: float):
        super().__init__(None)
        self._seconds = seconds

    def ends_at(self, course: Course) -> float:
        """So long is waited."""
        return course.begin + self._seconds


class ScoreAdmission(Admission):
    """The checks of what devices say about a model: as for updates, but sums of states may be of any size."""

    def check_report(self, report: Mapping[str, Any], spec: Mapping[str, Any], samples: int) -> None:
        """A device cannot have scored more samples than it said it has."""
        found = report.get("samples")
        if type(found) is not int or not 0 < found <= spec["most_samples"]:
            raise RefusedError("samples", f"A model was scored on at most {spec['most_samples']:,} samples")


class DeviceScoring:
    """Asks the devices that are there to score a model."""

    def __init__(
        self,
        coordinator: Coordinator,
        engine: Engine,
        names: dict[int, str],
        samples: Callable[[str, Part], int | None],
        options: DeployOptions,
        fewest: int,
        seconds: Callable[[], float],
    ):
        self._coordinator, self._task = coordinator, engine.task  # type: ignore[attr-defined]
        self._names, self._samples, self._seconds = names, samples, seconds
        self._limit, self._fewest, self._turn = options.scoring_seconds, fewest, 0
        self._admission = ScoreAdmission(self._form(engine), engine.algorithm, engine.local, DeployOptions())

    def _form(self, engine: Engine) -> UpdateForm:
        """What states look like, found by measuring meaningless samples."""
        if any(isinstance(metric, RankingMetric) for metric in self._task.metrics):
            raise BadInputError(
                "A metric of this run needs the scores of all samples together, and devices send sums only; choose "
                "other task.metrics, or give the server samples to evaluate on"
            )
        task, params = self._task, engine.initial_params()
        with torch.no_grad():
            columns = {name: t.to(next(iter(params.values())).device) for name, t in task.example(1).items()}
            states = task.measure(params, task.batch(columns))
        found: codec.Form = {
            f"{STATES}/{name}": (torch.float64, tuple(t.shape[1:])) for name, t in states.items() if name != COUNT
        }
        return UpdateForm({f"{COUNTS}/{COUNT}": (torch.float64, ()), **found})

    def evaluate(self, params: Tensors, part: Part) -> ClientScores:
        """The scores of all devices that are there and have such samples, and answer in time."""
        coordinator, asked = self._coordinator, self._those_who_can(part)
        digest, size = coordinator.publish({"params": params})
        coordinator.kept_blobs.add(digest)
        self._turn += 1
        spec = {"kind": "evaluate", "part": part, "blob": digest, "bytes": size, "version": 0, "now": self._turn}
        tasks = [
            Task(
                new_task_id(),
                client,
                name,
                place,
                0,
                {**spec, "most_samples": self._samples(name, part) or 0, "deadline_seconds": self._limit},
                0,
                self._seconds(),
            )
            for place, (client, name) in enumerate(asked.items())
        ]
        course = Course(0, self._seconds(), 0, tasks)
        coordinator.score(course, ScoringRule(self._limit), self._admission)
        while course.closed is None:
            coordinator.wait(_LOOK_SECONDS)
        coordinator.kept_blobs.discard(digest)
        return self._totals(course)

    def _those_who_can(self, part: Part) -> dict[int, str]:
        """Devices with samples of this part, as soon as enough devices are there."""
        while len(online := self._coordinator.online()) < self._fewest:
            self._coordinator.wait(_LOOK_SECONDS)
        there = {client: name for client, name in self._names.items() if name in online}
        able = {client: name for client, name in there.items() if self._samples(name, part)}
        if not able:
            raise TrainingStuckError(
                f"Nobody of {len(there)} devices has {part} samples to score the model on; let `load` give some, or "
                "choose another evaluation.part"
            )
        return able

    def _totals(self, course: Course) -> ClientScores:
        answered = sorted(course.used(), key=lambda task: task.client)
        if not answered:
            raise TrainingStuckError(
                "No device has scored the model in time; it may take longer: deploy.scoring_seconds"
            )
        totals = Totals(self._task.metrics)
        for place, task in enumerate(answered):
            body = self._admission.form.load(self._coordinator.inbox.accepted_body(task.id))
            totals.add(client_states(unflatten_groups(body), place))
        clients = np.array([task.client for task in answered])
        samples = np.array([task.report["samples"] for task in answered])
        return client_scores(totals, clients, samples)
