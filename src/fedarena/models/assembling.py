"""A task from names and options: what a configuration says, wherever it is read."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own
from fedarena.core.registry import make_part
from fedarena.core.seeding import all_seeded
from fedarena.core.streams import torch_seed
from fedarena.models.adaptation import ADAPTATIONS, Adaptation, adapt
from fedarena.models.augmentation import AUGMENTATIONS, Augmentation, NoAugmentation, model_sees
from fedarena.models.augmentation.trying import try_out_augmentation
from fedarena.models.copying import copy_of
from fedarena.models.spec import DataSpec
from fedarena.models.tasks import Task, task_class
from fedarena.models.zoo import build_model


def assemble_task(
    spec: DataSpec,
    *,
    model: Mapping[str, Any],
    task: Mapping[str, Any],
    augmentation: Mapping[str, Any],
    adaptation: Mapping[str, Any],
    seed: int,
    dtype: torch.dtype,
) -> Task:
    """A task with its freshly built model of this precision, of which as much is frozen as the adaptation wants.

    Every part is ``{"name": ..., **options}``.
    """
    options, task_options = dict(model), dict(task)
    kind = task_class(task_options.pop("name"), spec)
    spec = kind.model_spec(spec)
    augmenting = make_part(AUGMENTATIONS, augmentation, Augmentation, "an augmentation", seed)
    seen = model_sees(augmenting, spec, augmentation["name"])
    try_out_augmentation(augmenting, spec, seen, augmentation["name"], dtype)

    def make_task(module: nn.Module) -> Task:
        with all_seeded(torch_seed(seed, "a task")) if is_own(kind) else nullcontext():
            made = kind(module, spec, **as_declared(kind, task_options))
        made.augmentation = None if isinstance(augmenting, NoAugmentation) else augmenting
        return made

    made = make_task(build_model(options.pop("name"), seen, options, seed, make_task))
    _check_precision(made, model["name"], dtype)
    adapting = make_part(ADAPTATIONS, adaptation, Adaptation, "an adaptation", seed)
    adapt(made, adapting, adaptation["name"], seed)
    made.module.to(dtype)  # after what is drawn, which is the same in every precision, and before weights are put there
    return made


def _check_precision(task: Task, name: str, dtype: torch.dtype) -> None:
    """Refuses a model with tensors that stay as they are when it is to compute in another precision, or elsewhere."""
    if dtype == torch.get_default_dtype() or ":" not in name:  # a model of ours
        return
    precise = copy.copy(task)
    precise.module = copy_of(task.module).to(dtype).eval()
    try:
        with torch.no_grad():
            precise.predict({}, precise.batch(precise.example(1)))
    except RuntimeError as error:
        reason, precision = " ".join(str(error).split()), str(dtype).removeprefix("torch.")
        raise BadInputError(
            f"The model {name!r} does not compute in {precision}: {reason:.200}; a tensor that it "
            "keeps is moved with it if it is a buffer (self.register_buffer)"
        ) from error
