"""Choosing parameters and layers of a model by their names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

PERSONAL_PART = "personal"  # what a model calls the part that is meant to stay with its client


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to."""
    return name.rpartition(".")[0]


def last_layer(params: Iterable[str]) -> list[str]:
    """The parameters of the model's last layer."""
    names = list(params)
    last = layer_of(names[-1])
    return [name for name in names if layer_of(name) == last]


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that match one of the patterns, such as ``"12.*"``."""
    wanted = list(patterns)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted)]
