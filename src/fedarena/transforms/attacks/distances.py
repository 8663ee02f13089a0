"""Attacks that go as far as distances between updates allow.

Shejwalkar, Houmansadr, "Manipulating the Byzantine", NDSS 2021: the corrupted clients send the mean of the known
updates, moved by γ in a direction that harms. γ is the largest for which what they send is no further from the others
than these are from each other. The paper halves intervals to find it; here it is the root of a quadratic equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedarena.train import Groups, map_groups
from fedarena.transforms.attacks.updates import ColludingAttack, ColludingSight, ForgedGroups, Known, mean_of

Direction = Literal["unit", "std", "sign"]


@dataclass(frozen=True)
class Spread:
    """What is to be known about the known updates u_i, their mean μ and a direction p, in double precision."""

    gram: Tensor  # [i, j]: (u_i - μ)·(u_j - μ)
    along: Tensor  # [i]: p·(μ - u_i)
    squared_length: Tensor  # p·p

    @property
    def from_mean(self) -> Tensor:
        """Squared distances from the mean."""
        return self.gram.diagonal()

    @property
    def between(self) -> Tensor:
        """Squared distances between updates."""
        return (self.from_mean[:, None] + self.from_mean[None, :] - 2 * self.gram).clamp(min=0)


class FarthestAttack(ColludingAttack):
    """Goes from the mean of the known updates as far as `gamma` allows into a direction.

    The direction is against the mean (``unit``), against the sign of the mean in every coordinate (``sign``), or
    against the standard deviation of every coordinate (``std``).
    """

    def __init__(
        self,
        *,
        share: float = 0.1,
        from_round: int = 1,
        groups: ForgedGroups = "change",
        sees: ColludingSight = "all",
        direction: Direction = "std",
    ):
        super().__init__(share=share, from_round=from_round, groups=groups, sees=sees)
        self.direction = direction

    def gamma(self, spread: Spread) -> Tensor:
        """How many times the direction, which is not of length 0, is added to the mean."""
        raise NotImplementedError

    def craft(self, known: Known) -> Groups:
        """The mean and γ times the direction."""
        mean = mean_of(known)
        direction = self._direction(known, mean)
        spread = spread_of(known, mean, direction)
        if not spread.squared_length > 0:
            return mean
        gamma = self.gamma(spread)
        return {
            group: {name: t + gamma.to(t) * direction[group][name] for name, t in tensors.items()}
            for group, tensors in mean.items()
        }

    def _direction(self, known: Known, mean: Groups) -> Groups:
        if self.direction == "std":
            return known.map(lambda t: -t.std(0, correction=0))
        if self.direction == "sign":
            return map_groups(lambda t: -t.sign(), mean)
        squares = [t.double().square().sum() for tensors in mean.values() for t in tensors.values()]
        length = torch.stack([square.cpu() for square in squares]).sum().sqrt()
        return map_groups(lambda t: -t / length.clamp(min=torch.finfo(torch.float64).tiny).to(t), mean)


def spread_of(known: Known, mean: Groups, direction: Groups) -> Spread:
    """Adds up inner products, one tensor at a time."""
    count = len(known)
    gram, along = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    squared_length = torch.zeros((), dtype=torch.float64)
    for group, tensors in mean.items():
        for name, center in tensors.items():
            t = known.groups[group][name]
            from_mean = (t[known.rows.to(t.device)] - center).reshape(count, -1).double()
            towards = direction[group][name].reshape(-1).double()
            gram += (from_mean @ from_mean.T).cpu()
            along -= (from_mean @ towards).cpu()
            squared_length += (towards @ towards).cpu()
    return Spread(gram, along, squared_length)
