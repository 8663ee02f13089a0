"""Python's warnings about what a user should know, shown with his line and not with one of ours."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]
_BETWEEN = "contextlib"  # calls functions of this package that are decorated by a context


def warn_user(message: str) -> None:
    """Warns where this package was called from."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _is_between(module: str) -> bool:
    return module == _BETWEEN or module.partition(".")[0] == _PACKAGE
