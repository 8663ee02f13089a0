"""Options of somebody's own part as its signature declares them, made of what a configuration file can hold."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import PurePath
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedarena.core.own import is_own

_COLLECTIONS = (tuple, list, set, frozenset)


def as_declared(part: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are enumerations, paths, tuples or sets, which a file has as texts, numbers and lists."""
    if not is_own(part):
        return dict(options)
    try:
        hints = get_type_hints(part.__init__ if inspect.isclass(part) else part)
    except Exception:  # somebody's own part may have annotations of any kind
        hints = {}
    defaults = {name: one.default for name, one in inspect.signature(part).parameters.items()}

    def hint(name: str) -> Any:
        default = defaults.get(name)
        return hints.get(name, type(default) if isinstance(default, (Enum, *_COLLECTIONS)) else None)

    return {name: _made(value, hint(name)) for name, value in options.items()}


def _made(value: Any, hint: Any) -> Any:
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        if type(value) in inner:
            return value
        return next((made for one in inner if type(made := _made(value, one)) is not type(value)), value)
    if not isinstance(kind, type):
        return value
    if issubclass(kind, Enum):
        return next((member for member in kind if member.value in (value, _as_tuple(value))), value)
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if kind in _COLLECTIONS and isinstance(value, list):
        each = inner[:1] * len(value) if kind is not tuple or inner[1:] == (...,) else inner
        each = each if len(each) == len(value) else (None,) * len(value)
        return kind(_made(one, wanted) for one, wanted in zip(value, each, strict=True))
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
