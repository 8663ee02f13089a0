"""Local optimizers as pure functions of one client's tensors, which `vmap` computes for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedarena.core.limits import Limits
from fedarena.models import Tensors
from fedarena.train.tensors import Groups, flatten_groups, unflatten_groups

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
    clip_norm: Annotated[float, Limits(above=0)] | None = None  # to which longer gradients of steps are shortened


def training_of(local: LocalTraining, hyperparameters: Mapping[str, Any] | None) -> LocalTraining:
    """How clients train whose jobs have settings of their own: numbers, or arrays with an entry per job.

    It is asked for how many steps on how large batches, before training; the optimizer is told by `optimizer_step`.
    """
    if not hyperparameters:
        return local
    own: dict[str, Any] = {
        name: np.rint(hyperparameters[f"local.{name}"]).astype(np.int64)
        for name in ("steps", "epochs", "batch_size")
        if f"local.{name}" in hyperparameters
    }
    if "steps" in own:
        own["epochs"] = None
    elif "epochs" in own:
        own["steps"] = None
    return replace(local, **own)


def optimizer_init(local: LocalTraining, params: Tensors, hyperparameters: Mapping[str, Any] | None = None) -> Groups:
    """The local optimizer's state before a client's first step; jobs may have momentum of their own."""
    has_momentum = bool(local.momentum) or "local.momentum" in (hyperparameters or {})
    names = ("first", "second") if local.optimizer == "adam" else ("momentum",) if has_momentum else ()
    return {name: {key: torch.zeros_like(p) for key, p in params.items()} for name in names}


def optimizer_step(
    local: LocalTraining,
    params: Tensors,
    grad: Tensors,
    state: Groups,
    number: StepNumber,
    lr_scale: Any = 1.0,
    hyperparameters: Mapping[str, Any] | None = None,
    at_once: bool = False,
    in_place: bool = False,
) -> tuple[Tensors, Groups]:
    """One step of the local optimizer: new parameters and new state.

    A schedule may scale the learning rate, and `hyperparameters` has what a job sets itself. Plain steps of all
    parameters may be taken `at_once`, which `vmap` cannot, and then also `in_place`, where nobody needs the old ones.
    """
    own = hyperparameters or {}
    lr = own.get("local.lr", local.lr) * lr_scale
    decay, momentum = own.get("local.weight_decay", local.weight_decay), own.get("local.momentum", local.momentum)
    if local.clip_norm is not None:
        shorten = partial(_shortened_at_once if at_once else _shortened, clip_norm=local.clip_norm)
        if all("/" in name for name in grad):  # several models, which train side by side
            grad = flatten_groups({model: shorten(own) for model, own in unflatten_groups(grad).items()})
        else:
            grad = shorten(grad)
    # A job's own value is a tensor, which may be 0 for some clients only.
    if isinstance(decay, Tensor) or decay:
        grad = {name: g + decay * params[name] for name, g in grad.items()}
    if local.optimizer == "adam":
        return _adam_step(lr, params, grad, state, number)
    if isinstance(momentum, Tensor) or momentum:
        grad = {name: momentum * state["momentum"][name] + g for name, g in grad.items()}
        state = {"momentum": grad}
    if at_once:
        old, gradients = [params[name] for name in grad], list(grad.values())
        if isinstance(lr, Tensor):
            gradients, lr = list(torch._foreach_mul(gradients, lr)), 1
        if in_place:
            torch._foreach_sub_(old, gradients, alpha=lr)
            return {name: params[name] for name in grad}, state
        return dict(zip(grad, torch._foreach_sub(old, gradients, alpha=lr), strict=True)), state
    return {name: params[name] - lr * g for name, g in grad.items()}, state


def _shortened(grad: Tensors, clip_norm: float) -> Tensors:
    """A gradient whose norm over all parameters is at most `clip_norm`."""
    norm = torch.stack([g.square().sum() for g in grad.values()]).sum().sqrt()
    factor = clip_norm / norm.clamp(min=clip_norm)
    return {name: factor * g for name, g in grad.items()}


def _shortened_at_once(grad: Tensors, clip_norm: float) -> Tensors:
    """The same in a few operations on all parameters, which `vmap` cannot."""
    norm = torch.stack(torch._foreach_norm(list(grad.values()))).square().sum().sqrt()
    factor = clip_norm / norm.clamp(min=clip_norm)
    return dict(zip(grad, torch._foreach_mul(list(grad.values()), factor), strict=True))


def _adam_step(lr: Any, params: Tensors, grad: Tensors, state: Groups, number: StepNumber) -> tuple[Tensors, Groups]:
    first = {name: _ADAM_BETA1 * state["first"][name] + (1 - _ADAM_BETA1) * g for name, g in grad.items()}
    second = {name: _ADAM_BETA2 * state["second"][name] + (1 - _ADAM_BETA2) * g * g for name, g in grad.items()}
    scale1, scale2 = 1 - _ADAM_BETA1**number, 1 - _ADAM_BETA2**number
    new = {
        name: params[name] - lr * (first[name] / scale1) / ((second[name] / scale2).sqrt() + _ADAM_EPSILON)
        for name in grad
    }
    return new, {"first": first, "second": second}
