"""Oort. Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021.

A client is worth inviting if its samples have large losses and its phone is fast. For every explored client i, whose
job has ended at least once,

    utility = |B_i| sqrt(mean squared loss)              B_i: samples it processed, each counted once
    score   = normalized(clipped(utility)) + sqrt(0.1 ln R / L_i)       R: this round, L_i: its last one
              all x (T / d_i)^alpha if its job took d_i > T seconds

A share of the invited, smaller from round to round, are clients never tried before. The others are drawn by score among
all who reach 95 % of the score of the last one wanted. The pacer raises T, a percentile of the durations, whenever the
clients of `pacer_window` rounds brought less utility than those of as many rounds before. Who has been invited too
often is left out, so that outliers do not rule.

Where the paper leaves something open, or its authors' code differs:

- We see a client's mean loss, so its absolute value stands for the root of the mean square.
- Normalized is (u - min) / (max - min) over the clipped utilities of all explored clients, or 1 if all are equal.
- The paper moves T by seconds; here, as in the code, by percentiles. The code also lowers T after sharp changes, and
  raises it when utility hardly changes; here, as in the paper, T rises when utility falls.
- The paper explores by speed, which nobody knows beforehand: here by data size, like the code, or uniformly.
- A client that failed has no utility unless it had one before. Its pick counts, and so does the time it ran if that was
  longer than its last job. Percentiles of durations are of clients that have been used.
- How many clients are exploited is rounded at random, so that it works when clients are invited one by one as well.
- As many candidates as wanted are always found, if there are so many: who is missing in one group is replaced from the
  others, at last from those who were invited too often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from fedarena.simulate.selectors.base import (
    SELECTORS,
    BoolArray,
    Candidates,
    Feedback,
    FloatArray,
    IntArray,
    Selector,
    Weights,
)
from fedarena.simulate.selectors.checks import check_at_least, check_between
from fedarena.simulate.selectors.ledger import Ledger


@SELECTORS.register("oort")
class Oort(Selector):
    """Guided selection by losses and durations.

    - `exploration`, `exploration_decay`, `exploration_min`: the share of new clients in the first round, what it is
      multiplied by after every round, and its least value.
    - `explore_by`: new clients are drawn by data `size`, or `uniform`.
    - `alpha`: the exponent of the penalty for slow clients.
    - `uncertainty`: the 0.1 in the bonus for clients not seen for long.
    - `clip_percentile`: larger utilities count like this percentile of them.
    - `cutoff`: the share of the score of the last client wanted that suffices to be drawn.
    - `pacer_percentile`, `pacer_step`, `pacer_window`: where T begins, by how many percentiles it moves, after how many
      rounds.
    - `blacklist_after`, `blacklist_share`: who was invited more often than this is left out, but at most this share of
      the explored clients, those with the most invitations first.
    """

    def __init__(
        self,
        *,
        exploration: float = 0.9,
        exploration_decay: float = 0.98,
        exploration_min: float = 0.3,
        explore_by: Literal["size", "uniform"] = "size",
        alpha: float = 2.0,
        uncertainty: float = 0.1,
        clip_percentile: float = 95.0,
        cutoff: float = 0.95,
        pacer_percentile: float = 30.0,
        pacer_step: float = 5.0,
        pacer_window: int = 20,
        blacklist_after: int = 10,
        blacklist_share: float = 0.3,
    ):
        check_between(0, 1, exploration=exploration, exploration_decay=exploration_decay)
        check_between(0, 1, exploration_min=exploration_min, cutoff=cutoff, blacklist_share=blacklist_share)
        check_between(0, 100, clip_percentile=clip_percentile, pacer_percentile=pacer_percentile, pacer_step=pacer_step)
        check_at_least(0, alpha=alpha, uncertainty=uncertainty)
        check_at_least(1, pacer_window=pacer_window, blacklist_after=blacklist_after)
        self.exploration = exploration
        self.exploration_decay = exploration_decay
        self.exploration_min = exploration_min
        self.explore_by = explore_by
        self.alpha = alpha
        self.uncertainty = uncertainty
        self.clip_percentile = clip_percentile
        self.cutoff = cutoff
        self.pacer_percentile = pacer_percentile
        self.pacer_step = pacer_step
        self.pacer_window = pacer_window
        self.blacklist_after = blacklist_after
        self.blacklist_share = blacklist_share
        self._explored = Ledger(utility=math.nan, seconds=0.0, finished=False, last_round=0, picks=0)
        self._collected: list[float] = []  # utility per round
        self._percentile = pacer_percentile

    def prepare(self, clients: IntArray, samples: Callable[[IntArray], IntArray], cohort: int, seed: int) -> None:
        """Adds up everybody's samples, once."""
        self._samples = samples
        self._sizes = Weights.by_size(clients, samples) if self.explore_by == "size" else None

    def observe(self, round: int, feedback: Feedback) -> None:
        """Losses and durations of who was used, durations and picks of all; then the pacer's turn."""
        explored, used = self._explored, feedback.used
        rows = explored.add(feedback.clients)
        explored["last_round"][rows] = round
        np.add.at(explored["picks"], rows, 1)
        np.maximum.at(explored["seconds"], rows[~used], feedback.seconds[~used])
        explored["seconds"][rows[used]] = feedback.seconds[used]
        explored["finished"][rows[used]] = True
        samples = np.minimum(self._samples(feedback.clients), feedback.samples)
        with np.errstate(over="ignore", invalid="ignore"):
            utility = np.abs(feedback.losses) * samples
        known = used & np.isfinite(utility)
        explored["utility"][rows[known]] = utility[known]
        self._pace(float(utility[known].sum()))

    def _pace(self, utility: float) -> None:
        self._collected.append(utility)
        window = self.pacer_window
        if len(self._collected) >= 2 * window and len(self._collected) % window == 0:
            before, lately = self._collected[-2 * window : -window], self._collected[-window:]
            if sum(before) > sum(lately):
                self._percentile = min(100.0, self._percentile + self.pacer_step)

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """Some by score, some never tried before."""
        explored = self._explored
        random = candidates.random("oort")
        share = max(self.exploration * self.exploration_decay ** (round - 1), self.exploration_min)
        exploited = math.floor(number * (1 - share) + random.random())

        available = candidates.are_available(explored.clients)
        blacklisted = self._blacklisted()
        scores = self.scores(round)
        chosen = self._by_score(exploited, np.flatnonzero(available & ~blacklisted), scores, random)
        new = self._new_clients(number - len(chosen), candidates)
        # Too few new ones: more of the explored, and of those left out only when there is nobody else.
        for group in (available & ~blacklisted, available & blacklisted):
            group[chosen] = False
            missing = number - len(new) - len(chosen)
            chosen = np.concatenate([chosen, self._by_score(missing, np.flatnonzero(group), scores, random)])
        return np.sort(np.concatenate([explored.clients[chosen], new]))

    def scores(self, round: int) -> FloatArray:
        """The score of every explored client, in the order of clients."""
        explored = self._explored
        if not len(explored):
            return np.empty(0)
        scores = self._normalized_utility()
        scores += np.sqrt(self.uncertainty * math.log(round) / explored["last_round"])
        preferred = self._preferred_seconds()
        slow = explored["seconds"] > preferred
        scores[slow] *= (preferred / explored["seconds"][slow]) ** self.alpha
        return scores

    def _normalized_utility(self) -> FloatArray:
        utility = self._explored["utility"]
        known = ~np.isnan(utility)
        normalized = np.zeros(len(utility))
        if known.any():
            clipped = np.minimum(utility[known], _percentile(utility[known], self.clip_percentile))
            lowest, highest = clipped.min(), clipped.max()
            normalized[known] = (clipped - lowest) / (highest - lowest) if highest > lowest else 1.0
        return normalized

    def _preferred_seconds(self) -> float:
        """T: anything is fast enough as long as nobody has finished, or when the pacer has come to its end."""
        seconds = self._explored["seconds"][self._explored["finished"]]
        return _percentile(seconds, self._percentile) if len(seconds) and self._percentile < 100 else math.inf

    def _blacklisted(self) -> BoolArray:
        picks = self._explored["picks"]
        blacklisted = picks > self.blacklist_after
        most = int(self.blacklist_share * len(picks))
        if blacklisted.sum() > most:
            blacklisted[np.argsort(-picks, kind="stable")[most:]] = False
        return blacklisted

    def _by_score(self, number: int, rows: IntArray, scores: FloatArray, random: np.random.Generator) -> IntArray:
        """`number` of these rows, or all, drawn by score among those who come near to the best `number`."""
        if number == 0 or number >= len(rows):
            return rows[:number]
        last_wanted = -np.partition(-scores[rows], number - 1)[number - 1]
        rows = rows[scores[rows] >= self.cutoff * last_wanted]
        # Exponential waiting times with these rates end in the order of draws without replacement.
        waiting = random.exponential(size=len(rows)) / np.maximum(scores[rows], 1e-12)
        return rows[np.argsort(waiting)[:number]]

    def _new_clients(self, number: int, candidates: Candidates) -> IntArray:
        if len(self._explored) == len(candidates.clients):
            return candidates.clients[:0]
        return candidates.draw(
            number, "oort exploration", accept=lambda clients: ~self._explored.knows(clients), weights=self._sizes
        )


def _percentile(values: FloatArray, percentile: float) -> float:
    """The value below which this many percent of the values lie."""
    place = min(int(len(values) * percentile / 100), len(values) - 1)
    return float(np.partition(values, place)[place])
