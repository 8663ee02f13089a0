"""Problems by the names that comparisons use: those of the catalogue, files, and somebody's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.registry import Registry
from fedarena.hpo.problem import Problem

_OWN: Registry[type[Problem]] = Registry("problem", base=Problem, takes=())


def open_problem(name: str, mode: str, options: Mapping[str, Any]) -> Problem:
    """The problem of that name; ``package.module:Name`` is a subclass of `Problem` that needs nothing but options."""
    if ":" in name:
        made = _OWN.get(name)(**options)
        made.name = name
        return made
    raise BadInputError(f"There is no problem called {name!r}")
