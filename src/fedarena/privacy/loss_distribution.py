"""The distribution of the privacy loss of many equal steps, quickly enough to ask after every round.

The package dp-accounting finds that of one step, on a grid and rounded to the safe side, and composes it as is done
here: a power of its Fourier transform (Koskela, Jälkö, Honkela, "Computing Tight Differential Privacy Guarantees Using
FFT", AISTATS 2020), where what lies outside of bounds by Chernoff counts as infinite loss. But it computes what does
not depend on the number of steps every time, goes through the losses one by one, and computes with 53 bits, which is
not enough for the smallest δ: rounding of a transform is relative to the largest probability and grows with every step,
so that after 5,000 steps it comes near to 1e-12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complexfloating[Any, Any]]

_TRUNCATED_MASS = 1e-15
_CHERNOFF_ORDERS = 20  # on either side
_NEGLIGIBLE = 1e-6  # of δ, which rounding may come to before more digits are taken
_MOST_DIGITS = np.fft.rfft(np.zeros(2, dtype=np.longdouble)).real.dtype.type  # 53 bits with old versions of NumPy


@dataclass(frozen=True, eq=False)
class LossOfOneStep:
    """The privacy loss of one step in one direction: ``probabilities[i]`` that it is ``(lowest + i) * grid``."""

    probabilities: FloatArray
    lowest: int
    grid: float
    infinite: float  # probability of an infinite loss

    def epsilon(self, steps: int, delta: float) -> float:
        """The least ε such that so many steps are private with this δ; infinite if there is none."""
        digits = np.float64 if _rounding(steps, np.float64) < _NEGLIGIBLE * delta else _MOST_DIGITS
        # What is lost to rounding counts as infinite loss, like what is cut off.
        lost = _TRUNCATED_MASS + _rounding(steps, digits)
        infinite = lost - math.expm1(steps * math.log1p(-self.infinite))
        if infinite > delta:
            return math.inf
        lowest, probabilities = self._composed(steps, digits)
        above_zero = max(0, 1 - lowest)  # ε is never negative, so smaller losses never exceed it
        descending = probabilities[above_zero:][::-1]
        if not len(descending):
            return 0.0
        losses = (lowest + np.arange(len(probabilities) - 1, above_zero - 1, -1)) * self.grid
        # For ε between two losses, δ is the probability of larger ones less e^ε times that in the neighbouring world.
        mass = infinite + np.cumsum(descending)
        with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
            other_mass = np.cumsum(np.exp(-losses) * descending)
            # The ε that would follow from the losses so far; it holds if the next loss does not exceed it.
            following = np.where(mass > delta, np.log((mass - delta) / other_mass), -np.inf)
        holds = np.flatnonzero(following[:-1] >= losses[1:])
        return max(0.0, float(following[holds[0] if len(holds) else -1]))

    def _composed(self, steps: int, digits: type[np.floating[Any]]) -> tuple[int, FloatArray]:
        """The lowest loss of so many steps, in units of the grid, and the probabilities from there on."""
        first, last = 0, (len(self.probabilities) - 1) * steps
        orders, log_moments = self._log_moments
        bounds = (steps * log_moments + math.log(2 / _TRUNCATED_MASS)) / orders
        above, below = bounds[(orders > 0) & np.isfinite(bounds)], bounds[(orders < 0) & np.isfinite(bounds)]
        last = min(last, math.ceil(above.min(initial=last)))
        first = max(first, math.floor(below.max(initial=first)))
        length = last - first + 1
        # A power of two, so that few transforms are kept; what is outside of the bounds wraps around.
        size = 1 << (max(length, len(self.probabilities)) - 1).bit_length()
        wrapped = np.fft.irfft(_power(self._transform(size, digits), steps), size)
        return self.lowest * steps + first, np.roll(wrapped, -(first % size))[:length].astype(np.float64)

    @cached_property
    def _log_moments(self) -> tuple[FloatArray, FloatArray]:
        """The logarithm of the moment-generating function at some orders, none so large that it could not be told."""
        ups = np.arange(1, _CHERNOFF_ORDERS + 1) / len(self.probabilities)
        orders = np.concatenate([-ups[::-1], ups])
        exponents = np.multiply.outer(orders, np.arange(len(self.probabilities)))
        return orders, np.log(np.exp(exponents) @ self.probabilities)

    @cached_property
    def _transform(self) -> Any:
        return lru_cache(maxsize=4)(lambda size, digits: np.fft.rfft(self.probabilities.astype(digits), size))


def _rounding(steps: int, digits: type[np.floating[Any]]) -> float:
    """What so many factors of a transform, of about 1 each, lose to rounding."""
    return 2 * steps * float(np.finfo(digits).eps)


def _power(values: ComplexArray, exponent: int) -> ComplexArray:
    """By squaring, which is many times as fast as what NumPy does for complex numbers."""
    result = np.ones_like(values)
    while exponent:
        if exponent & 1:
            result = result * values
        exponent >>= 1
        if exponent:
            values = values * values
    return result


def losses_of_one_step(distribution: Any, grid: float) -> list[LossOfOneStep]:
    """What dp-accounting found for one step, in one direction or both."""
    directions = [distribution._pmf_remove] + ([] if distribution._symmetric else [distribution._pmf_add])
    dense = [direction.to_dense_pmf() for direction in directions]
    return [
        LossOfOneStep(np.asarray(one._probs, dtype=np.float64), int(one._lower_loss), grid, float(one._infinity_mass))
        for one in dense
    ]
