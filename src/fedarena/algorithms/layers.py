"""Choosing parameters of a model by their names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from fedarena.core.errors import BadInputError
from fedarena.models import Tensors

PERSONAL_PART = "personal"  # what a model calls the part that is meant to stay with its client


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to."""
    return name.rpartition(".")[0]


def last_layer(params: Tensors) -> list[str]:
    """The parameters of the model's last layer."""
    last = layer_of(next(reversed(params)))
    return [name for name in params if layer_of(name) == last]


def matching(params: Tensors, patterns: list[str]) -> list[str]:
    """The parameters whose names match one of the patterns, such as ``"12.*"``."""
    return [name for name in params if any(fnmatchcase(name, pattern) for pattern in patterns)]


def check_patterns(params: Tensors, option: str, patterns: list[str]) -> None:
    """Refuses patterns that no parameter matches."""
    for pattern in patterns:
        if not matching(params, [pattern]):
            raise BadInputError(
                f"algorithm.{option}: no parameter of the model matches {pattern!r}; it has {', '.join(params)}"
            )
