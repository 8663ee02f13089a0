"""Names for the parts a configuration can choose, with help for misspelt ones."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fedarena.core.declared import as_declared
from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless, quoted
from fedarena.core.own import is_own

T = TypeVar("T")
Made = TypeVar("Made")
Part = TypeVar("Part", bound=Callable[..., object])


def nearest(name: str, names: Iterable[str]) -> str:
    """A phrase for error messages: the most similar valid name, or all of them."""
    known = sorted({one for one in names if one != name})  # what was just refused would be no help
    by_small_letters = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_small_letters, n=1, cutoff=0.55)
    if close:
        return f"did you mean {by_small_letters[close[0]]!r}?"
    return f"valid: {', '.join(known)}" if known else "there are none"


class Registry(Generic[T]):
    """A catalogue of one kind of part: ``name -> class or function``.

    Keyword-only parameters of a registered part are its options; the configuration reads names, types and defaults from
    the signature, so a part is declared once. ``package.module:Name`` refers to a part that is not registered, which is
    how a configuration file uses somebody's own method; the module is looked for where Python looks, and in the current
    folder. So that nothing else is ever called, it must be a subclass of `base`, if there is one, and what it needs
    besides options must be called as `takes` says; a subclass of `may_need_nothing` may do without. A path stands for
    the part called `folders`, if there is one, with that path as its option ``path``.
    """

    def __init__(
        self,
        kind: str,
        *,
        base: type | None = None,
        takes: Sequence[str] | None = None,
        may_need_nothing: type | None = None,
        folders: str | None = None,
    ):
        self.kind = kind
        self._base, self._takes, self._folders = base, takes, folders
        self._may_need_nothing = may_need_nothing
        self._parts: dict[str, T] = {}
        self._checked: set[str] = set()

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
            part = self._parts[name]
            if isinstance(part, type) and name not in self._checked:
                _check_methods(part, f"The {self.kind} {quoted(name)}")
                self._checked.add(name)
            return part
        if ":" in name:
            return self._import(name)
        nowhere = " and no folder of that name" if self._folders else ""
        raise BadInputError(f"There is no {self.kind} called {quoted(name)}{nowhere}; {nearest(name, self._parts)}")

    def stands_for(self, name: str) -> dict[str, Any]:
        """The name of the part that is meant, with its option if the name is a path, whether or not that exists."""
        is_path = os.path.exists(name) or (os.sep in name and ":" not in name)
        if self._folders is None or name in self._parts or not is_path:
            return {"name": name}
        return {"name": self._folders, "path": name}

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._parts)

    def _import(self, path: str) -> T:
        module_name, _, attribute = path.partition(":")
        try:
            _look_here_too()
            part: T = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise self._cannot_import(path, error) from error  # the module is there, but not what it imports
            raise BadInputError(
                f"Cannot import the {self.kind} {quoted(path)}, which should read 'package.module:Name': there is no "
                f"module {quoted(error.name)} in the current folder ({os.getcwd()}) or where Python looks; go to the "
                "folder that holds it, or name that folder in the environment variable PYTHONPATH"
            ) from error
        except (Exception, SystemExit) as error:  # somebody's own module may raise anything
            raise self._cannot_import(path, error) from error
        self._check(part, f"The {self.kind} {quoted(path)}")
        return part

    def _cannot_import(self, path: str, error: BaseException) -> BadInputError:
        reason = str(error) if isinstance(error, ImportError | AttributeError) else repr(error)
        return BadInputError(
            f"Cannot import the {self.kind} {quoted(path)}, which should read 'package.module:Name': "
            f"{harmless(reason)}{_line_of(error)}"
        )

    def _check(self, part: T, what: str) -> None:
        """Refuses what cannot be a part of this kind, without calling it."""
        base = self._base
        if base is not None and not (isinstance(part, type) and issubclass(part, base)):
            raise BadInputError(f"{what} must be a subclass of {base.__module__}.{base.__qualname__}")
        if missing := sorted(getattr(part, "__abstractmethods__", ())):
            raise BadInputError(f"{what} must have {', '.join(missing)}, and does not")
        if not callable(part):
            raise BadInputError(f"{what} must be a class or a function, but it is a {type(part).__name__}")
        if isinstance(part, type):
            _check_methods(part, what)
        try:
            parameters = inspect.signature(part).parameters.values()
        except (ValueError, TypeError) as error:  # some built-in types hide their parameters
            raise BadInputError(f"{what} cannot be used: its options cannot be read") from error
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [one.name for one in parameters if one.kind in positional and one.default is one.empty]
        plain = self._may_need_nothing
        is_given = any(one.name in (self._takes or ()) for one in parameters)  # also if it has a default
        if plain is not None and not needed and not is_given and isinstance(part, type) and issubclass(part, plain):
            return
        if self._takes is not None and needed != list(self._takes):
            takes = f"must take {', '.join(self._takes)}" if self._takes else "must need nothing"
            raise BadInputError(
                f"{what} {takes}, and all else as options (behind a *); it takes {', '.join(needed) or 'nothing'}"
            )


def _check_methods(part: type, what: str) -> None:
    """Refuses methods of somebody's own that cannot be called like ours that they take the place of."""
    ours = [kind for kind in part.__mro__ if kind.__module__.partition(".")[0] == __name__.partition(".")[0]]
    for kind in part.__mro__:
        for name, method in vars(kind).items() if kind not in ours else ():
            place = next((vars(one)[name] for one in ours if name in vars(one)), None)
            if name.startswith("__") or not inspect.isfunction(method) or not inspect.isfunction(place):
                continue
            has, called = inspect.signature(method), inspect.signature(place)
            parameters = called.parameters.values()
            named = {one.name: one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
            in_order = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
            try:
                has.bind(*in_order, **named)
            except TypeError as error:
                needed = ", ".join([*in_order, *named])
                taken = ", ".join(has.parameters) or "nothing"
                raise BadInputError(
                    f"{what}: its method {name} must take {needed}, as the one it replaces does, and takes {taken}"
                ) from error


def make_part(
    registry: Registry[Any], settings: Mapping[str, Any], base: type[Made], what: str, seed: int, number: int = 0
) -> Made:
    """The part that ``{"name": ..., **options}`` means, which may be of somebody's own.

    What it draws while it is made follows from a run's `seed`; of several parts with the same name, each has a
    `number`.
    """
    options = dict(settings)
    part = registry.get(options.pop("name"))
    if not (isinstance(part, type) and issubclass(part, base)):
        raise BadInputError(f"{settings['name']} is not {what}: a subclass of {base.__module__}.{base.__qualname__}")
    if not is_own(part):
        return part(**as_declared(part, options))
    # They need NumPy and torch, which commands that make nothing do without.
    from fedarena.core.seeding import all_seeded
    from fedarena.core.streams import torch_seed

    with all_seeded(torch_seed(seed, what, number)):
        return part(**as_declared(part, options))


def make_parts(
    registry: Registry[Any], settings: Sequence[Mapping[str, Any]], base: type[Made], what: str, seed: int
) -> list[Made]:
    """Several of them, in order."""
    return [make_part(registry, one, base, what, seed, number) for one, number in numbered(settings)]


def numbered(settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The settings of several parts, each with the number of those of the same name before it."""
    before: Counter[str] = Counter()
    for one in settings:
        yield one, before[one["name"]]
        before[one["name"]] += 1


def _look_here_too() -> None:
    """Has modules looked for in the current folder, too, after all other places, as commands do not by themselves."""
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)


def _line_of(error: BaseException) -> str:
    """Where somebody's module went wrong, if it was there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""


@dataclass(frozen=True)
class Choice:
    """Marks an option whose value is itself a named part: ``Annotated[dict[str, Any], Choice(PARTITIONERS)]``."""

    registry: Registry[Any]


@dataclass(frozen=True)
class FileName:
    """Marks an option that names a file: ``Annotated[str | None, FileName()]``. It becomes absolute at once."""
