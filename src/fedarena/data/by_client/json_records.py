"""JSON objects one after the other: a line for each, or written over several lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedarena.core.errors import BadInputError
from fedarena.data.by_client.packed import lines

_MOST_CHARACTERS = 1 << 24


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any], float]]:
    """Every object with the number of its last line."""
    waiting, began = "", 1
    for number, line, done in lines(path):
        if waiting and (line.startswith("{") or len(waiting) > _MOST_CHARACTERS):
            break  # another one begins, and this one has not ended
        if not waiting and not line.strip():
            continue
        if not waiting:
            began = number
        waiting = f"{waiting}\n{line}" if waiting else line
        if not line.rstrip().endswith("}"):
            continue
        try:
            value = json.loads(waiting)
        except (ValueError, RecursionError):
            continue  # perhaps the end of something inside of it
        if not isinstance(value, dict):
            break
        yield number, value, done
        waiting = ""
    if waiting:
        raise BadInputError(f"{path}, line {began:,}: what begins here is no complete JSON object")
