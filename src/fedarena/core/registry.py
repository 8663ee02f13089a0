"""Names for the parts a configuration can choose, with help for misspelt ones."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedarena.core.errors import BadInputError

T = TypeVar("T")
Part = TypeVar("Part", bound=Callable[..., object])


def nearest(name: str, names: Iterable[str]) -> str:
    """A phrase for error messages: the most similar valid name, or all of them."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid: {', '.join(known)}" if known else "there are none"


class Registry(Generic[T]):
    """A catalogue of one kind of part: ``name -> class or function``.

    Keyword-only parameters of a registered part are its options; the configuration reads names, types and defaults from
    the signature, so a part is declared once. ``package.module:Name`` refers to a part that is not registered, which is
    how a configuration file uses somebody's own method.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._parts: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Part], Part]:
        """Class or function decorator that adds a part under `name`."""

        def add(part: Part) -> Part:
            if name in self._parts:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._parts[name] = part  # type: ignore[assignment]
            return part

        return add

    def get(self, name: str) -> T:
        """The part called `name`."""
        if name in self._parts:
            return self._parts[name]
        if ":" in name:
            return self._import(name)
        raise BadInputError(f"There is no {self.kind} called {name!r}; {nearest(name, self._parts)}")

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._parts)

    def _import(self, path: str) -> T:
        module_name, _, attribute = path.partition(":")
        try:
            part: T = getattr(importlib.import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise BadInputError(
                f"Cannot import the {self.kind} {path!r}, which should read 'package.module:Name': {error}"
            ) from error
        if not callable(part):
            kind = type(part).__name__
            raise BadInputError(f"The {self.kind} {path!r} must be a class or a function, but it is a {kind}")
        try:
            inspect.signature(part)
        except ValueError as error:  # some built-in types hide their parameters
            raise BadInputError(f"{path!r} cannot be used as {self.kind}: its options cannot be read") from error
        return part


@dataclass(frozen=True)
class Choice:
    """Marks an option whose value is itself a named part: ``Annotated[dict[str, Any], Choice(PARTITIONERS)]``."""

    registry: Registry[Any]
