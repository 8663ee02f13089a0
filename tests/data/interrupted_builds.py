"""Builds of stores that are interrupted at every step, as if their process were killed."""

from __future__ import annotations

from collections.abc import Callable

from fedarena.data import Federation
from fedarena.data.registry import Progress


class InterruptionError(Exception):
    """Stands for a process that was killed."""


def build_in_spite_of_interruptions(
    load: Callable[[Progress], Federation], attempts: int, look: Callable[[], None] = lambda: None
) -> tuple[Federation, list[float]]:
    """What comes of it when every attempt ends at a step that none before has reached, and these steps.

    After every interruption somebody may have a `look`.
    """
    seen: list[float] = []

    def interrupt(fraction: float, words: str) -> None:
        if fraction not in seen:
            seen.append(fraction)
            raise InterruptionError

    for _ in range(attempts):
        try:
            return load(interrupt), seen
        except InterruptionError:
            look()
    raise AssertionError(f"still not built after {attempts} attempts")
