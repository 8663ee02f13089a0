"""Local optimizers as pure functions of tensors, elementwise, so that they work on one client or on many stacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from fedarena.models import Tensors
from fedarena.train.tensors import Groups

OptimizerName = Literal["sgd", "adam"]
# (parameters, gradient, optimizer state, number of this step counted from 1) -> (parameters, optimizer state)
OptimizerStep = Callable[[Tensors, Tensors, Groups, int], tuple[Tensors, Groups]]


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: for a number of epochs over its samples, or for a number of steps."""

    epochs: int | None = 1
    steps: int | None = None
    batch_size: int = 16
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0


def make_optimizer(local: LocalTraining) -> OptimizerStep:
    """The step function of the chosen optimizer; its state starts as ``{}``."""
    step = {"sgd": _sgd_step, "adam": _adam_step}[local.optimizer]

    def optimizer_step(params: Tensors, grad: Tensors, state: Groups, number: int) -> tuple[Tensors, Groups]:
        if local.weight_decay:
            grad = {name: g + local.weight_decay * params[name] for name, g in grad.items()}
        return step(local, params, grad, state, number)

    return optimizer_step


def _sgd_step(
    local: LocalTraining, params: Tensors, grad: Tensors, state: Groups, number: int
) -> tuple[Tensors, Groups]:
    if local.momentum:
        if number > 1:
            grad = {name: local.momentum * state["momentum"][name] + g for name, g in grad.items()}
        state = {"momentum": grad}
    return {name: params[name] - local.lr * g for name, g in grad.items()}, state


def _adam_step(
    local: LocalTraining, params: Tensors, grad: Tensors, state: Groups, number: int
) -> tuple[Tensors, Groups]:
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    zeros = {name: torch.zeros_like(g) for name, g in grad.items()}
    first, second = state.get("first", zeros), state.get("second", zeros)
    first = {name: beta1 * first[name] + (1 - beta1) * g for name, g in grad.items()}
    second = {name: beta2 * second[name] + (1 - beta2) * g * g for name, g in grad.items()}
    scale1, scale2 = 1 - beta1**number, 1 - beta2**number
    new = {
        name: params[name] - local.lr * (first[name] / scale1) / ((second[name] / scale2).sqrt() + epsilon)
        for name in grad
    }
    return new, {"first": first, "second": second}
