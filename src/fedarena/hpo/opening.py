"""Problems by the names that comparisons use: those of the catalogue, files, and somebody's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless
from fedarena.core.registry import Registry
from fedarena.hpo.problem import Mode, Problem
from fedarena.hpo.problems import problem

_OWN: Registry[type[Problem]] = Registry("problem", base=Problem, takes=())


def open_problem(name: str, mode: str, options: Mapping[str, Any]) -> Problem:
    """The problem of that name; ``package.module:Name`` is a subclass of `Problem` that needs nothing but options."""
    try:
        if ":" not in name:
            return problem(name, cast(Mode, mode), **options)
        made = _OWN.get(name)(**options)
    except TypeError as error:  # an option that there is not
        raise BadInputError(f"{name} cannot be made with these options: {harmless(str(error))}") from None
    made.name = name
    return made
