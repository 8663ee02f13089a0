"""Counting the floating-point operations of a training step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cudnn, mkldnn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry

from fedarena.models import Task, Tensors, trainable_parameters
from fedarena.train.algorithm import Algorithm
from fedarena.train.jobs import newcomer
from fedarena.train.without_compiler import DispatchMode


def count_training_flops(task: Task, algorithm: Algorithm | None = None, whole: bool = False) -> float:
    """Operations of what a client minimizes and its gradient for one sample, as many as torch's FlopCounterMode counts.

    It counts matrix products and convolutions (a multiplication and an addition are two), not elementwise operations.
    A layer that does its work in other ways says how many operations that is for a sample, in `uncounted_flops`. The
    gradient is by what is trained, or by the `whole` model, as if nothing of it were frozen.
    """
    params = trainable_parameters(task.module)
    if whole:
        params = {name: p for name, p in task.module.named_parameters() if p.is_floating_point()}
    batch, device = _example(task), next(iter(params.values())).device
    batch["key"] = torch.zeros((), dtype=torch.int64, device=device)  # as it is trained on, not as it is scored
    algorithm = algorithm or Algorithm()
    broadcast = algorithm.broadcast(algorithm.server_init(params))
    client = newcomer(broadcast, algorithm.client_init(broadcast))
    start = algorithm.local_start(client)
    leaves = {name: p.detach().requires_grad_() for name, p in start.items()}
    task.module.train()
    with _without_libraries(), _Counter() as counter:
        # Copies, because the counter cannot follow leaves through layers that are parametrized.
        loss = algorithm.local_loss(task, {name: p.clone() for name, p in leaves.items()}, batch, client)
        torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return float(counter.flops + _uncounted_flops(task))


def count_scoring_flops(task: Task) -> float:
    """Operations of the loss of the model on one sample that nobody learns from, counted in the same way."""
    params, batch, was_training = trainable_parameters(task.module), _example(task), task.module.training
    task.module.eval()
    with torch.no_grad(), _without_libraries(), _Counter() as counter:
        task.loss(params, batch)
    task.module.train(was_training)
    return float(counter.flops + _uncounted_flops(task) / 2)


def _example(task: Task) -> Tensors:
    """A batch of one sample, where the model is."""
    device = next(task.module.parameters()).device
    return task.batch({name: values.to(device) for name, values in task.example(1).items()})


def _uncounted_flops(task: Task) -> float:
    """Of layers that do their work in other ways, half of it for the gradient."""
    return float(sum(getattr(layer, "uncounted_flops", 0) for layer in task.module.modules()))


class _Counter(DispatchMode):
    """Counts what torch has formulas for. Its own counter would do, but it loads torch's compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.prim.device.default:
            with self:
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        out = func(*args, **kwargs)
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


@contextmanager
def _without_libraries() -> Iterator[None]:
    """Within this context, recurrent layers and attention are products that are counted, alike on all devices.

    Libraries do not say what they compute, or count what they compute again.
    """
    before = mkldnn.enabled, cudnn.enabled
    switches: tuple[Any, Any] = mkldnn, cudnn
    for library in switches:
        library.enabled = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, enabled in zip(switches, before, strict=True):
            library.enabled = enabled
