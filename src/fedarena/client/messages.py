"""What a server and a device tell each other about a job: jobs, models and updates in the form in which they travel.

Both sides read and write them here, so that they cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.train import Groups, JobArrays, JobResults, Work, map_groups
from fedarena.transforms import Transform
from fedarena.transforms.rows import ScaledRows
from fedarena.transforms.sending import Sent
from fedarena.transforms.wire import PACKED, PARAMS

_OF_TRANSFORM = "server:"  # begins the names of groups of a model with what transforms at the client look at


def model_groups(broadcast: Groups, transforms: Sequence[Transform], states: Sequence[Groups]) -> Groups:
    """What a device downloads: the broadcast, and what its `transforms` have to know of what the server keeps."""
    groups = dict(broadcast)
    for number, (transform, state) in enumerate(zip(transforms, states, strict=False)):
        for group, tensors in transform.told_to_clients(state).items():
            groups[f"{_OF_TRANSFORM}{number}:{group}"] = tensors
    return groups


def split_model(groups: Groups, transforms: int) -> tuple[Groups, list[Groups]]:
    """The inverse of `model_groups`: the broadcast, and what the server told each of so many transforms."""
    broadcast = {group: tensors for group, tensors in groups.items() if not group.startswith(_OF_TRANSFORM)}
    states: list[Groups] = [{} for _ in range(transforms)]
    for group, tensors in groups.items():
        if group.startswith(_OF_TRANSFORM):
            number, _, name = group.removeprefix(_OF_TRANSFORM).partition(":")
            if not number.isdecimal() or int(number) >= transforms:
                raise BadInputError(f"The model has a group {quoted(group)}, which is of no transform")
            states[int(number)][name] = tensors
    return broadcast, states


def task_of(jobs: JobArrays, position: int = 0) -> dict[str, Any]:
    """What a device must know about one of these jobs, besides the model that it starts from."""
    job = jobs.take([position])
    return {
        "round": int(job.rounds[0]),
        "now": int(job.rounds[0] if job.server_rounds is None else job.server_rounds[0]),
        "share": float(job.shares[0]),
        "version": int(job.versions[0]),
        "lr_scale": None if job.lr_scales is None else float(job.lr_scales[0]),
        "hyperparameters": None
        if job.hyperparameters is None
        else {k: float(v[0]) for k, v in job.hyperparameters.items()},
        "decisions": None if job.decisions is None else job.decisions[0].tolist(),
        "corrupted": bool(job.corrupted[0]),
    }


def job_of(task: Mapping[str, Any], client: int) -> JobArrays:
    """The inverse of `task_of`."""
    try:
        own = task["hyperparameters"]
        return JobArrays(
            clients=np.array([client], dtype=np.int64),
            rounds=np.array([task["round"]], dtype=np.int64),
            shares=np.array([task["share"]], dtype=np.float64),
            versions=np.array([task["version"]], dtype=np.int64),
            staleness=np.zeros(1, dtype=np.int64),
            server_steps=np.zeros(1, dtype=np.int64),
            corrupted=np.array([task["corrupted"]], dtype=np.bool_),
            lr_scales=None if task["lr_scale"] is None else np.array([task["lr_scale"]], dtype=np.float64),
            server_rounds=np.array([task["now"]], dtype=np.int64),
            hyperparameters=None if own is None else {name: np.array([v], dtype=np.float64) for name, v in own.items()},
            decisions=None if task["decisions"] is None else np.array([task["decisions"]], dtype=np.float64),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadInputError(f"The server's task cannot be understood: {error!r:.200}") from error


def sent_update(sent: Sent) -> Groups:
    """What one client uploads; bytes instead of parameters, where they were packed."""
    rows = ScaledRows(sent.rows.update, sent.rows.factors).rows() if sent.rows.factors else sent.rows.update
    update = map_groups(lambda t: t[0].cpu(), rows)
    if sent.rows.packed is not None:
        update = {PACKED: {PARAMS: sent.rows.packed}, **{group: ts for group, ts in update.items() if group != PARAMS}}
    return update


def report_of(sent: Sent) -> dict[str, Any]:
    """The numbers that one client sends beside its update."""
    work = sent.result.work
    return {
        "samples": int(work.samples[0]),
        "steps": int(work.steps[0]),
        "processed": int(work.processed_samples[0]),
        "start_loss": None if work.start_loss is None else _finite(work.start_loss[0]),
        "loss": _finite(sent.result.losses[0]),
        "uploaded_bytes": None if sent.uploaded_bytes is None else int(sent.uploaded_bytes[0]),
        "observed": {name: float(value) for name, value in sent.observed.items()},
    }


def without_what_was_learned(report: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that one client sends where the server gets sums of updates alone: how much it did, no more."""
    return {**report, "start_loss": None, "loss": None, "observed": {}}


def arrived_results(jobs: JobArrays, update: Groups, report: Mapping[str, Any]) -> JobResults:
    """What one client sent, as an engine would give it: for `UpdatePath.receive`. `jobs` is one job."""

    def number(name: str) -> float:
        value = report.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadInputError(f"{name} is {quoted(value)}, not a finite number")
        return value

    start_loss = None if report.get("start_loss") is None else np.array([number("start_loss")])
    samples, steps, processed = (np.array([int(number(name))]) for name in ("samples", "steps", "processed"))
    rows = map_groups(lambda t: t.unsqueeze(0), update)
    return JobResults(jobs, rows, {}, Work(samples, steps, processed, start_loss), np.array([number("loss")]))


def _finite(value: Any) -> float | None:
    """JSON has no word for what is not finite."""
    number = float(value.item() if isinstance(value, torch.Tensor) else value)
    return number if math.isfinite(number) else None
