"""What so many steps cost in privacy: ε for δ, by Rényi divergences or by the distribution of the privacy loss.

The mathematics is that of the package dp-accounting. A step adds Gaussian noise of `noise_multiplier` times the
clipping norm to the sum of clipped updates of a cohort, and what it costs depends on how the cohort was drawn:

- ``poisson``: every client by itself with probability cohort / population. Neighbours differ by one client, who is
  added or removed, which changes the sum by at most the clipping norm. (Mironov, Talwar, Zhang, "Rényi Differential
  Privacy of the Sampled Gaussian Mechanism", 2019.)
- ``uniform``: a random set of that size. Neighbours differ by one client who is replaced by another, since both
  populations have to be of the same size. That changes the sum by at most twice the clipping norm. (Wang, Balle,
  Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments Accountant", AISTATS 2019.)
- ``shuffled``: everybody once in every pass over all clients. Neighbours differ in whether one client's updates are
  left out. Nothing is gained from chance: a pass costs what one step with all clients would.

All bounds are upper bounds. That by the privacy loss distribution is tight up to its grid (0.001, rounded to the safe
side); that by Rényi divergences is a little larger, and is cheap.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedarena.core.errors import BadInputError
from fedarena.privacy.loss_distribution import LossOfOneStep, losses_of_one_step
from fedarena.simulate.selectors.base import Sampling
from fedarena.simulate.selectors.shuffled import rounds_per_pass

Accountant = Literal["rdp", "pld"]
BOUNDS = {"rdp": "Rényi divergences (RDP)", "pld": "privacy loss distribution (PLD)"}
NEIGHBOURS = {
    "poisson": "one client is added or removed",
    "uniform": "one client is replaced by another",
    "shuffled": "all updates of one client are left out",
}
_PLD_GRID = 1e-3
_UNIFORM_ORDERS = (*range(2, 33), 36, 40, 48, 64, 96, 128, 300, 512)  # between whole ones it only interpolates

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sampled:
    """Steps with Gaussian noise on the sum of a cohort's clipped updates, and how the cohorts are drawn."""

    population: int
    cohort: int
    noise_multiplier: float  # standard deviation of the noise in the sum, relative to the clipping norm
    sampling: Sampling = "poisson"
    accountant: Accountant = "rdp"

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise BadInputError(f"sampling must be one of {', '.join(get_args(Sampling))}, not {self.sampling!r}")
        if self.accountant not in get_args(Accountant):
            raise BadInputError(f"accountant must be rdp or pld, not {self.accountant!r}")
        if self.accountant == "pld" and self.sampling == "uniform" and self.cohort < self.population:
            raise BadInputError(
                "There is no bound by the privacy loss distribution for cohorts of a fixed size; choose the accountant "
                "rdp, or the selector poisson"
            )
        check_counts(self.population, self.cohort)
        if not self.noise_multiplier > 0:
            raise BadInputError(f"noise_multiplier must be above 0, not {self.noise_multiplier}")

    def epsilon(self, steps: int, delta: float) -> float:
        """The ε that so many steps spend."""
        check_delta(delta)
        if steps < 1:
            return 0.0
        if self.accountant == "rdp":
            return _epsilon_of_rdp(self._orders, self._costly_steps(steps) * self._rdp, delta)
        if self._draws_by_chance:
            losses = _losses_of_one_step(self.noise_multiplier, self.cohort / self.population)
            return max(loss.epsilon(steps, delta) for loss in losses)
        return float(self._composed(steps).get_epsilon_for_delta(delta))

    def delta(self, steps: int, epsilon: float) -> float:
        """The least δ for which so many steps spend at most ε."""
        if steps < 1:
            return 0.0
        if self.accountant == "rdp":
            from_rdp = accounting().rdp.rdp_privacy_accountant.compute_delta
            return float(from_rdp(self._orders, self._costly_steps(steps) * self._rdp, epsilon)[0])
        return float(self._composed(steps).get_delta_for_epsilon(epsilon))

    def _costly_steps(self, steps: int) -> int:
        """In how many of the first steps a client may take part, if that is not by chance."""
        if self.sampling != "shuffled":
            return steps
        return -(-steps // rounds_per_pass(self.population, self.cohort))

    @cached_property
    def _orders(self) -> FloatArray:
        if self.sampling == "uniform":
            return np.array(_UNIFORM_ORDERS, dtype=np.float64)
        return np.array(accounting().rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, dtype=np.float64)

    @property
    def _rdp(self) -> FloatArray:
        """The Rényi divergences of one step in which a client may take part."""
        return _rdp_of_one_step(replace(self, accountant="rdp"))

    def _composed(self, steps: int) -> Any:
        """The privacy loss distribution of so many steps."""
        distributions = accounting().pld.privacy_loss_distribution
        if self._draws_by_chance:
            return _distribution_of_one_step(self.noise_multiplier, self.cohort / self.population).self_compose(steps)
        sensitivity = 2.0 if self.sampling == "uniform" else 1.0
        deviation = self.noise_multiplier / math.sqrt(self._costly_steps(steps))
        return distributions.from_gaussian_mechanism(
            deviation, sensitivity=sensitivity, value_discretization_interval=_PLD_GRID
        )

    @property
    def takes_a_while(self) -> bool:
        """Whether ε is found by composing the distribution of the loss: a millisecond or more."""
        return self.accountant == "pld" and self._draws_by_chance

    @property
    def _draws_by_chance(self) -> bool:
        """Whether a client may be left out of a step by chance."""
        return self.sampling == "poisson" and self.cohort < self.population


@lru_cache(maxsize=4)
def _losses_of_one_step(noise_multiplier: float, rate: float) -> list[LossOfOneStep]:
    """Of one step that clients take part in by chance, for ε, which is asked for after every round."""
    return losses_of_one_step(_distribution_of_one_step(noise_multiplier, rate), _PLD_GRID)


@lru_cache(maxsize=4)
def _distribution_of_one_step(noise_multiplier: float, rate: float) -> Any:
    return accounting().pld.privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=_PLD_GRID
    )


@lru_cache(maxsize=256)
def _rdp_of_one_step(sampled: Sampled) -> FloatArray:
    """The Rényi divergences, computed once for all runs and resumptions of a process that ask for them."""
    dp = accounting()
    one_of = dp.NeighboringRelation
    if sampled.sampling == "poisson":
        relation = one_of.ADD_OR_REMOVE_ONE
        rate = sampled.cohort / sampled.population
        event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sampled.noise_multiplier))
    elif sampled.sampling == "uniform":
        relation = one_of.REPLACE_ONE
        half = dp.GaussianDpEvent(sampled.noise_multiplier / 2)  # one replaced changes the sum by twice the norm
        event = dp.SampledWithoutReplacementDpEvent(sampled.population, sampled.cohort, half)
    else:
        relation, event = one_of.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(sampled.noise_multiplier)
    with _orders_that_fail_unmentioned():
        found = dp.rdp.RdpAccountant(list(sampled._orders), relation).compose(event).rdp
    result = np.asarray(found, dtype=np.float64)
    result.flags.writeable = False  # it is everybody's
    return result


class Ledger:
    """What a run has spent after so many steps. Every answer is computed once."""

    def __init__(self, sampled: Sampled, delta: float):
        self.sampled, self.delta = sampled, delta
        self._epsilons: dict[int, float] = {}
        self._next: tuple[int, Future[float]] | None = None  # a number of steps, and what is computed for it

    def epsilon(self, steps: int) -> float:
        """The ε for δ. That of a step more, which is asked for next, is computed aside where it takes a while."""
        if steps not in self._epsilons:
            coming, self._next = self._next, None
            is_coming = coming is not None and coming[0] == steps
            self._epsilons[steps] = coming[1].result() if coming and is_coming else self._computed(steps)
            if self.sampled.takes_a_while:
                self._next = (steps + 1, _aside().submit(self._computed, steps + 1))
        return self._epsilons[steps]

    def _computed(self, steps: int) -> float:
        return self.sampled.epsilon(steps, self.delta)


@lru_cache(maxsize=1)
def _aside() -> ThreadPoolExecutor:
    """A thread for all ledgers; NumPy lets others compute meanwhile."""
    return ThreadPoolExecutor(1, thread_name_prefix="epsilon")


def composed_epsilon(parts: Sequence[tuple[Sampled, int]], delta: float) -> float:
    """The ε of several runs of so many steps each, one after the other: Rényi divergences of the same order add up."""
    check_delta(delta)
    known = [dict(zip(one._orders.tolist(), one._rdp.tolist(), strict=True)) for one, _ in parts]
    orders = sorted(set.intersection(*(set(of_one) for of_one in known)))
    total = np.zeros(len(orders))
    for (one, steps), rdp in zip(parts, known, strict=True):
        total += one._costly_steps(steps) * np.array([rdp[order] for order in orders])
    return _epsilon_of_rdp(np.array(orders), total, delta)


def _epsilon_of_rdp(orders: FloatArray, rdp: FloatArray, delta: float) -> float:
    """The least ε over all orders (Canonne, Kamath, Steinke, 2020, proposition 12), as dp-accounting has it.

    That goes through the orders one by one, which is too slow to be done after every round.
    """
    with np.errstate(over="ignore"):
        has_none = delta**2 + np.expm1(-rdp) > 0  # already by the Kullback-Leibler divergence
    usable = orders > 1.01
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    bounds = np.where(has_none, 0.0, np.where(usable, bounds, np.inf))
    return max(0.0, float(bounds.min()))


@contextmanager
def _orders_that_fail_unmentioned() -> Iterator[None]:
    """Orders whose divergence cannot be computed are left out, which costs nothing; nobody needs to hear of it."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@lru_cache(maxsize=1)
def accounting() -> Any:
    """The package dp-accounting, which is an extra."""
    try:
        import dp_accounting
    except ImportError:
        raise BadInputError(
            "Accounting for privacy needs the package dp-accounting: pip install 'fedarena[privacy]'"
        ) from None
    return dp_accounting


def usual_delta(population: int) -> float:
    """population^-1.1, as FLAIR has it: less than one over the number of clients."""
    return float(population**-1.1) if population > 1 else 0.5


def check_epsilon(epsilon: float, name: str = "epsilon") -> None:
    """Refuses an ε that nobody can keep."""
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise BadInputError(f"{name} must be above 0 and finite, not {epsilon}: with less, nothing can be learned")


def check_delta(delta: float, name: str = "delta") -> None:
    """Refuses a δ that promises nothing, or more than noise can give."""
    if not 0 < delta < 1:
        raise BadInputError(
            f"{name} must be above 0 and below 1, not {delta}: it is the probability that ε does not hold, best less "
            "than one over the number of clients"
        )


def check_counts(population: int, cohort: int, of: str = "") -> None:
    """Refuses cohorts that cannot be drawn."""
    if population < 1:
        raise BadInputError(f"{of}population must be at least 1, not {population}")
    if not 1 <= cohort <= population:
        raise BadInputError(f"{of}cohort must be from 1 to the population of {population:,}, not {cohort:,}")


def with_noise(sampled: Sampled, noise_multiplier: float) -> Sampled:
    """The same with other noise."""
    return replace(sampled, noise_multiplier=noise_multiplier)
