"""Gaussian noise in sums over cohorts that chance draws: how much of it, and what it comes to over all rounds."""

from __future__ import annotations

from typing import Any

from fedarena.privacy.accounting import Accountant, Ledger, Sampled, usual_delta
from fedarena.privacy.checks import check_first_round
from fedarena.privacy.mechanism import Mechanism, RunFacts
from fedarena.privacy.refusals import check_guarantee
from fedarena.privacy.solving import solve_noise
from fedarena.simulate.selectors.base import Sampling
from fedarena.transforms import Aggregator
from fedarena.transforms.aggregators import FixedMean


class SampledGaussian(Mechanism):
    """What central noise and noise that clients add together have in common: the accounts."""

    always_steps = True  # so that rounds are what is counted, whoever leaves
    covers_all_that_is_sent = True

    noise_multiplier: float | None
    budget: float | None
    delta: float | None
    public_timing: bool
    accountant: Accountant = "rdp"
    sampling: Sampling

    def _begin_accounts(self, facts: RunFacts, population: int) -> None:
        """Finds the noise for so many clients if it was not given, and refuses what would break the guarantee."""
        check_guarantee(facts, self.public_timing)
        self._population, self._cohort, self._rounds = population, facts.cohort, facts.rounds
        assert facts.selector.sampling is not None  # else it is refused
        self.sampling = facts.selector.sampling
        self._check_counts()
        if self.delta is None:
            self.delta = usual_delta(population)
        if self.noise_multiplier is None:
            assert self.budget is not None
            self.noise_multiplier = solve_noise(self.budget, self._spent_with, self.accountant)
        self._ledger = Ledger(self._sampled(self.noise_multiplier, self.accountant), self.delta)
        check_first_round(self.epsilon(1), self.budget)

    def _check_counts(self) -> None:
        """Refuses cohorts that nobody could draw."""

    @property
    def _accounted_cohort(self) -> int:
        """The cohort that the accountant is told of."""
        return self._cohort

    def _spent_with(self, noise_multiplier: float, accountant: Accountant) -> float:
        assert self.delta is not None
        return self._sampled(noise_multiplier, accountant).epsilon(self._rounds, self.delta)

    def _sampled(self, noise_multiplier: float, accountant: Accountant) -> Sampled:
        return Sampled(self._population, self._accounted_cohort, noise_multiplier, self.sampling, accountant)

    def aggregator(self, chosen: Aggregator) -> Aggregator:
        """The sum over the clients that are expected."""
        return FixedMean(self._cohort)

    def epsilon(self, steps: int) -> float:
        """By the accountant."""
        return self._ledger.epsilon(steps)

    @property
    def sampled(self) -> Sampled:
        """Gaussian noise on sums over cohorts."""
        return self._ledger.sampled

    def choices(self) -> dict[str, Any]:
        """Noise and δ, also where they were found."""
        return {"noise_multiplier": self.noise_multiplier, "delta": self.delta}
