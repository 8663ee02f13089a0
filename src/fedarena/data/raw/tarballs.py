"""Tarballs with everything in them, such as FedScale's: unpacked beside a store while it is built, and removed then."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from fedarena.core.errors import BadInputError, DamagedFileError, RunFailedError
from fedarena.core.outside_text import quoted

_COMPLETE = "complete"  # is there when everything is unpacked


@contextmanager
def unpacked(tarball: Path, store: Path, progress: Callable[[float, str], None]) -> Iterator[Path]:
    """The folder with what is in a tarball, beside the store that is built from it.

    It is removed when the block ends, and when the input turns out to be bad; if it ends in any other way, the next
    build finds what is unpacked. Whoever comes second waits. A folder that holds nothing but one other is left out.
    """
    work = store.with_name(f".{store.name}.unpacked.work")
    store.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(store.with_name(f".{store.name}.unpacked.lock"))
    with lock:
        try:
            if not (work / _COMPLETE).exists():
                shutil.rmtree(work, ignore_errors=True)
                _unpack(tarball, work / "files", progress)
                (work / _COMPLETE).touch()
            inside = list((work / "files").iterdir())
            yield inside[0] if len(inside) == 1 and inside[0].is_dir() else work / "files"
        except BadInputError:
            _remove(work, lock)
            raise
        _remove(work, lock)


def _remove(work: Path, lock: FileLock) -> None:
    shutil.rmtree(work, ignore_errors=True)
    Path(lock.lock_file).unlink(missing_ok=True)


def _unpack(tarball: Path, folder: Path, progress: Callable[[float, str], None]) -> None:
    """Writes the files of a tarball; links and what is not inside of it are none."""
    size = max(tarball.stat().st_size, 1)
    folder.mkdir(parents=True)
    try:
        with open(tarball, "rb") as packed, tarfile.open(fileobj=packed, mode="r|*") as archive:
            for entry in archive:
                name = Path(entry.name)
                if not entry.isfile():
                    continue
                if name.is_absolute() or ".." in name.parts:
                    raise BadInputError(f"{tarball} has a file {quoted(entry.name)}, which is not inside of it")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(entry)
                assert content is not None  # it is a file
                with open(folder / name, "wb") as file:
                    shutil.copyfileobj(content, file)
                progress(0.0, f"Unpacking {tarball.name}, {min(packed.tell() / size, 1.0):.0%}")
    except (tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DamagedFileError(f"{tarball} is damaged: it cannot be unpacked ({error})") from None
    except OSError as error:
        if error.errno is None:
            raise DamagedFileError(f"{tarball} is damaged: it cannot be unpacked ({error})") from None
        raise RunFailedError(f"Cannot unpack {tarball} into {folder}: {error.strerror}") from error
