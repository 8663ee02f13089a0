"""Reading what a system tells in files and by small programs; whatever cannot be read is None."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_PATIENCE_SECONDS = 10.0


def read_text(path: Path) -> str | None:
    """The content of a file without the space around it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # not there, not allowed, or a driver that has nothing to say
        return None


def read_number(path: Path) -> float | None:
    """The number that a file holds."""
    return as_number(read_text(path))


def as_number(value: object) -> float | None:
    """A finite number, also if it is written as a text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def output_of(command: Sequence[str]) -> str | None:
    """What a program prints; None where it is not there, fails or does not end."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
