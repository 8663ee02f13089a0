"""The files of a folder and of the folders in it, of which there may be a million."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import harmless

_ENDINGS_SHOWN = 5
_LONGEST_ENDING = 20  # characters


def files_below(folder: Path, gone: list[str] | None = None) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file with its name seen from `folder`, written with slashes; links are followed, hidden files left out.

    Names of links to what is not there are added to `gone`.
    """
    waiting = [(str(folder), "", frozenset[tuple[int, int]]())]
    while waiting:
        path, prefix, above = waiting.pop()
        try:
            seen = os.stat(path)
            if (seen.st_dev, seen.st_ino) in above:
                raise BadInputError(f"{path} is a link to a folder that it is in")
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            refuse(error)
        for entry in found:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                waiting.append((entry.path, f"{prefix}{entry.name}/", above | {(seen.st_dev, seen.st_ino)}))
            elif entry.is_file():
                yield prefix + entry.name, entry
            elif gone is not None and entry.is_symlink():
                gone.append(prefix + entry.name)


def left_out_note(others: Counter[str], what: str) -> tuple[str, ...]:
    """A sentence about files that were not read, by their endings; none if there are none."""
    if not others:
        return ()
    frequent = sorted(others, key=lambda ending: (-others[ending], ending))[:_ENDINGS_SHOWN]
    shown = [f"{_shown(ending)} ({others[ending]:,})" for ending in frequent]
    more = ", …" if len(others) > _ENDINGS_SHOWN else ""
    total = others.total()
    return (f"{total:,} {'file is' if total == 1 else 'files are'} no {what} and left out: {', '.join(shown)}{more}.",)


def _shown(ending: str) -> str:
    """An ending in a sentence; names of files may hold anything, also what is no text."""
    written = harmless(ending) or "without an ending"
    return written if len(written) <= _LONGEST_ENDING else f"{written[:_LONGEST_ENDING]}…"


def ending_of(name: str) -> str:
    """What says how a file is written, in small letters."""
    return os.path.splitext(name)[1].lower()


def is_hidden(name: str) -> bool:
    """Whether file managers put it there: .DS_Store, or __MACOSX/._a.xml in an archive."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def refuse(error: OSError) -> NoReturn:
    """Raises a sentence on a file that cannot be read."""
    raise BadInputError(f"{error.filename} cannot be read: {error.strerror or error}") from None
