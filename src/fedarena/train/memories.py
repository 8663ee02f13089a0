"""What parts of somebody's own remember in themselves: no checkpoint has it, so a resumed run would go another way."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedarena.core.errors import BadInputError
from fedarena.core.own import is_own

_NUMBERS = 1 << 16  # of an array or a collection that are compared: a look costs no more in a larger federation
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
ENTRIES = " (entries)"  # behind where a collection is: how many it has
_NO_MEMORY = (type, ModuleType, FunctionType, property, cached_property, staticmethod, classmethod)


@contextmanager
def refusing_memories(part: object, method: str, instead: str) -> Iterator[None]:
    """A part of somebody's own may not change within the block, in which one of its methods is called.

    But for attributes that its classes name in `write_only`, on which nothing depends: what is only written, for
    somebody to look at later, or only kept because it takes long to find again.
    """
    if not is_own(type(part)):
        yield
        return
    before = memories_of(part)
    yield
    for place in changed_memories(part, before, memories_of(part)):
        raise memory_refused(part, method, place, instead)


def memory_refused(part: object, method: str, place: str, instead: str) -> BadInputError:
    """What to tell somebody whose part remembers something in itself."""
    attribute = attribute_of(place)
    return BadInputError(
        f"{type(part).__name__}.{method} remembers something in self.{attribute}, which would be lost when the "
        f"run is interrupted, and unknown to other engines; {instead}, or, if nothing depends on it, say "
        f'write_only = ("{attribute}",) in the class'
    )


def changed_memories(part: object, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Where a part is not as it was; what a cached property found out for the first time follows from what it was."""
    known = {attribute_of(place) for place in before}
    for place in dict.fromkeys([*after, *before]):
        if place in before and place in after and same(before[place], after[place]):
            continue
        attribute = attribute_of(place)
        if attribute in known or not isinstance(getattr(type(part), attribute, None), cached_property):
            yield place


def attribute_of(place: str) -> str:
    """Of a part, in which something is."""
    return re.split(r"[.\[ ]", place)[0]


def memories_of(part: object) -> dict[str, Any]:
    """Everything in a part that could change, by where it is."""
    found: dict[str, Any] = {}
    seen = {id(part)}
    only_written = {name for kind in type(part).__mro__ for name in vars(kind).get("write_only", ())}
    for kind in type(part).__mro__:
        if is_own(kind) and kind is not object:
            own = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
            _look_into(_without(only_written, own), "", found, seen)
    _look_into(_without(only_written, getattr(part, "__dict__", {})), "", found, seen)
    return found


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _look_into(values: Mapping[Any, Any], prefix: str, found: dict[str, Any], seen: set[int]) -> None:
    for name, value in islice(values.items(), _NUMBERS):
        look_at(value, f"{prefix}{name}", found, seen)


def look_at(value: Any, place: str, found: dict[str, Any], seen: set[int]) -> None:
    """Adds everything in a value that could change to what was `found`, by where it is."""
    if isinstance(value, _PLAIN):
        found[place] = value
        return
    if isinstance(value, _NO_MEMORY) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        flat = value.detach().flatten()
        found[place] = flat[:: _stride(flat.numel())].clone()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        flat_array = value.reshape(-1)
        found[place] = flat_array[:: _stride(flat_array.size)].copy()
    elif isinstance(value, np.random.Generator):
        found[place] = repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        found[place] = repr(value.get_state())
    elif isinstance(value, random.Random):
        found[place] = hash(value.getstate())
    elif isinstance(value, torch.Generator):
        found[place] = value.get_state()
    elif isinstance(value, Mapping):
        found[f"{place}{ENTRIES}"] = len(value)
        _look_into(value, f"{place}.", found, seen)
    elif isinstance(value, (list, tuple, deque, Set, np.ndarray)):
        found[f"{place}{ENTRIES}"] = len(value)
        for number, entry in enumerate(islice(value, _NUMBERS)):
            look_at(entry, f"{place}[{number}]", found, seen)
    else:
        _look_into(getattr(value, "__dict__", {}), f"{place}.", found, seen)


def _stride(numbers: int) -> int:
    return max(1, -(-numbers // _NUMBERS))


def same(one: Any, other: Any) -> bool:
    """Whether what was found in a place is what is there now."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return bool(one == other) or (one != one and other != other)
