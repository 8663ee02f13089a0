"""Clients about to go offline first, before their data is out of reach.

Abdelmoniem et al., "REFL: Resource-Efficient Federated Learning", EuroSys 2023, give priority to the clients that will
be available least, by forecasts. Here how long a phone stays is read from the fleet. Among some candidates, drawn
uniformly, those are invited who leave first, but not before a job is done. Who leaves earlier comes last, and of these
who stays longest first.
"""

from __future__ import annotations

import math

import numpy as np

from fedarena.simulate.selectors.base import SELECTORS, Candidates, Feedback, IntArray, Selector
from fedarena.simulate.selectors.checks import check_at_least

REMEMBERED_JOBS = 1000  # enough for a median, and its cost stays the same in long runs


@SELECTORS.register("leaving_soon")
class LeavingSoon(Selector):
    """Among `oversample` times as many candidates as wanted, those who leave first and can still finish.

    Who stays for `least_seconds` can; by default, for the median duration of the latest jobs that were used.
    """

    def __init__(self, *, oversample: float = 3.0, least_seconds: float | None = None):
        check_at_least(1, oversample=oversample)
        if least_seconds is not None:
            check_at_least(0, least_seconds=least_seconds)
        self.oversample = oversample
        self.least_seconds = least_seconds
        self._job_seconds = np.empty(0)

    def select(self, number: int, candidates: Candidates, round: int) -> IntArray:
        """The drawn in the order of their leaving."""
        drawn = candidates.draw(math.ceil(self.oversample * number), "leaving soon")
        if len(drawn) <= number:
            return drawn
        seconds_left = candidates.seconds_left(drawn)
        too_short = seconds_left < self._needed_seconds()
        chance = candidates.random("leaving soon, equal seconds").random(len(drawn))
        order = np.lexsort((chance, np.where(too_short, -seconds_left, seconds_left), too_short))
        return np.sort(drawn[order[:number]])

    def _needed_seconds(self) -> float:
        if self.least_seconds is not None:
            return self.least_seconds
        return float(np.median(self._job_seconds)) if len(self._job_seconds) else 0.0

    def observe(self, round: int, feedback: Feedback) -> None:
        """Remembers how long jobs take."""
        self._job_seconds = np.concatenate([self._job_seconds, feedback.seconds[feedback.used]])[-REMEMBERED_JOBS:]
