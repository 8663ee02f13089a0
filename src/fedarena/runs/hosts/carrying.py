"""Folders of runs that travel between machines which do not see the same disk: in pieces, and checked.

A folder that comes back is written beside its place and gets its name when all of it is there. Where an older state of
it is there, that is moved aside before, and taken back if nothing has come in its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fedarena.core.errors import RunFailedError
from fedarena.core.folders import NewFolder

if TYPE_CHECKING:
    from fedarena.runs.hosts.remote import RemoteProcess

_PIECE_BYTES = 8 * 2**20  # of which one is in memory at a time
_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{32}\.before")


@contextmanager
def folders_there(process: RemoteProcess, folders: list[Path]) -> Iterator[list[Path]]:
    """Where a process finds folders of runs, or makes them: in their place, or in one that is lent to it.

    What is in a place that is lent comes here when the block ends, however it ends, unless the machine is gone.
    """
    if process.sees_folder:
        yield [folder.absolute() for folder in folders]
        return
    lent = Path(process.call("lend_folder"))
    there = [lent / folder.name for folder in folders]
    for folder, place in zip(folders, there, strict=True):
        if folder.exists():
            _send(process, folder, place)
    try:
        yield there
    finally:
        for folder, place in zip(folders, there, strict=True):
            _bring(process, place, folder)
        process.call("take_back_folder")


def _send(process: RemoteProcess, folder: Path, there: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place = str(there / path.relative_to(folder))
            with open(path, "rb") as file:
                process.call("append_piece", place, file.read(_PIECE_BYTES))
                while piece := file.read(_PIECE_BYTES):
                    process.call("append_piece", place, piece)


def _bring(process: RemoteProcess, there: Path, folder: Path) -> None:
    """Copies a folder here; what was here of it stays as it is until all has come."""
    files: dict[str, tuple[int, str]] = process.call("list_files", str(there))
    if not files:  # the run was refused before it began
        return
    coming = NewFolder(folder)
    try:
        for name, (length, digest) in files.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise RunFailedError(f"{process.node} sent a file outside of its run: {name!r}")
            _bring_file(process, there / name, coming.temporary / name, length, digest)
        _take_place(coming, folder)
    except OSError as error:
        raise RunFailedError(
            f"The run cannot be brought here from {process.node}: {error.strerror or error} ({folder})"
        ) from None
    finally:
        coming.discard()


def _bring_file(process: RemoteProcess, there: Path, path: Path, length: int, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hashed = hashlib.blake2b()
    with open(path, "wb") as file:
        for start in range(0, length, _PIECE_BYTES):
            piece = process.call("read_piece", str(there), start, min(_PIECE_BYTES, length - start))
            hashed.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    if hashed.hexdigest() != digest:
        raise RunFailedError(f"{path.name} did not come from {process.node} as it is there; the same command goes on")


def _take_place(coming: NewFolder, folder: Path) -> None:
    if not folder.exists():
        coming.publish()
        return
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.before")
    folder.rename(aside)
    try:
        coming.publish()
    except BaseException:
        aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def mend(parent: Path) -> None:
    """Takes back runs that a killed process had moved aside, and removes those that others came in place of."""
    for aside in parent.glob(".*.before"):
        if (match := _ASIDE.fullmatch(aside.name)) is None:
            continue
        if (parent / match[1]).exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(parent / match[1])
