"""Counting the floating-point operations of a training step."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedarena.models import Task, Tensors


def count_training_flops(task: Task, params: Tensors, batch: Tensors) -> float:
    """Operations of the loss and its gradient, per sample of the batch, as torch's FlopCounterMode counts them.

    It counts matrix products and convolutions (a multiplication and an addition are two), not elementwise operations.
    """
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(task.loss(leaves, batch), list(leaves.values()))
    return float(counter.get_total_flops()) / len(batch["x"])
