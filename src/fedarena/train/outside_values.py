"""What hooks, losses and models of somebody's own read outside of themselves: variables of their files.

Steps are recorded once, with such values as constants, and a resumed run begins with those that the file has. So they
must not change while a run goes on.
"""

from __future__ import annotations

import dis
import random
from collections import deque
from collections.abc import Mapping, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedarena.core.errors import BadInputError
from fedarena.core.own_source import is_own
from fedarena.models import Task
from fedarena.train.algorithm import Algorithm
from fedarena.train.memories import ENTRIES, look_at, same

_HOOKS = ("local_start", "local_loss", "local_gradient", "client_update")
_OF_TASKS = ("loss", "losses", "weights", "batch", "targets", "model_inputs")
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
_VALUES = (bool, int, float, complex, str, bytes, np.generic, Tensor, np.ndarray, *_GENERATORS)
_COLLECTIONS = (Mapping, list, tuple, deque, Set)


class OutsideValues:
    """Such values, as they were in the first round that was looked at."""

    def __init__(self, algorithm: Algorithm, task: Task):
        layers = {type(layer) for layer in task.module.modules()}
        parts = [(type(algorithm), _HOOKS), (type(task), _OF_TASKS), *((layer, ("forward",)) for layer in layers)]
        hooks = [(kind, getattr(kind, name, None)) for kind, names in parts for name in names]
        self._functions = [(kind, hook) for kind, hook in hooks if isinstance(hook, FunctionType) and _is_own(hook)]
        self._before: dict[tuple[str, str], Any] = {}

    def check(self) -> None:
        """Refuses a round in which one of them is another; what was not there before is no other."""
        now: dict[tuple[str, str], Any] = {}
        for kind, hook in self._functions:
            found: dict[str, Any] = {}
            _read_by(hook, kind, found, set())
            now |= {(hook.__qualname__, place): value for place, value in found.items()}
        for (hook_name, place), value in now.items():
            if not place.endswith(ENTRIES) and not same(self._before.setdefault((hook_name, place), value), value):
                raise BadInputError(
                    f"{hook_name} reads {place}, which has changed since the run began: steps that were recorded, and "
                    "a resumed run, would not know; let the server send it (server_init, server_step, broadcast), make "
                    "it an option, or use a schedule"
                )


def _is_own(function: FunctionType) -> bool:
    return is_own(Path(function.__code__.co_filename))


def _read_by(function: FunctionType, kind: type | None, found: dict[str, Any], seen: set[CodeType]) -> None:
    """What a function reads, and those that it calls, by name; `kind` has the methods that it calls."""
    if function.__code__ in seen or not _is_own(function):
        return
    seen.add(function.__code__)
    variables, attributes = _names_in(function.__code__)
    known = {name: function.__globals__[name] for name in variables if name in function.__globals__}
    for name, value in {**known, **_enclosed(function)}.items():
        if isinstance(value, FunctionType):
            _read_by(value, None, found, seen)
        else:
            _look_into(value, name, attributes, found)
    for name in attributes:
        if isinstance(method := getattr(kind, name, None), FunctionType):
            _read_by(method, kind, found, seen)


@cache
def _names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The variables of its file, and the attributes of whatever, that some code reads."""
    variables, attributes = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            variables.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(step.argval)
        elif isinstance(step.argval, CodeType):  # of a function within it
            inside = _names_in(step.argval)
            variables, attributes = variables | inside[0], attributes | inside[1]
    return frozenset(variables), frozenset(attributes)


def _enclosed(function: FunctionType) -> dict[str, Any]:
    """The variables of functions around it that it reads."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # one that has no value yet
            found[name] = cell.cell_contents
    return found


def _look_into(value: Any, place: str, attributes: frozenset[str], found: dict[str, Any]) -> None:
    """Values, and of modules, classes and objects of somebody's own those attributes that are read."""
    if isinstance(value, _VALUES + _COLLECTIONS):
        look_at(value, place, found, set())
    elif isinstance(value, nn.Module):
        look_at(dict(value.state_dict()), place, found, set())
    elif not isinstance(value, ModuleType) or ((file := getattr(value, "__file__", None)) and is_own(Path(file))):
        own = getattr(value, "__dict__", {})
        for name in attributes & own.keys():
            if isinstance(own[name], _VALUES + _COLLECTIONS):
                look_at(own[name], f"{place}.{name}", found, set())
