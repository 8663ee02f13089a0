"""MLflow: a local database beside the runs, or any server."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import filelock

from fedarena.track.tracker import TRACKERS, Ending, Step, TrackedRun, Tracker

_STATUS = {"finished": "FINISHED", "interrupted": "KILLED"}
_LOCK_FILE, _LOCK_SECONDS = ".mlflow.lock", 60
_ROUND = "round"  # a metric that tells how far a run of MLflow has come
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000  # in one call
_MOST_CHARACTERS = 6000  # of a parameter
_NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")


@TRACKERS.register("mlflow")
class MLflow(Tracker):
    """Logs to MLflow: by default to the database ``mlflow.db`` in the folder that the run lies in.

    `uri` is another tracking store, as is the variable MLFLOW_TRACKING_URI. `experiment` is by default called like the
    folder that the run lies in, which is its suite.
    """

    package = "mlflow"

    def __init__(self, *, uri: str | None = None, experiment: str | None = None):
        self._uri, self._experiment = uri, experiment

    def begin(self, run: TrackedRun) -> int | None:
        """Opens the run, or goes on with it."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        beside = run.folder.absolute().parent
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{beside / 'mlflow.db'}"
        self._metric = run.metric
        # Runs of a suite may begin at the same time, and only one of them can make the database.
        with (
            filelock.FileLock(beside / _LOCK_FILE, timeout=_LOCK_SECONDS)
            if uri.startswith("sqlite:")
            else nullcontext()
        ):
            self._client = MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)
        self._id = str(run.kept.get("run", ""))
        if self._id:
            try:
                there = self._client.get_run(self._id).data.metrics.get(_ROUND, -1)
                self._client.update_run(self._id, status="RUNNING")
                return int(there)
            except MlflowException:  # the store was removed, or is another one now
                pass
        artifacts = (beside / "mlflow_artifacts").as_uri() if uri.startswith("sqlite:") else None
        experiment = self._experiment_id(self._experiment or run.group, artifacts)
        tags = {**run.tags, "fedarena.folder": str(run.folder.absolute())}
        self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        self._log_settings(run.settings)
        return -1

    def log(self, steps: Sequence[Step]) -> None:
        """Logs a round in one call, so that it is there wholly or not at all."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        waiting: list[Any] = []
        for step in steps:
            values = [(name, value, step.round) for name, value in step.values.items()]
            score = step.values.get(self._metric)
            if score is not None and step.hours:
                values.append((f"over_virtual_seconds/{self._metric}", score, round(3600 * step.hours)))
            values.append((_ROUND, float(step.round), step.round))
            if len(waiting) + len(values) > _MOST_METRICS:
                self._client.log_batch(self._id, metrics=waiting)
                waiting = []
            waiting += [Metric(_NOT_IN_NAMES.sub("_", name), value, now, at) for name, value, at in values]
        self._client.log_batch(self._id, metrics=waiting)

    def kept(self) -> dict[str, Any]:
        """The id of MLflow's run."""
        return {"run": self._id}

    def finish(self, ending: Ending) -> None:
        """Keeps the report, and how the run ended."""
        if ending.report is not None:
            self._client.log_artifact(self._id, str(ending.report))
        self._client.set_tag(self._id, "status", ending.status)
        if ending.message is not None:
            self._client.set_tag(self._id, "message", ending.message)
        self._client.set_terminated(self._id, _STATUS.get(ending.status, "FAILED"))

    def _experiment_id(self, name: str, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:  # otherwise another run was faster
                    raise
        return str(found.experiment_id)

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        each = [Param(_NOT_IN_NAMES.sub("_", key), str(value)[:_MOST_CHARACTERS]) for key, value in settings.items()]
        for begin in range(0, len(each), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=each[begin : begin + _MOST_PARAMETERS])
