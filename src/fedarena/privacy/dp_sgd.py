"""DP-SGD at the client. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.

In every local step, the gradient of each sample by itself is shortened to the norm `clip_norm`, and Gaussian noise of
the deviation noise_multiplier * clip_norm comes to their sum. What is protected is one sample of a client, not
the client: two data sets are neighbours if in one of them a sample has no gradient.

The bound: batches are cut from shuffled epochs, not drawn by Poisson sampling, so nothing is gained from chance. In an
epoch every sample is in one batch, which does not depend on what the samples are; so an epoch costs what one step with
noise of this multiplier costs, and a client that has had j jobs of e epochs has taken j e such steps. They are composed
exactly (Balle, Wang, ICML 2018). The ε of a run is that of the client for whom it is largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedarena.core.errors import BadInputError
from fedarena.models import Task, Tensors
from fedarena.models.augmentation import SAMPLE_KEYS, sample_keys
from fedarena.models.characters import layers_are_replaced
from fedarena.models.keyed_random import at_step
from fedarena.models.sealed_batch import opened
from fedarena.privacy.accounting import accounting
from fedarena.privacy.checks import (
    check_clip_norm,
    check_first_round,
    check_promise,
    check_selects_without_losses,
)
from fedarena.privacy.extended import extended
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, RunFacts, most_invitations
from fedarena.privacy.solving import least_noise
from fedarena.simulate.participation import Participation
from fedarena.train import Algorithm, Client
from fedarena.train.engine import IntArray

_MASK, _KEY = "mask", "key"


class PrivateTraining(Algorithm):
    """Replaces the gradient of a batch by a noisy mean (or sum) of shortened gradients of samples."""

    keeps_sample_gradients = True
    clip_norm: float
    noise_multiplier: float

    def loss_of_samples(self, task: Task, params: Tensors, batch: Tensors, client: Client) -> Tensor:
        """The loss without privacy, which is taken of each sample by itself."""
        return super().local_loss(task, params, batch, client)

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
        if task.augmentation is not None and _KEY in batch:  # each as it is in the whole batch
            samples[SAMPLE_KEYS] = sample_keys(batch[_KEY], count)
        places = torch.arange(count, device=next(iter(here.values())).device)

        def loss_of_one(params: Tensors, sample: Tensors, place: Tensor) -> Tensor:
            one = {name: values.unsqueeze(0) for name, values in sample.items()}
            if _KEY in batch:  # each sample drops out something else
                one[_KEY] = at_step(batch[_KEY], place)
            return self.loss_of_samples(task, params, one, client)

        of_each = _one_by_one if _knows_no_vmap(task.module) else partial(vmap, in_dims=(None, 0, 0))
        grads, losses = of_each(grad_and_value(loss_of_one))(here, samples, places)
        counts = batch.get(_MASK, torch.ones_like(losses)).to(losses.dtype)
        squares = torch.stack([g.reshape(count, -1).square().sum(1) for g in grads.values()])
        tiny = torch.finfo(losses.dtype).tiny
        factors = counts * (self.clip_norm / squares.sum(0).sqrt().clamp(min=tiny)).clamp(max=1)
        number = counts.sum().clamp(min=1)
        divisor = 1 if self.adds_sample_gradients else number
        slope = torch.zeros_like(losses[0])
        for name, g in grads.items():
            noise = client.job.normal(f"dp-sgd {name}", here[name])
            noisy = (factors @ g.reshape(count, -1)).view(here[name].shape)
            noisy = (noisy + self.noise_multiplier * self.clip_norm * noise) / divisor
            slope = slope + (noisy.detach() * (params[name] - here[name])).sum()
        value: Tensor = ((losses * counts).sum() / number).detach() + slope
        return value


def _knows_no_vmap(module: nn.Module) -> bool:
    """Whether it has recurrent layers of torch, which cannot keep samples apart, and nobody replaces them."""
    return not layers_are_replaced() and any(isinstance(layer, nn.RNNBase) for layer in module.modules())


def _one_by_one(function: Callable[..., tuple[Tensors, Tensor]]) -> Callable[..., tuple[Tensors, Tensor]]:
    """What `vmap` makes of a function of parameters, a sample and its place, by a loop over samples."""

    def of_all(params: Tensors, samples: Tensors, places: Tensor) -> tuple[Tensors, Tensor]:
        found = [
            function(params, {name: values[number] for name, values in samples.items()}, places[number])
            for number in range(len(places))
        ]
        grads = {name: torch.stack([of_one[name] for of_one, _ in found]) for name in params}
        return grads, torch.stack([loss for _, loss in found])

    return of_all


@MECHANISMS.register("dp_sgd")
class DPSGD(Mechanism):
    """Clients train with DP-SGD, so that a model tells little about any one sample of theirs.

    Give `noise_multiplier` (standard deviation of the noise in the sum of a batch's gradients, relative to
    `clip_norm`), or `epsilon`, for which the least noise is found that lets the run have all its rounds even if some
    client is in as many of them as the selector allows; with both, `epsilon` is a budget. `delta` is the probability
    that ε does not hold.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        clip_norm: float = 1.0,
    ):
        check_promise("dp_sgd", noise_multiplier, epsilon, delta)
        check_clip_norm(clip_norm)
        self.noise_multiplier, self.budget, self.delta, self.clip_norm = noise_multiplier, epsilon, delta, clip_norm
        self.participation: Participation = Participation()

    def wrapped(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with private gradients. How much noise they need may be known later only."""
        if algorithm.trains_freely:
            raise BadInputError(
                f"{type(algorithm).__name__} has a training loop of its own, which privacy=dp_sgd cannot make private; "
                "choose another algorithm"
            )
        if algorithm.needs_start_loss:
            raise BadInputError(
                f"Privacy would be broken: clients of {type(algorithm).__name__} also send what follows from their "
                "loss at the start, to which no noise comes; choose another algorithm, such as fedavg"
            )
        self._training = extended(
            algorithm, PrivateTraining, clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier or 0.0
        )
        return self._training

    def prepare(self, facts: RunFacts) -> None:
        """Finds the noise if it was not given; refuses a selector that is told of samples without noise."""
        assert facts.samples is not None
        if facts.training == "centralized":
            raise BadInputError("privacy=dp_sgd is for clients; choose training=natural instead of centralized")
        check_selects_without_losses(facts.selector, sizes_are_public=True)
        self._uses = uses_of_a_sample(facts.samples, self._training)
        if not facts.protocol.overlaps:  # else rounds do not say how often a client begins
            self.participation.limit = partial(most_invitations, facts)
        if self.noise_multiplier is None:
            assert self.budget is not None
            uses = float(self._uses.max()) * most_invitations(facts, facts.rounds)
            self.noise_multiplier = least_noise(self.budget, lambda noise: self._spent(uses, noise))
        self._training.noise_multiplier = self.noise_multiplier
        check_first_round(self._spent(float(self._uses.max())), self.budget)

    def check_goes_on(self, former: Mechanism) -> None:
        """Refuses jobs of another length: ε counts all jobs of a client alike."""
        assert isinstance(former, DPSGD)
        if not np.array_equal(self._uses, former._uses):
            raise BadInputError(
                "A fork of a run with privacy=dp_sgd cannot change in how many steps of a job a sample is used (by "
                "local.epochs, say): its ε counts on what that was; leave it as it is"
            )

    def epsilon(self, steps: int) -> float:
        """Of the client whose samples have been used most often."""
        return self._spent(self.participation.most(steps, self._uses))

    def _spent(self, uses: float, noise_multiplier: float | None = None) -> float:
        noise = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        assert noise is not None
        return float(accounting().get_epsilon_gaussian(noise / math.sqrt(uses), self.delta)) if uses else 0.0

    def choices(self) -> dict[str, Any]:
        """The noise, where it was solved for."""
        return {"noise_multiplier": self.noise_multiplier}

    def notes(self) -> list[str]:
        """What is protected, and what is not."""
        return [
            "Privacy: ε is about one sample of a client, for the client whose samples are used most often; every epoch "
            f"costs what one step with the noise multiplier {self.noise_multiplier:.4g} does, without amplification"
        ]

    def summary(self, steps: int) -> dict[str, Any]:
        """What it comes to for the client whose samples have been used most often."""
        return {
            "mechanism": "dp_sgd",
            "epsilon": self.epsilon(steps),
            "delta": self.delta,
            "budget": self.budget,
            "noise_multiplier": self.noise_multiplier,
            "neighbours": "one sample of a client has no gradient",
            "bound": "exact composition of Gaussian mechanisms, one per epoch, without amplification",
            "most_uses_of_a_sample": round(self.participation.most(steps, self._uses)),
        }


def uses_of_a_sample(samples: IntArray, algorithm: Algorithm) -> Any:
    """In how many steps of one job a sample of clients with so many samples can be, at most: once in every epoch."""
    local = algorithm.local
    steps_per_epoch = np.maximum(-(-samples // local.batch_size), 1)
    return np.ceil(algorithm.local_steps(samples, local) / steps_per_epoch)
