"""Changing several files of a run at once, so that a crash at any moment leaves all of them old or all of them new.

The new files are written to ``checkpoint/changes/``; a file ``ready`` there says that they are complete. Then each
takes the place of the old one. Whoever opens a run in which that is not done yet does the rest.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fedarena.core.files import sync_folder, write_bytes
from fedarena.core.interrupts import deferring_interrupts

_FOLDER, _READY = "checkpoint/changes", "ready"


def change_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replaces files of a run, named as seen from its folder; the caller holds the run's lock."""
    place = folder / _FOLDER
    with deferring_interrupts():
        shutil.rmtree(place, ignore_errors=True)  # of a process that was killed before it was ready
        place.mkdir()
        for name, content in contents.items():
            write_bytes(place / name.replace("/", "@"), content)
        write_bytes(place / _READY, b"")
        finish_changes(folder)


def finish_changes(folder: Path) -> None:
    """Does the rest of a change that was ready when its process was killed."""
    place = folder / _FOLDER
    if not (place / _READY).exists():
        return
    for path in place.iterdir():
        if path.name != _READY and not path.name.endswith(".tmp"):
            with suppress(FileNotFoundError):  # another process does the same
                os.replace(path, folder / path.name.replace("@", "/"))
    sync_folder(folder)
    sync_folder(folder / "checkpoint")
    shutil.rmtree(place, ignore_errors=True)
