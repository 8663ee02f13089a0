"""Local optimizers as pure functions of tensors, elementwise, so that they work on one client or on many stacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fedarena.core.limits import Limits
from fedarena.models import Tensors
from fedarena.train.tensors import Groups

OptimizerName = Literal["sgd", "adam"]
# Number of a client's step, counted from 1: an int, or a tensor when steps of several clients are taken at once.
StepNumber = int | Tensor
_ADAM_BETA1, _ADAM_BETA2, _ADAM_EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: for a number of epochs over its samples, or for a number of steps, which go first.

    These are the settings ``local.…`` of a run.
    """

    epochs: Annotated[int, Limits(least=1)] | None = 1
    steps: Annotated[int, Limits(least=1)] | None = None
    batch_size: Annotated[int, Limits(least=1)] = 16
    optimizer: OptimizerName = "sgd"
    lr: Annotated[float, Limits(above=0)] = 0.1
    momentum: Annotated[float, Limits(least=0, below=1)] = 0.0
    weight_decay: Annotated[float, Limits(least=0)] = 0.0


def optimizer_init(local: LocalTraining, params: Tensors) -> Groups:
    """The local optimizer's state before a client's first step."""
    names = ("first", "second") if local.optimizer == "adam" else ("momentum",) if local.momentum else ()
    return {name: {key: torch.zeros_like(p) for key, p in params.items()} for name in names}


def optimizer_step(
    local: LocalTraining, params: Tensors, grad: Tensors, state: Groups, number: StepNumber, lr_scale: Any = 1.0
) -> tuple[Tensors, Groups]:
    """One step of the local optimizer: new parameters and new state. A schedule may scale the learning rate."""
    lr = local.lr * lr_scale
    if local.weight_decay:
        grad = {name: g + local.weight_decay * params[name] for name, g in grad.items()}
    if local.optimizer == "adam":
        return _adam_step(lr, params, grad, state, number)
    if local.momentum:
        grad = {name: local.momentum * state["momentum"][name] + g for name, g in grad.items()}
        state = {"momentum": grad}
    return {name: params[name] - lr * g for name, g in grad.items()}, state


def _adam_step(lr: Any, params: Tensors, grad: Tensors, state: Groups, number: StepNumber) -> tuple[Tensors, Groups]:
    first = {name: _ADAM_BETA1 * state["first"][name] + (1 - _ADAM_BETA1) * g for name, g in grad.items()}
    second = {name: _ADAM_BETA2 * state["second"][name] + (1 - _ADAM_BETA2) * g * g for name, g in grad.items()}
    scale1, scale2 = 1 - _ADAM_BETA1**number, 1 - _ADAM_BETA2**number
    new = {
        name: params[name] - lr * (first[name] / scale1) / ((second[name] / scale2).sqrt() + _ADAM_EPSILON)
        for name in grad
    }
    return new, {"first": first, "second": second}
