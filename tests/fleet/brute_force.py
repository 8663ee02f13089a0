"""Availability once more, as plain as possible: a list of booleans, one per second of the period, and steps in time."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Times and work in tests are multiples of a quarter of a second, which floating point represents exactly.
TICKS = 4


@dataclass(frozen=True)
class PlainPhone:
    seconds: list[bool]

    @property
    def period(self) -> int:
        return len(self.seconds)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The intervals in which the phone is available within the period, as long as possible."""
        found: list[tuple[int, int]] = []
        for second, available in enumerate(self.seconds):
            if available and found and found[-1][1] == second:
                found[-1] = (found[-1][0], second + 1)
            elif available:
                found.append((second, second + 1))
        return found

    def is_available(self, time: float) -> bool:
        return self.seconds[math.floor(time) % self.period]

    def next_available(self, time: float) -> float:
        for tick in range(2 * self.period * TICKS):
            if self.is_available(time + tick / TICKS):
                return time + tick / TICKS
        return math.inf

    def leaves_at(self, time: float) -> float:
        for tick in range(2 * self.period * TICKS):
            if not self.is_available(time + tick / TICKS):
                return time + tick / TICKS
        return math.inf

    def available_seconds(self, begin: float, end: float) -> float:
        return sum(self.is_available(begin + tick / TICKS) for tick in range(round((end - begin) * TICKS))) / TICKS

    def abort(self, time: float, work: float) -> float:
        return time + work if self.available_seconds(time, time + work) == work else math.inf

    def pause(self, time: float, work: float) -> float:
        if not any(self.seconds) and work > 0:
            return math.inf
        while work > 0:
            work -= self.is_available(time) / TICKS
            time += 1 / TICKS
        return time
