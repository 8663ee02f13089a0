"""Noise that clients add together: the server, who gets sums of groups alone, never sees anything without it.

Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation",
ICML 2021. Every client clips its update, rounds it to the grid of the secure sum, and adds discrete Gaussian noise of
its own. At least k clients of a group are in every sum that is unmasked, so each adds noise of the deviation σ / √k.

**What is claimed.** The sum of k discrete Gaussians of deviation s (in steps of the grid) on d numbers, of which one
client changes the sum by a vector of norm Δ, has Rényi divergences of at most α Δ²/(2 k s²) + τ d of every order α > 1,
where τ = 10 Σ_{j<k} exp(-2π² s² j / (j + 1)) and s is at least ½ (their proposition 14). That is at most ½ α ε² with
ε² = Δ²/(k s²) + 2 τ d. Noise is enlarged so that this is no more than that of the continuous Gaussian of the multiplier
z, whose Rényi divergences are then those that are accounted for; so ε is the one that `privacy=gaussian` would have
with z. A client is in one group of a step. It holds against everybody who sees the sums of all groups: the server, and
whoever gets the models.

**What is assumed.** Members of a group add their noise as they should: `colluding` is the share of a group that may
not, or that tells the server what it drew. The server keeps no more than the sums, which secure aggregation sees to.
Who leaves does not depend on what clients have learned. Noise is drawn in double precision.
"""

from __future__ import annotations

import math
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import BOUNDS, NEIGHBOURS
from fedarena.privacy.checks import check_clip_norm, check_promise
from fedarena.privacy.mechanism import MECHANISMS, RunFacts
from fedarena.privacy.sampled_gaussian import SampledGaussian
from fedarena.simulate.secure_aggregation import SecureAggregation
from fedarena.simulate.selectors.shuffled import rounds_per_pass
from fedarena.transforms import Transform
from fedarena.transforms.clip import ClipForSum

_MOST_ENLARGED = 1.01  # noise that makes up for the grid, relative to that without one


@MECHANISMS.register("distributed_gaussian")
class DistributedGaussian(SampledGaussian):
    """Every client adds its part of the noise, so that not even the server sees anything without it.

    It needs ``secure_aggregation=bonawitz``. Give `noise_multiplier` (standard deviation of the noise in a group's sum,
    relative to the clipping norm), or `epsilon`, for which the least noise is found that lets the run have all its
    rounds; with both, `epsilon` is a budget.

    - `delta`: the probability that ε does not hold; by default population^-1.1.
    - `clip_norm`: of all that a client sends.
    - `colluding`: the share of a group that may help the server by telling it what noise they drew, or add none.
    - `public_timing`: takes it as known to everybody how many samples clients have and when their phones are there.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        clip_norm: float | None = 1.0,
        colluding: float = 0.0,
        public_timing: bool = False,
    ):
        check_promise("distributed_gaussian", noise_multiplier, epsilon, delta)
        check_clip_norm(clip_norm)
        assert clip_norm is not None
        if not 0 <= colluding < 0.5:
            raise BadInputError(f"privacy.colluding must be at least 0 and below 0.5, not {colluding:g}")
        self.noise_multiplier, self.budget, self.delta = noise_multiplier, epsilon, delta
        self.clip_norm, self.colluding, self.public_timing = float(clip_norm), colluding, public_timing
        self._bound = self.clip_norm
        self._noisy_members, self._client_deviation = 0, 0.0

    def prepare(self, facts: RunFacts) -> None:
        """Finds the noise if it was not given, and refuses what would break the guarantee."""
        self._begin_accounts(facts, facts.population)
        self._numbers = sum(t.numel() for tensors in facts.update.values() for t in tensors.values())

    def share_noise(self, secure: SecureAggregation) -> None:
        """Tells clients how much noise each of them adds, and a secure sum what it is of."""
        assert self.noise_multiplier is not None
        invited = self._cohort
        if self.sampling == "shuffled":  # which deals everybody out evenly
            invited = self._population // rounds_per_pass(self._population, self._cohort)
        smallest = invited // -(-invited // secure.group)
        survivors = secure.threshold(smallest)
        honest = survivors - math.floor(self.colluding * smallest)
        if honest < 1:
            raise BadInputError(
                f"With privacy.colluding={self.colluding:g}, nobody of the {survivors} clients who stay in a group of "
                f"{smallest} adds noise for sure; choose a larger secure_aggregation.threshold"
            )
        secure.least_survivors, secure.notes = survivors, ()
        secure.range = secure.other_range = self.clip_norm
        deviation = self.noise_multiplier * self.clip_norm / math.sqrt(honest)
        secure.noise_deviation = _MOST_ENLARGED * deviation  # which decides about the grid, as the norm does
        fixed_point = secure.fixed_point()
        scale = fixed_point.scale(fixed_point.bound)
        enlarged = _enlargement(deviation * scale, honest, self._numbers, self.noise_multiplier)
        error = math.sqrt(self._numbers) / scale * (1.0 if fixed_point.rounding == "stochastic" else 0.5)
        if enlarged > _MOST_ENLARGED or error > self.clip_norm / 2:
            raise BadInputError(
                "The grid of the secure sum is too coarse for this noise; choose secure_aggregation.bits=64, smaller "
                "groups or a larger privacy.clip_norm"
            )
        secure.noise_deviation = self._client_deviation = enlarged * deviation
        self._noisy_members, self._bound = honest, self.clip_norm - error

    def transforms(self) -> tuple[Transform, ...]:
        """Clipping; noise comes to whole numbers, which the secure sum makes of updates."""
        return (ClipForSum(self._bound),)

    def notes(self) -> list[str]:
        """The plan, in words."""
        return [
            f"Privacy: ε = {self.epsilon(self._rounds):.4g} for δ = {self.delta:.3g} after {self._rounds:,} rounds "
            f"(noise multiplier {self.noise_multiplier:.4g}, by clients together; bound by {BOUNDS[self.accountant]}; "
            f"protected: {NEIGHBOURS[self.sampling]}; also against the server)"
        ]

    def summary(self, steps: int) -> dict[str, Any]:
        """What was promised and spent, and on what that rests."""
        return {
            "mechanism": "distributed_gaussian",
            "epsilon": self.epsilon(steps),
            "delta": self.delta,
            "budget": self.budget,
            "noise_multiplier": self.noise_multiplier,
            "client_noise_deviation": self._client_deviation,
            "noisy_members_of_a_group": self._noisy_members,
            "colluding": self.colluding,
            "accountant": self.accountant,
            "bound": BOUNDS[self.accountant],
            "sampling": self.sampling,
            "neighbours": NEIGHBOURS[self.sampling],
            "population": self._population,
            "cohort": self._cohort,
            "public_timing": self.public_timing,
        }


def _enlargement(steps: float, clients: int, numbers: int, noise_multiplier: float) -> float:
    """By what to multiply noise of so many steps of the grid so that its sum is as private as a continuous one.

    With deviations s of each of k clients, Δ²/(k s²) + 2 τ d must be at most 1/z². The norm Δ is √k s / z before that.
    """
    larger = 1.0
    for _ in range(20):
        s = larger * steps
        exponents = [-2 * math.pi**2 * s**2 * j / (j + 1) for j in range(1, clients)]
        coarse = 2 * numbers * 10 * sum(math.exp(exponent) for exponent in exponents) * noise_multiplier**2
        if coarse >= 1 or s < 0.5:
            return math.inf
        wanted = (1 - coarse) ** -0.5
        if wanted <= larger:
            break
        larger = wanted
    return larger
