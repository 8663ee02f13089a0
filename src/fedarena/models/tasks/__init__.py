"""Tasks: what a model is trained for and how it is scored; one file each, importing this registers them."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError
from fedarena.models.spec import DataSpec
from fedarena.models.tasks import (  # noqa: F401
    classification,
    click,
    masked_token,
    multi_label,
    next_token,
    node_classification,
    rating,
    regression,
    transcription,
    translation,
)
from fedarena.models.tasks.base import TASKS, Task, Tensors

AUTOMATIC_TASK = "auto"  # the one that is called like the kind of the federation

__all__ = ["AUTOMATIC_TASK", "TASKS", "Task", "Tensors", "make_task", "task_class"]


def task_class(name: str, spec: DataSpec) -> type[Task]:
    """The class of a task, which may be of somebody's own."""
    found: Any = TASKS.get(spec.kind if name == AUTOMATIC_TASK else name)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise BadInputError(f"{name} is not a task: a subclass of {Task.__module__}.{Task.__qualname__}")
    return found


def make_task(module: nn.Module, spec: DataSpec, name: str = AUTOMATIC_TASK, **options: Any) -> Task:
    """The task of this name, or the one that a federation of this form asks for."""
    kind = task_class(name, spec)
    return kind(module, kind.model_spec(spec), **as_declared(kind, options))
