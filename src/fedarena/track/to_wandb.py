"""Weights & Biases, online or offline."""

from __future__ import annotations

import netrc
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from fedarena.core.errors import BadInputError
from fedarena.track.tracker import TRACKERS, Ending, Step, TrackedRun, Tracker
from fedarena.track.wandb_files import last_step

_OFFLINE = ("offline", "dryrun", "disabled")
_FLUSH = "x_transaction_log_flush_interval"  # which earlier versions of W&B do not have
_HOURS = "systems/hours"
_OVER_HOURS = "over_virtual_hours"  # the leading metric once more, drawn over virtual time


@TRACKERS.register("wandb")
class WandB(Tracker):
    """Logs to Weights & Biases; its files are in ``wandb`` in the run folder.

    Offline (`mode`, or the variable WANDB_MODE) nothing leaves the machine, and ``wandb sync`` sends it later. What is
    not set here (the account, the server) is as W&B's own variables and files say.
    """

    package = "wandb"

    def __init__(
        self,
        *,
        project: str = "fedarena",
        entity: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ):
        self._project, self._entity, self._group, self._mode = project, entity, group, mode

    def check(self) -> None:
        """Refuses to go online without an account: W&B would ask for one in the middle of a run."""
        super().check()
        if (self._mode or os.environ.get("WANDB_MODE")) not in _OFFLINE and not _has_account():
            raise BadInputError(
                "The tracker wandb has no account to log in to: run wandb login once, "
                "or keep the run on this machine with WANDB_MODE=offline or track='{name: wandb, mode: offline}'"
            )

    def begin(self, run: TrackedRun) -> int | None:
        """Opens W&B's run, or goes on with the one of the same id."""
        self.check()
        mode: Any = self._mode or os.environ.get("WANDB_MODE")
        if mode in _OFFLINE:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._id = str(run.kept.get("id") or uuid.uuid4().hex[:12])
        there = last_step(run.folder / "wandb", self._id)
        hooks = sys.exit, sys.excepthook
        try:
            self._run: Any = wandb.init(
                project=self._project,
                entity=self._entity,
                group=self._group or run.group,
                name=run.name,
                id=self._id,
                resume="allow",
                reinit="create_new",
                dir=str(run.folder.absolute()),
                config=dict(run.config),
                tags=[f"{key}:{value}"[:64] for key, value in run.tags.items()],
                mode=mode,
                settings=_settings(wandb.Settings),
            )
        finally:  # W&B replaces them to learn how the process ends; we tell it ourselves, and others need them
            sys.exit, sys.excepthook = hooks
        self._metric = run.metric
        self._run.define_metric(_HOURS)
        self._run.define_metric(f"{_OVER_HOURS}/*", step_metric=_HOURS)
        return there

    def log(self, steps: Sequence[Step]) -> None:
        """Logs every round at a step of its own."""
        for step in steps:
            score = step.values.get(self._metric)
            over_hours = {} if score is None or not step.hours else {f"{_OVER_HOURS}/{self._metric}": score}
            self._run.log({"round": step.round, **step.values, **over_hours}, step=step.round)

    def kept(self) -> dict[str, Any]:
        """The id of W&B's run."""
        return {"id": self._id}

    def finish(self, ending: Ending) -> None:
        """Adds the last evaluation to W&B's summary, and the report as an artifact."""
        import wandb

        self._run.summary.update({**ending.summary, "status": ending.status, "message": ending.message})
        if ending.report is not None:
            artifact = wandb.Artifact(f"report-{self._id}", type="report")
            artifact.add_file(str(ending.report))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if ending.status in ("finished", "interrupted") else 1)


def _settings(kind: Any) -> Any:
    """Quiet, nothing about this machine's load or code, and on disk soon after it is logged."""
    known = {"silent": True, "console": "off", "x_disable_stats": True, "disable_git": True, "save_code": False}
    known |= {_FLUSH: 1.0} if _FLUSH in kind.model_fields else {}
    return kind(**known)


def _has_account() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    for path in (os.environ.get("NETRC"), Path.home() / ".netrc", Path.home() / "_netrc"):
        try:
            if path and netrc.netrc(str(path)).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
