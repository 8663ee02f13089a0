"""Refusing options outside of their range."""

from __future__ import annotations

from fedarena.core.errors import BadInputError


def check_between(lowest: float, highest: float, **values: float) -> None:
    """Raises unless every value is in this range."""
    for name, value in values.items():
        if not lowest <= value <= highest:
            raise BadInputError(f"selector.{name} must be between {lowest} and {highest}, not {value}")


def check_at_least(lowest: float, **values: float) -> None:
    """Raises unless every value is this large."""
    for name, value in values.items():
        if not value >= lowest:
            raise BadInputError(f"selector.{name} must be at least {lowest}, not {value}")
