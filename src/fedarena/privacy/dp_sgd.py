"""DP-SGD at the client. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.

In every local step, the gradient of each sample by itself is shortened to the norm `clip_norm`, and Gaussian noise of
the deviation noise_multiplier * clip_norm comes to their sum. What is protected is one sample of a client, not
the client: two data sets are neighbours if in one of them a sample has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.models.keyed_random import at_step
from fedarena.models.sealed_batch import opened
from fedarena.train import Algorithm, Client

_MASK, _KEY = "mask", "key"


class PrivateTraining(Algorithm):
    """Replaces the gradient of a batch by a noisy mean of shortened gradients of samples."""

    clip_norm: float
    noise_multiplier: float

    def local_loss(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The batch's loss in value; its gradient is the private one.

        That is computed here, and given on as the slope of a linear function of the parameters, whose value is 0.
        """
        if task.has_weights:
            raise BadInputError(
                f"privacy=dp_sgd shortens gradients of samples, and the task {type(task).__name__} weighs samples "
                "against each other; choose a task without weights"
            )
        batch = opened(batch)
        here = {name: p.detach() for name, p in params.items()}
        samples = {name: values for name, values in batch.items() if name not in (_MASK, _KEY)}
        count = len(next(iter(samples.values())))
        places = torch.arange(count, device=next(iter(here.values())).device)
        loss_of = super().local_loss

        def loss_of_one(params: Tensors, sample: Tensors, place: Tensor) -> Tensor:
            one = {name: values.unsqueeze(0) for name, values in sample.items()}
            if _KEY in batch:  # each sample drops out something else
                one[_KEY] = at_step(batch[_KEY], place)
            return loss_of(task, params, one, client)

        grads, losses = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))(here, samples, places)
        counts = batch.get(_MASK, torch.ones_like(losses)).to(losses.dtype)
        squares = torch.stack([g.reshape(count, -1).square().sum(1) for g in grads.values()])
        tiny = torch.finfo(losses.dtype).tiny
        factors = counts * (self.clip_norm / squares.sum(0).sqrt().clamp(min=tiny)).clamp(max=1)
        number = counts.sum().clamp(min=1)
        slope = torch.zeros_like(losses[0])
        for name, g in grads.items():
            noise = client.job.normal(f"dp-sgd {name}", here[name])
            noisy = (factors @ g.reshape(count, -1)).view(here[name].shape)
            noisy = (noisy + self.noise_multiplier * self.clip_norm * noise) / number
            slope = slope + (noisy.detach() * (params[name] - here[name])).sum()
        return ((losses * counts).sum() / number).detach() + slope
