"""Refusing options outside of their range, and libraries that are not there."""

from __future__ import annotations

import importlib
from typing import Any

from fedarena.core.errors import BadInputError


def check_between(lowest: float, highest: float, **values: float) -> None:
    """Raises unless every value is in this range."""
    for name, value in values.items():
        if not lowest <= value <= highest:
            raise BadInputError(f"optimizer.{name} must be between {lowest:g} and {highest:g}, not {value}")


def check_at_least(lowest: float, **values: float) -> None:
    """Raises unless every value is this large."""
    for name, value in values.items():
        if not value >= lowest:
            raise BadInputError(f"optimizer.{name} must be at least {lowest:g}, not {value}")


def needed(package: str, optimizer: str) -> Any:
    """A package of the extra ``hpo``, imported now; refuses in one sentence where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise BadInputError(
            f"The optimizer {optimizer} needs the package {package}, which is not installed: "
            "pip install 'fedarena[hpo]'"
        ) from error
