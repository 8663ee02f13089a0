"""Numbers and names as sentences say them."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMED = 3


def counted(number: int, noun: str) -> str:
    """A counted noun: "1 round", "1,315 clients"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def some(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
