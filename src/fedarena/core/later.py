"""Modules that are imported when they are first used, and not before.

Some libraries take longer to import than a short run takes to its first round, and most runs never need them.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def later(name: str) -> Any:
    """Stands for a module until something of it is asked for; type checkers should be shown the real one.

    >>> json = later("json")
    >>> json.dumps([1])
    '[1]'
    """
    return _Later(name)
