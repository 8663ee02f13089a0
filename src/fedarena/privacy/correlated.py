"""Gaussian noise that is correlated over rounds (DP-FTRL by a banded matrix factorization), at a trusted server.

Kairouz et al., "Practical and Private (Deep) Learning Without Sampling or Shuffling", ICML 2021; Choquette-Choo et al.,
"(Amplified) Banded Matrix Factorization", NeurIPS 2023. Which correlation is best, and how far one client can
change what is released, is in `fedarena.privacy.banded`.

Accounting: if cohorts are drawn from groups that take turns, a client is in at most k = ⌈rounds / groups⌉ of them, and
all that is released is one Gaussian mechanism whose sensitivity is √k times that of a single participation. Neighbours
differ in whether all updates of one client are left out. Where the groups' members are drawn by Poisson sampling, it is
as private as k steps of the ordinary mechanism that draws from a group with that probability (the latter paper,
section 4); that is what is reported then.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.privacy.accounting import Accountant, Sampled, accounting, usual_delta
from fedarena.privacy.banded import Banded, best_banded
from fedarena.privacy.checks import check_clip_norm, check_first_round, check_promise
from fedarena.privacy.mechanism import MECHANISMS, Mechanism, RunFacts
from fedarena.privacy.refusals import check_guarantee
from fedarena.privacy.solving import least_noise
from fedarena.simulate.selectors import Cyclic, Poisson, Shuffled
from fedarena.transforms import Aggregator, Transform
from fedarena.transforms.aggregators import FixedMean
from fedarena.transforms.correlated_noise import ClipAndCorrelatedNoise

_MOST_BAND = 1024  # rows of noise, each as large as the model, that a server keeps


@MECHANISMS.register("correlated_gaussian")
class CorrelatedGaussian(Mechanism):
    """Clips all that a client sends and adds noise at the server of which later rounds take back a part.

    It needs ``selector=cyclic``, so that nobody takes part twice within `band` rounds (by default as many as there are
    groups). The server keeps one row of noise fewer than that, each as large as the model. Give `noise_multiplier`, or
    `epsilon`, for which the least noise is found that lets the run have all its rounds; with both, `epsilon` is a
    budget. `delta` is the probability that ε does not hold, by default population^-1.1. Noise is best after `horizon`
    rounds, by default all of them; the guarantee holds in any case. `accountant` matters where the groups' members are
    drawn by Poisson sampling. `audit` is how many canaries are planted.
    """

    always_steps = True
    covers_all_that_is_sent = True

    def __init__(
        self,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        clip_norm: float | None = 1.0,
        band: int | None = None,
        horizon: int | None = None,
        accountant: Accountant = "rdp",
        public_timing: bool = False,
        audit: int | None = None,
    ):
        check_promise("correlated_gaussian", noise_multiplier, epsilon, delta, audit)
        check_clip_norm(clip_norm)
        for name, value in (("band", band), ("horizon", horizon)):
            if value is not None and value < 1:
                raise BadInputError(f"privacy.{name} must be at least 1, not {value}")
        self.noise_multiplier, self.budget, self.delta, self.clip_norm = noise_multiplier, epsilon, delta, clip_norm
        self.audit, self.audited_norm = audit, float(clip_norm or 0.0)
        self.band, self.horizon, self.accountant, self.public_timing = band, horizon, accountant, public_timing

    def prepare(self, facts: RunFacts) -> None:
        """Finds the correlation, and the noise if it was not given; refuses what would break the guarantee."""
        selector = facts.selector
        if not isinstance(selector, Cyclic) or not selector.chooses_as(Cyclic):
            wanted = self.band or max(1, min(8, facts.population // facts.cohort))
            raise BadInputError(
                f"Privacy would be broken: with privacy=correlated_gaussian a client may take part at most every "
                f"{wanted} rounds, and the selector {type(selector).__name__} does not see to that; choose "
                f"selector=cyclic selector.groups={wanted}"
            )
        selector.check(facts.population, facts.cohort)
        # What the other checks ask about a selector: here nothing counts on chance, or on everybody's own alone.
        same = Poisson() if selector.draw == "poisson" else Shuffled()
        check_guarantee(replace(facts, selector=same), self.public_timing)
        self.band = selector.groups if self.band is None else self.band
        if self.band > min(selector.groups, _MOST_BAND):
            raise BadInputError(
                f"privacy.band is {self.band}, but selector.groups={selector.groups} lets a client take part every "
                f"{selector.groups} rounds; choose a band of at most {min(selector.groups, _MOST_BAND)}"
            )
        self.horizon = facts.rounds if self.horizon is None else self.horizon
        self.factorization: Banded = best_banded(self.horizon, self.band)
        self._groups, self._cohort, self._rounds = selector.groups, facts.cohort, facts.rounds
        self._drawn_from = selector.smallest_group(facts.population) if selector.draw == "poisson" else None
        if self.delta is None:
            self.delta = usual_delta(facts.population)
        if self.noise_multiplier is None:
            assert self.budget is not None
            self.noise_multiplier = least_noise(self.budget, lambda noise: self._spent(facts.rounds, noise))
        self._spent_after: dict[int, float] = {}
        check_first_round(self.epsilon(1), self.budget)

    def epsilon(self, steps: int) -> float:
        """After so many rounds; every round makes a step."""
        if steps not in self._spent_after:
            assert self.noise_multiplier is not None
            self._spent_after[steps] = self._spent(steps, self.noise_multiplier)
        return self._spent_after[steps]

    def _spent(self, steps: int, noise_multiplier: float) -> float:
        times = -(-steps // self._groups)  # that a client has taken part, at most
        assert self.delta is not None
        if not times:
            return 0.0
        if self._drawn_from is not None and self._cohort < self._drawn_from:
            drawn = Sampled(self._drawn_from, self._cohort, noise_multiplier, "poisson", self.accountant)
            return drawn.epsilon(times, self.delta)
        return float(accounting().get_epsilon_gaussian(noise_multiplier / math.sqrt(times), self.delta))

    def transforms(self) -> tuple[Transform, ...]:
        """Clipping, and noise from the factorization."""
        assert self.clip_norm is not None
        assert self.noise_multiplier is not None
        return (
            ClipAndCorrelatedNoise(
                norm=self.clip_norm,
                noise_multiplier=self.noise_multiplier,
                clients=self._cohort,
                coefficients=self.factorization.coefficients,
            ),
        )

    def aggregator(self, chosen: Aggregator) -> Aggregator:
        """The sum over the expected cohort."""
        return FixedMean(self._cohort)

    def choices(self) -> dict[str, Any]:
        """What was solved for; a run that gets more rounds later goes on with the same noise."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "delta": self.delta,
            "band": self.band,
            "horizon": self.horizon,
        }

    def notes(self) -> list[str]:
        """The plan, in words."""
        independent = Banded(self.factorization.rounds, (1.0,)).mean_squared_error()
        ratio = math.sqrt(self.factorization.mean_squared_error() / independent)
        return [
            f"Privacy: ε = {self.epsilon(self._rounds):.4g} for δ = {self.delta:.3g} after {self._rounds:,} rounds "
            f"(noise multiplier {self.noise_multiplier:.4g}; {self._bound}); noise in the model is {ratio:.2f} times "
            "that of independent noise of the same multiplier"
        ]

    @property
    def _bound(self) -> str:
        if self._drawn_from is None:
            return "exact for the Gaussian mechanism, without amplification"
        return f"amplified by Poisson sampling from groups, bound by {self.accountant}"

    def summary(self, steps: int) -> dict[str, Any]:
        """What was promised and spent."""
        return {
            "mechanism": "correlated_gaussian",
            "epsilon": self.epsilon(steps),
            "delta": self.delta,
            "budget": self.budget,
            "noise_multiplier": self.noise_multiplier,
            "band": self.band,
            "groups": self._groups,
            "bound": self._bound,
            "neighbours": "all updates of one client are left out",
            "cohort": self._cohort,
        }
