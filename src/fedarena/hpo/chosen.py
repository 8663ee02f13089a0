"""Which optimizers are compared, as somebody names them: ``all``, or ``random,hyperband(eta=4),my_module:Mine``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fedarena.core.errors import BadInputError
from fedarena.core.options import resolve_part
from fedarena.core.outside_text import quoted
from fedarena.core.yaml_files import parse_yaml
from fedarena.hpo.analysis.published import PAPER_NAMES
from fedarena.hpo.optimizers import OPTIMIZERS, Optimizer

ALL: Final = "all"
ALL_OPTIMIZERS: Final = tuple(PAPER_NAMES)  # the ten of the paper; others are named

OneOptimizer = str | type[Optimizer] | Mapping[str, Any]
_BETWEEN = re.compile(r",(?![^(]*\))")  # commas that are not within brackets
_WITH_OPTIONS = re.compile(r"(?P<name>[^()]+)\((?P<options>.*)\)")


@dataclass(frozen=True)
class ChosenOptimizer:
    """An optimizer with all its options, and what it is called in tables and pictures."""

    label: str
    settings: Mapping[str, Any]
    is_multi_fidelity: bool

    @property
    def name(self) -> str:
        """Without its options."""
        return str(self.settings["name"])


def choose_optimizers(given: OneOptimizer | Sequence[OneOptimizer]) -> tuple[ChosenOptimizer, ...]:
    """What is meant by names, mappings with a name and options, and classes.

    >>> [one.label for one in choose_optimizers("random, hyperband(eta=4)")]  # doctest: +SKIP
    ['random', 'hyperband(eta=4)']
    """
    many = [given] if isinstance(given, str | type | Mapping) else list(given)
    chosen = []
    for one in many:
        if not isinstance(one, str):
            chosen.append(_chosen(one))
            continue
        for word in filter(None, map(str.strip, _BETWEEN.split(one))):
            chosen += [_chosen(name) for name in ALL_OPTIMIZERS] if word == ALL else [_chosen(_parsed(word))]
    if not chosen:
        raise BadInputError("Name at least one optimizer to compare, or all")
    labels = [one.label for one in chosen]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInputError(f"The optimizer {label} is named twice")
    return tuple(chosen)


def _chosen(given: OneOptimizer) -> ChosenOptimizer:
    settings = resolve_part(OPTIMIZERS, given, "optimizer")
    options = {key: value for key, value in given.items() if key != "name"} if isinstance(given, Mapping) else {}
    told = ",".join(f"{key}={value}" for key, value in options.items())
    name = settings["name"]
    make = OPTIMIZERS.get(name)
    return ChosenOptimizer(f"{name}({told})" if told else name, settings, make.multi_fidelity)


def _parsed(word: str) -> OneOptimizer:
    """A name, or a name with options in brackets."""
    if "(" not in word and ")" not in word:
        return word
    if not (match := _WITH_OPTIONS.fullmatch(word)):
        raise BadInputError(f"An optimizer with options is written as hyperband(eta=4), not as {quoted(word)}")
    options: dict[str, Any] = {"name": match["name"].strip()}
    for pair in filter(None, map(str.strip, match["options"].split(","))):
        key, sign, value = pair.partition("=")
        if not sign:
            raise BadInputError(f"An option of an optimizer is written as eta=4, not as {quoted(pair)}")
        options[key.strip()] = parse_yaml(value, f"The option {key.strip()}")
    return options
