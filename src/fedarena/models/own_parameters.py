"""Whether a model of somebody's own computes with the parameters that it is given, found out by trying.

Engines call a model with parameters of clients, which are in the places of its own only while it is called. What a
model reads when gradients are computed, or by a way that torch does not know, are its own instead: it would train
something else, and on every engine the same.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.core.seeding import seeded
from fedarena.models.probes import in_mode, made_up_batch, nearly_same
from fedarena.models.tasks import Task, Tensors
from fedarena.models.trainable import trainable_parameters

_SAMPLES = 3
_MOVED = 0.3  # how far parameters are moved for that, times their size
_ROUNDING = 1e-3  # of a gradient


def check_uses_what_it_is_given(name: str, task: Task) -> None:
    """Refuses a model whose loss or gradients are others when its own parameters are those that it is given."""
    own = trainable_parameters(task.module)
    before = {path: p.detach().clone() for path, p in own.items()}
    random = torch.Generator().manual_seed(0)
    moved = {path: _moved(p, random).requires_grad_() for path, p in before.items()}
    batch = made_up_batch(task, _SAMPLES, 0)
    given = _loss_and_gradients(task, moved, batch)
    try:
        _put(own, moved)
        themselves = _loss_and_gradients(task, own, batch)
    finally:
        _put(own, before)
    scale = max(float(gradient.norm()) for gradient in themselves)
    for one, other in zip(given, themselves, strict=True):
        if float((one - other).norm()) > _ROUNDING * max(scale, float(other.norm())):
            raise BadInputError(
                f"The model {name!r} computes with other parameters than those that it is given, and would be trained "
                "wrongly: it reads them while gradients are computed (torch.utils.checkpoint, hooks, an "
                "autograd.Function that keeps the model), or by another way than it declares them (a list, a "
                "dictionary, functools.partial, a function that remembers them); leave out checkpoints, which change "
                "no result, and read parameters in forward, from where they are declared (self.layer.weight)"
            )


def check_keeps_nothing_of_the_first_call(name: str, task: Task, never_called: nn.Module) -> None:
    """Refuses a model that computes something else of the same samples if it has seen others before."""
    used, fresh = _with_module(task, copy.deepcopy(never_called)), _with_module(task, never_called)
    first, second = (made_up_batch(task, _SAMPLES, seed) for seed in (1, 2))
    with torch.no_grad():
        _outputs(used, first)
        alike = nearly_same(_outputs(used, second), _outputs(fresh, second))
    if not alike:
        raise BadInputError(
            f"The model {name!r} keeps something of the first samples that it is called with, which are made-up ones "
            "here, and then of whichever client comes first; make it a parameter, or compute it before and give it as "
            "an option"
        )


def check_is_built_alike(name: str, one: Task, other: Task) -> None:
    """Refuses a model that is another one when it is built again from the same seed."""
    tensors = [{**dict(task.module.named_parameters()), **dict(task.module.named_buffers())} for task in (one, other)]
    alike = all(torch.equal(t, tensors[1][path]) for path, t in tensors[0].items())
    batch = made_up_batch(one, _SAMPLES, 1)
    with torch.no_grad():
        alike = alike and nearly_same(_outputs(one, batch), _outputs(other, batch))
    if not alike:
        raise BadInputError(
            f"The model {name!r} is another one when it is built again from the same seed, so a run could be neither "
            "repeated nor resumed; draw from torch's generator, or from one with a seed (np.random.default_rng(0), "
            "random.Random(0))"
        )


def _moved(p: Tensor, random: torch.Generator) -> Tensor:
    size = p.square().mean().sqrt() + 0.1
    return p + _MOVED * size * torch.randn(p.shape, generator=random).to(p)


def _put(params: Tensors, values: Tensors) -> None:
    with torch.no_grad():
        for path, p in params.items():
            p.copy_(values[path])


def _loss_and_gradients(task: Task, params: Tensors, batch: Tensors) -> list[Tensor]:
    with in_mode(task, training=True), seeded(0), torch.enable_grad():
        loss = task.loss(params, dict(batch))
        gradients = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
    return [torch.nan_to_num(t.detach()) for t in (loss, *gradients)]


def _outputs(task: Task, batch: Tensors) -> Tensor:
    with in_mode(task, training=True), seeded(0):
        return task.predict(trainable_parameters(task.module), dict(batch))


def _with_module(task: Task, module: nn.Module) -> Task:
    other = copy.copy(task)
    other.module = module
    return other
