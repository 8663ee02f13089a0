"""Problems by the names that comparisons use: those of the catalogue, files, and somebody's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import as_file_name, harmless
from fedarena.core.registry import Registry
from fedarena.hpo.problem import Mode, Problem
from fedarena.hpo.problems import problem

_ENDINGS = {"table": ".parquet", "surrogate": ".npz"}
_OWN: Registry[type[Problem]] = Registry("problem", base=Problem, takes=())


def open_problem(name: str, mode: str, options: Mapping[str, Any]) -> Problem:
    """The problem of that name; ``package.module:Name`` is a subclass of `Problem` that needs nothing but options.

    Of a folder of tables or surrogates, it is the file with the name of the problem, as `fedarena hpo table` calls it.
    """
    files = {key: _file_in(options[key], name, _ENDINGS[key]) for key in _ENDINGS if options.get(key) is not None}
    options = {**options, **files}
    try:
        if ":" not in name:
            return problem(name, cast(Mode, mode), **options)
        made = _OWN.get(name)(**options)
    except TypeError as error:  # an option that there is not
        raise BadInputError(f"{name} cannot be made with these options: {harmless(str(error))}") from None
    made.name = name
    return made


def _file_in(given: str | Path, name: str, ending: str) -> Path:
    """A file, or that of a problem in a folder."""
    place = Path(given)
    if not place.is_dir():
        return place
    names = [f"{name}{ending}", f"{as_file_name(name)}{ending}"]
    for one in names:
        if (place / one).is_file():
            return place / one
    raise BadInputError(f"The folder {place} has neither {names[0]} nor {names[1]}")
