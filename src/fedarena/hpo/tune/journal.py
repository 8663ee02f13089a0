"""The journal of a study: Optuna's, in which every line that is written here seals all that stands before it.

Optuna plays a journal from its first line to its last one and believes every word of it: a line that was lost, changed
or written twice makes another study. So a line ends with a checksum of the journal up to there. Lines without one are
those of earlier versions, or of another program, such as Optuna's dashboard, and are sealed by the next line.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages.journal import JournalFileBackend

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import reading
from fedarena.core.outside_text import quoted

_SEAL = "fedarena_seal"  # the last entry of a line
_BEFORE_SEAL = f',"{_SEAL}":"'.encode()


class Journal(JournalFileBackend):  # type: ignore[misc]
    """The journal in a file. Opening it refuses one that is not what was written; `lock` is held to write to it."""

    def __init__(self, path: Path, lock: FileLock):
        self._path, self._file_lock = path, lock
        self._digest = hashlib.blake2b(digest_size=8)  # of what was read
        self._bytes = self._lines = 0  # that were read
        with reading(path):
            super().__init__(str(path), _JournalLock(lock))
        with lock:
            self._read_on()

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Writes lines, each with its seal."""
        with self._file_lock:
            self._read_on()
            digest, sealed = self._digest.copy(), []
            for log in logs:
                line = _line(log)
                sealed.append(log | {_SEAL: _seal(digest, line)})
                digest.update(_line(sealed[-1]))
            super().append_logs(sealed)
            self._read_on()

    def _read_on(self) -> None:
        """Checks what others have written since, and drops half a line, which a process that was killed has left."""
        with open(self._path, "rb+") as file:
            if file.seek(0, os.SEEK_END) < self._bytes:
                raise DamagedFileError(f"{self._path} was cut off or replaced while the study went on")
            file.seek(self._bytes)
            content = file.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                file.truncate(self._bytes + whole)
        for line in content[:whole].splitlines(keepends=True):
            self._check(line.rstrip(b"\r\n") + b"\n")  # however lines end
        self._bytes += whole

    def _check(self, line: bytes) -> None:
        self._lines += 1
        try:
            json.loads(line)
        except ValueError as error:  # Optuna would take a last one for one that is still being written
            which = f"its line {self._lines}"
            raise DamagedFileError(f"{self._path} is damaged: {which} is no JSON ({quoted(str(error))})") from None
        begin, seal, end = line.rpartition(_BEFORE_SEAL)
        if seal and end != _seal(self._digest, begin + b"}\n").encode() + b'"}\n':
            raise DamagedFileError(
                f"{self._path} is damaged: what stands before the end of its line {self._lines} is not what was "
                "written; put it back as it was, or begin a study of another name (--name)"
            )
        self._digest.update(line)


def _line(log: dict[str, Any]) -> bytes:
    """A line as Optuna writes it."""
    return json.dumps(log, separators=(",", ":")).encode() + b"\n"


def _seal(before: Any, line: bytes) -> str:
    """The seal of a line, which it does not have yet, and of what is before it."""
    digest = before.copy()
    digest.update(line)
    return str(digest.hexdigest())


class _JournalLock:
    """A lock that does not outlive the process that holds it, as Optuna's own ones do."""

    def __init__(self, lock: FileLock):
        self._lock = lock

    def acquire(self) -> bool:
        """Waits until nobody else writes."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Lets others write."""
        self._lock.release()
