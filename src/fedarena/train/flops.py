"""Counting the floating-point operations of a training step."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedarena.models import Task


def count_training_flops(task: Task) -> float:
    """Operations of the loss and its gradient for one sample, as torch's FlopCounterMode counts them.

    It counts matrix products and convolutions (a multiplication and an addition are two), not elementwise operations.
    """
    batch = task.batch(task.example(1))
    leaves = {name: p.detach().requires_grad_() for name, p in task.module.named_parameters()}
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(task.loss(leaves, batch), list(leaves.values()), materialize_grads=True)
    return float(counter.get_total_flops())
