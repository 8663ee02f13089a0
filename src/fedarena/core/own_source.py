"""The source of somebody's own parts: what of it a run is made of, and what of it has changed since.

A part of one's own (an algorithm, a model, a metric, …) lies in a module. What counts is the content of that module's
file and of all files of one's own that it imports, not what is installed or comes with Python. Of a script, a notebook
or whatever else has no file to import, only definitions count: those of the parts, and of what they use there.

A module stays as it was when it was imported. So its source is taken down when it is first looked at, provided that the
file still is what was imported, and holds until the module is imported again.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import inspect
import logging
import marshal
import os
import sys
import sysconfig
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedarena.core.errors import BadInputError
from fedarena.core.files import fingerprint_of

_SCRIPT = "__main__"
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_NOT_OWN = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib")]
_NOT_OWN.append(Path(__file__).resolve().parents[1])
_BEGAN = time.time()
_PYC_HEADER_BYTES = 16
_SAID_BY_REPR = (torch.dtype, torch.device, torch.Size, range, slice, PurePath, Enum)
_READ_A_NAME = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class OwnSource:
    """Fingerprints of everything of somebody's own that a run is made of."""

    files: dict[str, Path] = field(default_factory=dict)  # by module
    fingerprints: dict[str, str] = field(default_factory=dict)  # by module, or ``__main__:name`` of a definition
    unknown: list[str] = field(default_factory=list)  # parts whose source cannot be found

    def to_json(self) -> dict[str, Any]:
        """What is kept with a run."""
        return {
            "files": {module: str(path) for module, path in self.files.items()},
            "fingerprints": self.fingerprints,
            "unknown": self.unknown,
        }

    def changes_since(self, recorded: Mapping[str, Any]) -> list[str]:
        """What is not as it was in a run: files, or names of a script."""
        before: dict[str, str] = recorded["fingerprints"]
        files: dict[str, str] = recorded["files"] | {module: str(path) for module, path in self.files.items()}
        different = [name for name in before | self.fingerprints if before.get(name) != self.fingerprints.get(name)]
        return sorted(dict.fromkeys(files.get(name, name) for name in different))

    @property
    def notes(self) -> list[str]:
        """What the user should know about it."""
        return [
            f"The source of {name} cannot be found, so nobody will notice when it changes; put it into a file"
            for name in self.unknown
        ]


def source_of(parts: Iterable[tuple[str, Any]]) -> OwnSource:
    """The source of all parts, each with its name, that are not built in."""
    found = OwnSource()
    for path, part in parts:
        if ":" in path and not path.startswith(f"{_SCRIPT}:"):  # which may be another file than that of the definition
            _add_module(path.partition(":")[0], found)
        for definition in _with_bases(part):
            _add_definition(getattr(definition, "__qualname__", repr(definition)), definition, found)
    return OwnSource(dict(sorted(found.files.items())), dict(sorted(found.fingerprints.items())), found.unknown)


def _with_bases(part: Any) -> list[Any]:
    part = inspect.unwrap(part)
    if isinstance(part, FunctionType):
        return [part]
    return list((part if isinstance(part, type) else type(part)).__mro__)


# --- modules in files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ModuleSource:
    path: Path
    fingerprint: str
    imports: tuple[str, ...]  # everything that may be a module


_seen: dict[str, tuple[ModuleSpec | None, _ModuleSource]] = {}


def _add_module(name: str, found: OwnSource) -> None:
    """A module with all that it imports, if it is somebody's own."""
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in found.files or name == _SCRIPT:
            continue
        source = _source_of(name)
        if source is None:
            continue
        found.files[name], found.fingerprints[name] = source.path, source.fingerprint
        packages = name.split(".")[:-1]
        waiting += [".".join(packages[: depth + 1]) for depth in range(len(packages))]
        waiting += source.imports


def _source_of(name: str) -> _ModuleSource | None:
    module = sys.modules.get(name)
    spec = _spec_of(name, module)
    if spec is None or not spec.has_location or spec.origin is None or not is_own(Path(spec.origin)):
        return None
    if name in _seen and _seen[name][0] is spec:
        return _seen[name][1]
    path = Path(spec.origin).absolute()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInputError(f"The source of the module {name!r} cannot be read: {path}: {error.strerror}") from None
    imports: tuple[str, ...] = ()
    if path.suffix == ".py":
        if module is not None and type(spec.loader) is SourceFileLoader:
            _check_is_what_was_imported(module, spec, path, content)
        package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
        imports = tuple(_imported(content, package))
    source = _ModuleSource(path, fingerprint_of(content), imports)
    if module is not None:
        _seen[name] = (spec, source)
    return source


def _spec_of(name: str, module: ModuleType | None) -> ModuleSpec | None:
    """Where a module is; one that is not imported yet is not imported for that, and neither are packages it is in."""
    if module is not None:
        return getattr(module, "__spec__", None)
    package = name.rpartition(".")[0]
    if not package:
        try:
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a name that is no module
            return None
    above = _spec_of(package, sys.modules.get(package))
    if above is None or above.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, list(above.submodule_search_locations))


def is_own(path: Path) -> bool:
    """Whether a file is neither installed nor part of Python or FedArena."""
    path = path.resolve()
    return not _INSTALLED & set(path.parts) and not any(path.is_relative_to(folder) for folder in _NOT_OWN)


def own_line(error: BaseException) -> str:
    """In which line of somebody's own file it was raised, or what raised it was called; empty if in none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(path := Path(frame.filename)) and path.is_file()]
    return f"; {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def _imported(content: bytes, package: str) -> Iterator[str]:
    """What a file imports, wherever in it, under all names that may be those of modules."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _check_is_what_was_imported(module: ModuleType, spec: ModuleSpec, path: Path, content: bytes) -> None:
    """Refuses a module whose file was changed after it was imported: then it does not say what would run."""
    code: CodeType | None
    try:
        code = compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        code = None
    there = set() if code is None else set(_code_in(code))
    own = (function.__code__ for function in _functions_of(module))
    is_other = any(Path(one.co_filename).absolute() == path and one not in there for one in own)
    compiled = _compiled_when_imported(spec)
    if compiled is not None:
        is_other = is_other or compiled != code
    elif path.stat().st_mtime > _BEGAN and code is not None:
        is_other = is_other or _has_other_constants(module, content)
    if is_other:
        raise BadInputError(
            f"{path} was changed after Python had imported it, so it does not say what would run; "
            f"start Python again, or call importlib.reload on the module {module.__name__!r}"
        )


def _compiled_when_imported(spec: ModuleSpec) -> CodeType | None:
    """What Python kept of a module when it imported it, or took it from; None where there is no such thing."""
    if spec.cached is None or spec.origin is None:
        return None
    kept = Path(spec.cached)
    try:
        content = kept.read_bytes()
        keeps = not sys.dont_write_bytecode and os.access(kept.parent, os.W_OK)
        if not keeps and not _would_be_taken(content, os.stat(spec.origin)):
            return None
        code = marshal.loads(content[_PYC_HEADER_BYTES:])
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return code if isinstance(code, CodeType) else None


def _would_be_taken(kept: bytes, source: os.stat_result) -> bool:
    """Whether Python takes what it kept of a file for what is in it: by its time and size, unless it has a checksum."""
    header = b"".join(
        n.to_bytes(4, "little") for n in (0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    )
    return kept[:_PYC_HEADER_BYTES] == importlib.util.MAGIC_NUMBER + header


def _has_other_constants(module: ModuleType, content: bytes) -> bool:
    """Whether a module has other plain values than its file gives to names, in it or in its classes; once, for good."""
    tree = ast.parse(content)
    stored = (node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store))
    times = Counter(getattr(node, "id", getattr(node, "attr", None)) for node in stored)
    waiting: list[tuple[Any, list[ast.stmt]]] = [(module, tree.body)]
    while waiting:
        owner, body = waiting.pop()
        for node in body:
            if isinstance(node, ast.ClassDef) and isinstance(kind := vars(owner).get(node.name), type):
                waiting.append((kind, node.body))
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError):
                continue
            if isinstance(target, ast.Name) and times[target.id] == 1:
                now = vars(owner).get(target.id, value)
                if _is_plain(now) and repr(now) != repr(value):
                    return True
    return False


def _code_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _code_in(constant)


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            if isinstance(value, type):
                yield from _functions_in(value)
            elif isinstance(value, FunctionType):
                yield value


# --- definitions of a script or a notebook ---------------------------------------------------------------------------

_texts: WeakKeyDictionary[Any, str | None] = WeakKeyDictionary()  # as they were when first looked at


def _add_definition(name: str, definition: Any, found: OwnSource) -> None:
    """A class or function with all that it uses; where its module has a file, all of that."""
    waiting: list[tuple[str, Any]] = [(name, definition)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, ModuleType):
            _add_module(value.__name__, found)
            continue
        if not isinstance(value, type | FunctionType):
            continue
        home = sys.modules.get(value.__module__)
        if value.__module__ != _SCRIPT and getattr(home, "__spec__", None) is not None:
            _add_module(value.__module__, found)
            continue
        key = f"{value.__module__}:{name}"
        if key in found.fingerprints or key in found.unknown:
            continue
        if value not in _texts:
            _texts[value] = _text_of(value)
        text = _texts[value]
        if text is None:
            found.unknown.append(key)
            continue
        there = {} if home is None else vars(home)
        names = [*(name for code in _codes_of(value) for name in _names_read(code)), *_names_around(text)]
        used = dict.fromkeys(name for name in names if name in there)
        constants = {name: there[name] for name in sorted(used) if _is_plain(there[name])}
        content = f"{text}{constants}"
        for name in sorted(used.keys() - constants.keys()):
            walk = _Walk()
            said = walk.describe(there[name])
            if not isinstance(there[name], ModuleType | type | FunctionType):
                content += f"{name}={said}"
            if walk.is_unknown and (other := f"{value.__module__}:{name}") not in found.unknown:
                found.unknown.append(other)
            waiting += [(getattr(one, "__qualname__", name), one) for one in walk.definitions]
        found.fingerprints[key] = fingerprint_of(content.encode())


def _text_of(definition: type | FunctionType) -> str | None:
    """The source of a class or function. Of a class in a notebook only the methods' is known, and its constants."""
    try:
        return inspect.getsource(definition)
    except (OSError, TypeError):
        if not isinstance(definition, type):
            return None
    try:
        methods = [inspect.getsource(function) for function in _functions_in(definition)]
    except (OSError, TypeError):
        return None
    constants = {name: value for name, value in vars(definition).items() if name[:2] != "__" and _is_plain(value)}
    return "".join([str([base.__qualname__ for base in definition.__mro__]), str(constants), *methods])


def _codes_of(definition: type | FunctionType) -> Iterator[CodeType]:
    functions = _functions_in(definition) if isinstance(definition, type) else [definition]
    for function in functions:
        yield function.__code__
        yield from _code_in(function.__code__)


def _functions_in(kind: type) -> Iterator[FunctionType]:
    """The methods that a class defines itself."""
    for member in vars(kind).values():
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        member = member.fget if isinstance(member, property) else member
        if isinstance(member, FunctionType):
            yield member


def _names_around(text: str) -> Iterator[str]:
    """What is read when a definition is made, too: by the body of a class, decorators, defaults, bases."""
    try:
        code = compile(textwrap.dedent(text), "<definition>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # of a class in a notebook not all is known; a lambda is a piece of a line
        return
    for one in (code, *_code_in(code)):
        yield from (name for name in _names_read(one) if name[:2] != "__")


def _names_read(code: CodeType) -> Iterator[str]:
    """What is looked up among global names; attributes, which may be called the same, are not."""
    return (str(step.argval) for step in dis.get_instructions(code) if step.opname in _READ_A_NAME)


class _Walk:
    """Writes a value down, so that another one is told from it, and collects the definitions that are in it."""

    def __init__(self) -> None:
        self.definitions: list[Any] = []
        self.is_unknown = False  # whether there is something in it of which nobody can say what it is
        self._inside: list[int] = []  # of containers that hold themselves

    def describe(self, value: Any) -> str:
        """The text of a value."""
        if id(value) in self._inside:
            return "…"
        self._inside.append(id(value))
        try:
            return self._describe(value)
        finally:
            self._inside.pop()

    def _describe(self, value: Any) -> str:
        if _is_plain(value) or isinstance(value, _SAID_BY_REPR):
            return repr(value)
        if isinstance(value, ModuleType | type | FunctionType):
            self.definitions.append(inspect.unwrap(value) if isinstance(value, FunctionType) else value)
            return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.describe(key)}: {self.describe(item)}' for key, item in value.items())}}}"
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}[{', '.join(map(self.describe, value))}]"
        if isinstance(value, set | frozenset):
            return f"{type(value).__name__}[{', '.join(sorted(map(self.describe, value)))}]"
        if isinstance(value, functools.partial):
            return f"partial[{self.describe([value.func, value.args, value.keywords])}]"
        if isinstance(value, torch.Tensor) and not value.is_sparse:
            value = value.detach().cpu()
            array = value.float() if value.dtype == torch.bfloat16 else value
            return f"{value.dtype}{self.describe(array.resolve_conj().resolve_neg().numpy())}"
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return f"{value.dtype}{value.shape}{fingerprint_of(np.ascontiguousarray(value).tobytes().hex().encode())}"
        if type(value).__module__ in ("typing", "types"):
            return repr(value)
        if isinstance(value, logging.Logger):  # decides nothing
            return value.name
        if callable(value) and isinstance(value, BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by functools.cache, say
            return f"{type(value).__name__}[{self.describe(wrapped)}]"
        self.is_unknown = True
        self.definitions.append(type(value))
        return type(value).__qualname__


def _is_plain(value: Any) -> bool:
    """Whether a value is written down in full by its `repr`."""
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN
