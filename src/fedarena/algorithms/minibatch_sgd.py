"""Minibatch SGD. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018 (the reference method beside FedAvg).

Every invited client computes one gradient of the broadcast model, on a fraction of its samples, and uploads it; the
server takes one step of size local.lr along their mean, in which a client counts by the samples it used. The samples
are the first of this round's shuffle, in batches of local.batch_size, and the fraction is rounded up to whole batches:
a batch size of 1 makes it exact. A batch's loss is the task's mean and counts by the samples of the batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.algorithms.registry import ALGORITHMS
from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.train import Algorithm, Client, Groups, LocalTraining, Work
from fedarena.train.batches import IntArray


@ALGORITHMS.register("minibatch_sgd")
class MinibatchSGD(Algorithm):
    """One gradient step a round on a fraction of the cohort's samples; local epochs and steps do not apply."""

    adds_sample_gradients = True

    def __init__(self, *, fraction: float = 1.0):
        if not 0 < fraction <= 1:
            raise BadInputError(f"algorithm.fraction must be above 0 and at most 1, not {fraction}")
        self.fraction = fraction

    def prepare(self, population: int, local: LocalTraining, horizon: int = 1) -> None:
        """Needs plain gradients: there is no local training that momentum or decay could belong to."""
        super().prepare(population, local, horizon)
        if local.optimizer != "sgd" or local.momentum or local.weight_decay or local.clip_norm:
            raise BadInputError(
                "minibatch_sgd takes a single step along the gradient, "
                "so it needs local.optimizer=sgd without momentum, weight_decay and clip_norm"
            )

    def local_start(self, client: Client) -> Tensors:
        """The sum of the gradients, times the negative learning rate: nothing so far."""
        return {name: torch.zeros_like(p) for name, p in client.broadcast["params"].items()}

    def local_steps(self, samples: IntArray, local: LocalTraining) -> IntArray:
        """As many batches as hold the fraction."""
        used = np.ceil(np.round(self.fraction * samples, 9)).astype(np.int64)  # 0.07 x 100 is a bit above 7
        return -(-used // local.batch_size)

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The loss of the broadcast model, whatever `params` are; its gradient is summed over the samples.

        A number minus itself without its gradient is zero, but it has a derivative.
        """
        samples = batch["mask"].sum() if "mask" in batch else len(batch["y"])
        start = client.broadcast["params"]
        model = {name: p + samples * (params[name] - params[name].detach()) for name, p in start.items()}
        return task.loss(model, batch)

    def client_update(self, params: Tensors, client: Client, work: Work) -> tuple[Groups, Groups]:
        """The mean gradient, times the negative learning rate."""
        return {"params": {name: p / work.processed_samples for name, p in params.items()}}, client.state

    def client_weight(self, work: Work) -> Any:
        """The samples that the gradient is of."""
        return work.processed_samples
