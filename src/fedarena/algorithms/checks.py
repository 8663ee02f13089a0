"""Refusing hyperparameters outside of their range."""

from __future__ import annotations

from fedarena.core.errors import BadInputError


def check_positive(**values: float) -> None:
    """Raises unless every value is above 0."""
    for name, value in values.items():
        if not value > 0:
            raise BadInputError(f"algorithm.{name} must be above 0, not {value}")


def check_not_negative(**values: float) -> None:
    """Raises unless every value is at least 0."""
    for name, value in values.items():
        if not value >= 0:
            raise BadInputError(f"algorithm.{name} must be at least 0, not {value}")


def check_fraction(**values: float) -> None:
    """Raises unless every value is at least 0 and below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise BadInputError(f"algorithm.{name} must be at least 0 and below 1, not {value}")
