"""Long builds that go on where they were interrupted, and that two processes may start at once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.data.registry import StoreBuild
from fedarena.data.store.writer import StoreExistsError

POLL_SECONDS = 0.5

_WORK = ".work"


@contextmanager
def work_folder(build: StoreBuild) -> Iterator[Path]:
    """A folder beside the store for what is done so far, which nobody else uses at the same time.

    It is removed when the store is built, and when the input turns out to be bad; it stays when the block ends in any
    other way, so that the next build of the same store finds what this one did. Its name is that of the store, which
    stands for the options and the files that are read, so what is left of other builds does not matter; it is removed
    as well where their store is there. Whoever comes second waits, and is told with `StoreExistsError` if the store is
    there by then.
    """
    path = build.path
    work = path.with_name(f".{path.name}{_WORK}")
    lock = _lock(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_finished_work(path.parent)
    _acquire(lock, build)
    try:
        if path.exists():
            raise StoreExistsError(f"{path} was made by somebody else meanwhile.")
        for left_over in path.parent.glob(f".{path.name}.*.tmp"):  # of a writer that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        work.mkdir(exist_ok=True)
        try:
            yield work
        except BadInputError:
            shutil.rmtree(work, ignore_errors=True)
            raise
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise RunFailedError(
                f"Cannot build {path}: {error.strerror or error}{where}; the next attempt goes on from here."
            ) from error
    finally:
        _give_back(lock, path, work)


def remove_finished_work(folder: Path) -> None:
    """Removes work folders whose store is there: of processes that were killed just after they had built it."""
    for work in folder.glob(f".*{_WORK}"):
        path = work.with_name(work.name[1 : -len(_WORK)])
        if path.exists():
            lock = _lock(path)
            with suppress(Timeout):  # whoever has the lock removes the folder
                lock.acquire(timeout=0)
                _give_back(lock, path, work)


def _lock(path: Path) -> FileLock:
    return FileLock(path.with_name(f".{path.name}.lock"))


def _give_back(lock: FileLock, path: Path, work: Path) -> None:
    """Lets others have the lock; removes what nobody needs any more."""
    try:
        if path.exists():
            shutil.rmtree(work, ignore_errors=True)
        if not work.exists():  # before the release, when the file could be the lock of somebody else
            Path(lock.lock_file).unlink(missing_ok=True)
    finally:
        lock.release()


def _acquire(lock: FileLock, build: StoreBuild) -> None:
    while True:
        try:
            lock.acquire(timeout=POLL_SECONDS)
        except Timeout:
            build.progress(0.0, "Waiting for another process that is building the same")
        else:
            return
