"""User-level differential privacy at a trusted server: clipped uploads, a fixed denominator, Gaussian noise.

McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018; adaptive clipping of Andrew et
al., NeurIPS 2021. `noise_cohort` is FLAIR's simulation of a large cohort with a small one (Song et al., NeurIPS 2022,
section 5.1): updates of C_small clients get the noise that the mean over C_large would have, which is that of the sum
times C_small / C_large. The accountant is told of C_large. What is learned is then what the small cohort makes of it:
ε holds for training that did not take place. `noise_population` simulates that the large cohorts come from more clients
than there are (as in pfl-research's benchmarks: cohorts of 1,000 from a million).
"""

from __future__ import annotations

from typing import Any, Literal

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import BOUNDS, NEIGHBOURS, Accountant, check_counts
from fedarena.privacy.checks import check_clip_norm, check_promise
from fedarena.privacy.mechanism import MECHANISMS, RunFacts
from fedarena.privacy.sampled_gaussian import SampledGaussian
from fedarena.transforms import Transform
from fedarena.transforms.clip_and_noise import ClipAndNoise, Quantile

_BITS_PER_DEVIATION = 20  # of the cohort: how many clients' bits the noise in their sum hides, as in the paper


@MECHANISMS.register("gaussian")
class CentralGaussian(SampledGaussian):
    """Clips all that a client sends and adds Gaussian noise at the server.

    Give `noise_multiplier` (standard deviation of the noise in the sum, relative to the clipping norm), or `epsilon`,
    for which the least noise is found that lets the run have all its rounds; with both, `epsilon` is a budget.

    - `delta`: the probability that ε does not hold; by default population^-1.1.
    - `clip_norm`: with adaptive clipping, what it begins with.
    - `clipping`: ``flat``, the norm of everything; ``per_layer``, every layer with its part of the norm; ``adaptive``,
      a norm that follows the `quantile` of clients' norms at the rate `quantile_lr`, with noise of the standard
      deviation `quantile_noise` (by default a 20th of the cohort) in the count of clients within it.
    - `accountant`: ``rdp``, or ``pld``, which is tighter.
    - `noise_cohort`: simulates the noise of a cohort of this size; `noise_population`: drawn from so many clients.
    - `public_timing`: takes it as known to everybody how many samples clients have and when their phones are there, so
      that virtual time may decide who takes part.
    - `audit`: how many canaries are planted to find out how much of a client can be seen in the model.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        clip_norm: float | None = 1.0,
        clipping: Literal["flat", "per_layer", "adaptive"] = "flat",
        quantile: float = 0.5,
        quantile_lr: float = 0.2,
        quantile_noise: float | None = None,
        accountant: Accountant = "rdp",
        noise_cohort: int | None = None,
        noise_population: int | None = None,
        public_timing: bool = False,
        audit: int | None = None,
    ):
        check_promise("gaussian", noise_multiplier, epsilon, delta, audit)
        check_clip_norm(clip_norm)
        if not 0 < quantile < 1:
            raise BadInputError(f"privacy.quantile must be above 0 and below 1, not {quantile}")
        if not quantile_lr > 0:
            raise BadInputError(f"privacy.quantile_lr must be above 0, not {quantile_lr}")
        if quantile_noise is not None and not quantile_noise > 0:
            raise BadInputError(f"privacy.quantile_noise must be above 0, not {quantile_noise}")
        if noise_cohort is not None and noise_cohort < 1:
            raise BadInputError(f"privacy.noise_cohort must be at least 1, not {noise_cohort}")
        if noise_population is not None and noise_cohort is None:
            raise BadInputError(
                "privacy.noise_population is for simulated cohorts; give privacy.noise_cohort, too, or leave it out"
            )
        self.noise_multiplier, self.budget, self.delta = noise_multiplier, epsilon, delta
        self.clip_norm, self.clipping, self.accountant = clip_norm, clipping, accountant
        self.quantile, self.quantile_lr, self.quantile_noise = quantile, quantile_lr, quantile_noise
        self.noise_cohort, self.noise_population = noise_cohort, noise_population
        self.public_timing = public_timing
        if audit is not None and noise_cohort is not None:
            raise BadInputError(
                "privacy.audit cannot audit privacy.noise_cohort: its ε is that of a training that does not take "
                "place; leave out one of them"
            )
        self.simulates = noise_cohort is not None
        self.audit, self.audited_norm = audit, float(clip_norm or 0.0)
        self._rounding_error = 0.0

    def prepare(self, facts: RunFacts) -> None:
        """Finds the noise if it was not given, and refuses what would break the guarantee."""
        self._begin_accounts(facts, facts.population if self.noise_population is None else self.noise_population)
        assert self.noise_multiplier is not None
        if self.clipping == "adaptive" and not 2 * self._bit_deviation > self.noise_multiplier:
            raise BadInputError(
                f"privacy.quantile_noise must be above half the noise multiplier, {self.noise_multiplier / 2:.4g}, not "
                f"{self._bit_deviation:g}: with less, the count of clipped clients alone would spend the budget"
                + ("" if self.quantile_noise is not None else "; it is a 20th of the cohort unless you set it")
            )

    def _check_counts(self) -> None:
        if self.noise_cohort is not None:
            check_counts(self._population, self.noise_cohort, "privacy.noise_")

    @property
    def _accounted_cohort(self) -> int:
        """The cohort that the accountant is told of."""
        return self._cohort if self.noise_cohort is None else self.noise_cohort

    @property
    def _bit_deviation(self) -> float:
        """Of the noise in the count of clients within the norm, with the cohort that is accounted for."""
        return self._accounted_cohort / _BITS_PER_DEVIATION if self.quantile_noise is None else self.quantile_noise

    @property
    def update_noise_multiplier(self) -> float:
        """What is left for the updates when a part of the privacy goes to the quantile: more noise."""
        assert self.noise_multiplier is not None
        if self.clipping != "adaptive":
            return self.noise_multiplier
        return float((self.noise_multiplier**-2 - (2 * self._bit_deviation) ** -2) ** -0.5)

    def transforms(self) -> tuple[Transform, ...]:
        """Clipping and noise."""
        assert self.clip_norm is not None
        adaptive = Quantile(self.quantile, self.quantile_lr, self._bit_deviation)
        clip = ClipAndNoise(
            norm=self.clip_norm,
            noise_multiplier=self.update_noise_multiplier,
            clients=self._cohort,
            noise_clients=self._accounted_cohort,
            per_layer=self.clipping == "per_layer",
            adaptive=adaptive if self.clipping == "adaptive" else None,
        )
        clip.rounding_error = self._rounding_error
        return (clip,)

    def leave_room_for_rounding(self, error: float) -> None:
        """Has updates clipped so much more that rounding afterwards does not make them longer than the norm."""
        assert self.clip_norm is not None
        if error > self.clip_norm / 2:
            raise BadInputError(
                f"Rounding for secure aggregation may make an update longer by {error:.3g}, too much beside "
                f"privacy.clip_norm={self.clip_norm:g}; choose secure_aggregation.bits=64, smaller groups or a smaller "
                "secure_aggregation.range and other_range"
            )
        self._rounding_error = error

    def notes(self) -> list[str]:
        """The plan, in words."""
        spent = f"ε = {self.epsilon(self._rounds):.4g} for δ = {self.delta:.3g} after {self._rounds:,} rounds"
        notes = [
            f"Privacy: {spent} (noise multiplier {self.noise_multiplier:.4g}, bound by {BOUNDS[self.accountant]}; "
            f"protected: {NEIGHBOURS[self.sampling]})"
        ]
        if self.noise_cohort is not None:
            drawn = "" if self.noise_population is None else f", drawn from {self.noise_population:,} clients,"
            notes.append(
                f"This simulates the noise of cohorts of {self.noise_cohort:,}{drawn} with cohorts of "
                f"{self._cohort:,}: ε is that of a training with the large ones, which does not take place, and nobody "
                "is protected by it here"
            )
        if self.public_timing:
            notes.append("Sizes of clients' data and the times of their phones are taken as public, and not protected")
        return notes

    def summary(self, steps: int) -> dict[str, Any]:
        """What was promised and spent."""
        return {
            "mechanism": "gaussian",
            "epsilon": self.epsilon(steps),
            "delta": self.delta,
            "budget": self.budget,
            "noise_multiplier": self.noise_multiplier,
            "update_noise_multiplier": self.update_noise_multiplier,
            "clipping": self.clipping,
            "accountant": self.accountant,
            "bound": BOUNDS[self.accountant],
            "sampling": self.sampling,
            "neighbours": NEIGHBOURS[self.sampling],
            "population": self._population,
            "cohort": self._cohort,
            "noise_cohort": self.noise_cohort,
            "noise_population": self.noise_population,
            "simulated": self.noise_cohort is not None,
            "public_timing": self.public_timing,
        }
