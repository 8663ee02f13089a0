"""PrivUnit.

Bhowmick et al., "Protection Against Reconstruction and Its Applications in Private Federated Learning", 2018.

A client sends a random direction instead of its own, u. With probability p it is uniform among those with
⟨v, u⟩ ≥ γ, a cap of the sphere around u, else among all others. The density of any v then differs between two clients
by at most the factor p (1 - P) / ((1 - p) P), where P is the cap's share of the sphere; that factor is e^ε here,
exactly, and of all pairs (p, γ) that have it, the one is taken that points to u most (Asi, Feldman, Talwar, ICML 2022;
the paper itself divides ε between p and γ). What is sent has the length that makes it unbiased: bound / E⟨v, u⟩.

The mechanism is for directions. Lengths are either ignored, as if all updates were as long as the bound, or kept in the
mean without a budget of their own: a client whose update has the length r takes the opposite direction -u with the
probability (1 - r / bound) / 2, so that what it sends is its update in the mean (Duchi, Jordan, Wainwright, 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedarena.train import Algorithm, Groups
from fedarena.transforms.local_noise import LocalRandomizer, generators, normal_rows
from fedarena.transforms.rows import FloatArray, Rows

Norms = Literal["kept", "fixed"]


@dataclass(frozen=True)
class Cap:
    """Around which directions are drawn that stand for another: those with a product of `height` and more."""

    dimensions: int
    height: float  # γ
    share: float  # P, of the whole sphere
    inside: float  # p, the probability of a direction in the cap
    mean: float  # E⟨v, u⟩

    def products(self, is_inside: FloatArray, places: FloatArray) -> FloatArray:
        """⟨v, u⟩ of drawn directions, from numbers that are uniform in [0, 1)."""
        # The share of the sphere that is nearer to u than v is.
        nearer = np.where(is_inside, self.share * places, self.share + (1 - self.share) * places)
        products: FloatArray = np.sign(0.5 - nearer) * np.sqrt(_squared_product(nearer, self.dimensions))
        return products


def _squared_product(nearer: FloatArray, dimensions: int) -> Any:
    from scipy.special import betainccinv  # not at the top: phones and bare GPU machines do without this mechanism

    return betainccinv(0.5, (dimensions - 1) / 2, 2 * np.minimum(nearer, 1 - nearer))


@lru_cache(maxsize=64)
def best_cap(dimensions: int, epsilon: float) -> Cap:
    """The cap with which a direction says most about another at this ε."""
    from scipy.optimize import minimize_scalar
    from scipy.special import betaincc, betaln, expit

    half = (dimensions - 1) / 2

    def cap(height: float) -> Cap:
        share = float(betaincc(0.5, half, height**2)) / 2
        inside = float(expit(epsilon + np.log(share) - np.log1p(-share)))
        # ∫ t over the cap, of the density of one coordinate of a random direction
        weight = np.exp(half * np.log1p(-(height**2)) - np.log(2 * half) - betaln(0.5, half))
        return Cap(dimensions, height, share, inside, float(weight * (inside / share - (1 - inside) / (1 - share))))

    highest = min(0.999, (np.sqrt(2 * epsilon) + 4) / np.sqrt(dimensions))
    found = minimize_scalar(lambda height: -cap(height).mean, bounds=(0.0, highest), method="bounded")
    return max((cap(0.0), cap(float(found.x))), key=lambda one: one.mean)


class PrivUnit(LocalRandomizer):
    """Every client sends a vector of the same length in a random direction, in the mean that of its update.

    With `norms` kept, the mean is its update, shortened to `bound`; if they are fixed, a vector of the length `bound`.
    """

    def __init__(self, bound: float, epsilon: float, norms: Norms = "kept"):
        super().__init__(bound)
        self.epsilon, self.norms_are = epsilon, norms

    def obstacle(self, algorithm: Algorithm, update: Groups) -> str | None:
        """A direction needs two dimensions."""
        numbers = sum(t.numel() for tensors in update.values() for t in tensors.values())
        return super().obstacle(algorithm, update) or ("it sends a single number" if numbers < 2 else None)

    def length(self, dimensions: int) -> float:
        """Of what every client sends."""
        return self.bound / best_cap(dimensions, self.epsilon).mean

    def randomize(self, whole: Tensor, rows: Rows) -> Tensor:
        """A vector in or outside the cap around the client's direction."""
        cap = best_cap(whole.shape[1], self.epsilon)
        chances = np.stack([generator.random(3) for generator in generators(rows, "chances")])
        for_length, for_cap, for_place = chances.T
        lengths = self.norms(whole)
        directions = _unit(whole)
        if bool((lengths == 0).any()):  # an update of zeros has no direction
            anywhere = _unit(normal_rows(rows, "direction of nothing", whole))
            directions = torch.where((lengths > 0)[:, None], directions, anywhere)
        if self.norms_are == "kept":
            turns = (1 - (lengths / self.bound).clamp(max=1)) / 2
            opposite = torch.from_numpy(for_length).to(turns) < turns
            directions = torch.where(opposite[:, None], -directions, directions)
        along = torch.from_numpy(cap.products(for_cap < cap.inside, for_place)).to(whole.device)[:, None]
        noise = normal_rows(rows, "around", whole)
        around = _unit(noise - (noise * directions).sum(1, keepdim=True) * directions)
        drawn = along.to(whole.dtype) * directions + (1 - along**2).clamp(min=0).sqrt().to(whole.dtype) * around
        return drawn * self.length(whole.shape[1])


def _unit(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / lengths.clamp(min=torch.finfo(rows.dtype).tiny)
