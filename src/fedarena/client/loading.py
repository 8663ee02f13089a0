"""The user's own function that loads the samples of a device: ``mydata.py:load``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless, quoted


def load_samples(place: str) -> Any:
    """What the function at ``file.py:name`` or ``package.module:name`` gives."""
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise BadInputError(f"--data {quoted(place)} should read mydata.py:load, a file and a function in it")
    module = _module(where, place)
    function = getattr(module, name, None)
    if not callable(function):
        raise BadInputError(f"--data {place}: {where} has no function {name}")
    try:
        return function()
    except Exception as error:  # somebody's own function may raise anything
        raise BadInputError(f"--data {place} failed: {_explained(error)}") from error


def _module(where: str, place: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        path = Path(where).absolute()
        if not path.is_file():
            raise BadInputError(f"--data {place}: there is no file {where}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.parent))  # so that it finds what lies beside it
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    except BadInputError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInputError(f"--data {place} cannot be imported: {_explained(error)}") from error
    return module


def _explained(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and __file__ != frame.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return harmless(f"{type(error).__name__}: {error}{where}")
