"""Getting workers for a run: what they build, where there is room for them, and how many are wanted."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import torch

from fedarena.core.errors import BadInputError
from fedarena.core.words import counted, some
from fedarena.runs.cluster.admission import why_refused
from fedarena.runs.cluster.joining import from_bench, take_seat
from fedarena.runs.cluster.messages import Message
from fedarena.runs.cluster.pool import Hiring
from fedarena.runs.cluster.worker import Worker
from fedarena.runs.cluster.workplace import Workplace
from fedarena.runs.config import RunConfig
from fedarena.runs.own_source import own_source
from fedarena.train import RayEngine
from fedarena.train.execution import available_cores


def order_for(config: RunConfig) -> Message:
    """What a worker builds: the same run without what only its driver needs. It is text, and where to find the rest."""
    engine = config.engine | {"address": None, "workers": 0}
    only_here: dict[str, Any] = {"fleet": {"name": "ideal"}, "callbacks": [], "track": [], "engine": engine}
    settings = config.model_copy(update=only_here)
    source = own_source(settings)
    if definitions := [*source.unknown, *(name for name in source.fingerprints if ":" in name)]:
        raise BadInputError(
            f"Workers cannot find {some(definitions)}, which is not in a file that can be imported; put it into "
            "one, or choose engine=cohort"
        )
    return {
        "settings": settings.to_yaml(),
        "own_source": source.to_json(),
        "path": [entry or os.getcwd() for entry in sys.path],
        "folder": os.getcwd(),
    }


def settled(workplace: Workplace, on_gpu: bool) -> Workplace:
    """With a number of workers, where that is a matter of this machine alone."""
    if workplace.address is not None or workplace.workers is not None:
        return workplace
    found = torch.cuda.device_count() if on_gpu else available_cores() // workplace.cores
    return replace(workplace, workers=max(1, found))


def hiring_for(
    ray: Any, has_room: bool, engine: RayEngine, workplace: Workplace, order: Message, mine: Message
) -> Hiring:
    """How workers are found in the cluster that this process is in, and who is refused.

    Where a cluster is there for this run alone, it has room for whomever we want.
    """
    on_gpu = engine.hardware.is_gpu
    at_once = 1 if on_gpu or engine.trains_one_at_a_time else workplace.cores
    needs = {"num_cpus": 0 if has_room or on_gpu else workplace.cores, "num_gpus": int(on_gpu)}
    kind = (at_once, tuple(needs.items()))
    worker = ray.remote(Worker).options(
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=at_once,
        scheduling_strategy="SPREAD",
        **needs,
    )
    sent = ray.put(order)
    return Hiring(
        start=lambda: from_bench(kind) or worker.remote(),
        retire=lambda actor: take_seat(kind, actor),
        begun=lambda actor: actor.is_here.remote(),
        ask=lambda actor: actor.prepare.remote(sent),
        check=lambda answer: why_refused(answer, mine, engine.mixed_hardware),
        room=lambda: _room(ray, workplace, on_gpu),
        wanted=workplace.workers,
        at_once=at_once,
    )


def check_room(ray: Any, workplace: Workplace, on_gpu: bool) -> None:
    """Refuses a cluster in which no worker would ever find room."""
    if on_gpu and not any(resources.get("GPU") for resources in _machines(ray)):
        raise BadInputError(
            "No machine of the Ray cluster has a GPU, and engine.device is cuda; start its nodes with "
            "ray start --num-gpus, or choose engine.device=cpu"
        )
    largest = max((resources.get("CPU", 0.0) for resources in _machines(ray)), default=0.0)
    if not on_gpu and workplace.address is not None and largest < workplace.cores:
        raise BadInputError(
            f"No machine of the Ray cluster has the {counted(workplace.cores, 'core')} of a worker (engine.cores); the "
            f"largest has {largest:g}"
        )


def _machines(ray: Any) -> list[dict[str, float]]:
    """What those machines have that are there."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _room(ray: Any, workplace: Workplace, on_gpu: bool) -> int:
    """For how many workers there is room, if nobody else uses the cluster."""
    if on_gpu:
        return int(sum(resources.get("GPU", 0.0) for resources in _machines(ray)))
    return sum(int(resources.get("CPU", 0.0) // workplace.cores) for resources in _machines(ray))
