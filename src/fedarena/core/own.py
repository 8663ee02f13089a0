"""What is somebody's own, and not this package's."""

from __future__ import annotations

from typing import Any


def is_own(part: Any) -> bool:
    """Whether a function or a class is somebody's own."""
    return not str(getattr(part, "__module__", "")).startswith("fedarena.")
