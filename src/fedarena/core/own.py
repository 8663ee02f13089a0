"""What is somebody's own, and not this package's."""

from __future__ import annotations

import inspect
from typing import Any

from fedarena.core.errors import BadInputError


def is_own(part: Any) -> bool:
    """Whether a function or a class is somebody's own."""
    return not str(getattr(part, "__module__", "")).startswith("fedarena.")


def check_hooks_are_in_class(part: object) -> None:
    """Refuses a part of somebody's own with a hook that it set on itself: engines ask the class which hooks it has."""
    kinds = type(part).__mro__
    if not any(is_own(kind) for kind in kinds if kind is not object):
        return
    for name, value in getattr(part, "__dict__", {}).items():
        if (
            not name.startswith("_")
            and callable(value)
            and any(inspect.isfunction(vars(kind).get(name)) for kind in kinds)
        ):
            raise BadInputError(
                f"{type(part).__name__} sets self.{name}, the place of a method that engines look for in the class; "
                f"define {name} in the class, and let it choose there what it does"
            )
