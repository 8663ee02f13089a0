"""Rungs of rounds, and the brackets in which Hyperband climbs them.

Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 2018, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Sizes = Literal["paper", "hpbandster"]


@dataclass(frozen=True)
class Rung:
    """So many configurations are trained for so many rounds."""

    configurations: int
    rounds: int


def rungs(max_rounds: int, min_rounds: int, eta: int) -> list[int]:
    """The numbers of rounds, each about `eta` times the one before; the last is all of them.

    >>> rungs(81, 1, 3), rungs(250, 2, 3)
    ([1, 3, 9, 27, 81], [3, 9, 28, 83, 250])
    """
    climbs = 0
    while min_rounds * eta ** (climbs + 1) <= max_rounds:
        climbs += 1
    return [math.floor(max_rounds / eta**left + 0.5) for left in range(climbs, -1, -1)]


def brackets(max_rounds: int, min_rounds: int, eta: int, sizes: Sizes = "paper") -> list[list[Rung]]:
    """The brackets of Hyperband, from the one that tries most configurations to the one that trains all in full.

    Sizes are those of the paper. "hpbandster" are those of the package of that name, which HB, BOHB and DEHB of
    FedHPO-Bench had: they round down where the paper rounds up, so some brackets are smaller.

    >>> [bracket[0].configurations for bracket in brackets(81, 1, 3)]
    [81, 34, 15, 8, 5]
    >>> [bracket[0].configurations for bracket in brackets(81, 1, 3, "hpbandster")]
    [81, 27, 9, 6, 5]
    """
    ladder = rungs(max_rounds, min_rounds, eta)
    made = []
    for climbs in range(len(ladder) - 1, -1, -1):
        if sizes == "paper":
            most = -(-len(ladder) * eta**climbs // (climbs + 1))  # rounded up
        else:
            most = len(ladder) // (climbs + 1) * eta**climbs
        kept = [most // eta**climbed for climbed in range(climbs + 1)]
        made.append([Rung(number, rounds) for number, rounds in zip(kept, ladder[-climbs - 1 :], strict=True)])
    return made
