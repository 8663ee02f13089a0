"""Folders that appear under their name complete or not at all, and what killed processes left of such folders.

A folder is written as ``.NAME.<random>.tmp`` beside its place and renamed in the end. Its writer holds a lock on
``.NAME.<random>.tmp.lock`` meanwhile. The operating system lets go of a lock when a process ends, however it ends. So
whoever can take the lock knows that nobody is at work on the folder any more, also on a disk that machines share.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.core.files import sync_folder

_LOCK_NAME = re.compile(r"(\..+\.[0-9a-f]{32}\.tmp)\.lock")
# Nobody else wants the lock of a new folder, but for an instant of looking whether its writer is gone.
_LOCK_SECONDS = 10.0


class FolderExistsError(BadInputError):
    """There already is something under the name that a folder was to get."""


class NewFolder:
    """A folder in the making: write to `temporary`, then `publish`; `discard` in any case."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
        self.temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        self._lock = _lock_of(self.temporary)
        try:
            self._lock.acquire(timeout=_LOCK_SECONDS)
        except OSError:  # where there are no locks, a folder is written all the same, and never taken for abandoned
            self._remove_lock()
        try:
            self.temporary.mkdir()
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Makes what is in the folder durable and gives it its name."""
        sync_folder(self.temporary)
        if self.path.exists():  # renaming would replace an empty folder without a word
            raise self._somebody_was_faster()
        try:
            os.rename(self.temporary, self.path)
        except OSError:
            if self.path.exists():
                raise self._somebody_was_faster() from None
            raise
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Removes what has not got its name; may be called more than once."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        self._remove_lock()

    def _remove_lock(self) -> None:
        # Before the release: afterwards it could be in the hands of somebody who looks whether the writer is gone.
        with suppress(OSError):
            Path(self._lock.lock_file).unlink()
        self._lock.release()

    def _somebody_was_faster(self) -> FolderExistsError:
        return FolderExistsError(f"{self.path} was made by somebody else meanwhile.")


@contextmanager
def new_folder(path: Path, what: str) -> Iterator[Path]:
    """A temporary folder beside `path`, which gets that name when the block ends, unless it raises."""
    try:
        folder = NewFolder(path)
        try:
            yield folder.temporary
            folder.publish()
        finally:
            folder.discard()
    except OSError as error:
        raise RunFailedError(f"Cannot create {what} {path}: {error.strerror or error}.") from error


def remove_abandoned(parent: Path) -> None:
    """Removes the temporary folders in `parent` whose writers are gone; those without a lock are not ours to judge."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for match in filter(None, map(_LOCK_NAME.fullmatch, names)):
        temporary = parent / match[1]
        lock = _lock_of(temporary)
        try:
            lock.acquire(timeout=0)
        except OSError:  # its writer is at work, or it belongs to a user whose files are not for us
            continue
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            if not temporary.exists():
                with suppress(OSError):
                    Path(lock.lock_file).unlink()
        finally:
            lock.release()


def _lock_of(temporary: Path) -> FileLock:
    return FileLock(temporary.with_name(f"{temporary.name}.lock"), thread_local=False)
