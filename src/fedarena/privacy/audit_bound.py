"""What guesses about canaries prove.

Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023.

Every one of m canaries was in the training or not, by the toss of a coin. Whoever guesses for r of them whether it was,
and is right v times, shows that training was not (ε, δ)-differentially private, unless by luck: of an (ε, δ)-private
one, v correct guesses or more have at most the probability (their Theorem 5.2)

    P[B ≥ v] + 2 m δ max over i = 1 … m of P[v > B ≥ v - i] / i        B ~ Binomial(r, e^ε / (1 + e^ε)).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_LARGEST = 50.0  # more than any number of canaries can prove
_STEPS = 60  # of the search


def chance_of_guesses(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most likely that so many correct guesses can be if training is (ε, δ)-differentially private."""
    from scipy.stats import binom

    chance = float(1 / (1 + np.exp(-epsilon)))
    more = float(binom.sf(correct - 1, guesses, chance))
    if delta == 0 or correct == 0:
        return min(1.0, more)
    fewer = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, chance))  # by how many fewer, from 1 on
    slack = float((fewer / np.arange(1, correct + 1)).max())
    return min(1.0, more + 2 * canaries * delta * slack)


def proved_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε that so many correct guesses rule out with this confidence; 0 if they show nothing."""
    if chance_of_guesses(canaries, guesses, correct, 0.0, delta) > 1 - confidence:
        return 0.0
    low, high = 0.0, _LARGEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if chance_of_guesses(canaries, guesses, correct, middle, delta) > 1 - confidence:
            high = middle
        else:
            low = middle
    return low


def audit(
    scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_], delta: float, confidence: float
) -> dict[str, float]:
    """The largest ε that scores of canaries prove, and by how many guesses.

    The highest scores are guessed to be of canaries that were in, the lowest of ones that were not. How many guesses
    prove most is not known before, so several numbers are tried, and the confidence is that all of them hold.
    """
    canaries = len(scores)
    tried = sorted({max(1, canaries >> halving) for halving in range(5)})
    each = 1 - (1 - confidence) / len(tried)
    ranked = included[np.argsort(scores, kind="stable")]
    found = []
    for guesses in tried:
        lowest, highest = guesses // 2, guesses - guesses // 2
        correct = int((~ranked[:lowest]).sum() + ranked[canaries - highest :].sum())
        found.append((proved_epsilon(canaries, guesses, correct, delta, each), guesses, correct))
    epsilon, guesses, correct = max(found)
    return {"epsilon": epsilon, "guesses": guesses, "correct": correct}
