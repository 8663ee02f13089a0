"""What a device keeps on its disk, so that it can be killed at any moment and nobody has trained for nothing.

A folder of its own for every run: ``current`` is what the client keeps between its jobs for the algorithm and for
transforms. A job that is done lies in ``memory.<task>`` (what is kept from then on), ``update.<task>`` (what is to be
uploaded) and, written last, ``pending.json``. When the server has the update, ``delivered.json`` takes its place. Only
when the server says that it has used the update does the memory become current: a round may fail, and what nobody used
must not change what this client does next. Whatever a device that was killed has missed, the server tells it again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedarena.client import codec
from fedarena.client.device import Trained
from fedarena.core.errors import BadInputError, DamagedFileError, FedArenaError
from fedarena.core.files import sync_folder, write_bytes
from fedarena.core.outside_text import as_file_name, harmless
from fedarena.core.sealed_json import read_sealed, seal_json, unseal_json
from fedarena.train import Groups, flatten_groups

_TASK = re.compile("[0-9a-f]{1,64}")
_DIGEST = "sha256"
LOCK_SECONDS = 2.0  # how long to wait for a client that is just ending


class DiskFullError(FedArenaError):
    """There is no room left; what was there before is as it was."""


@contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """Makes a sentence of a full disk, or one that cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"The disk is full: {folder} cannot be written to; make room, and start again"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DiskFullError(f"{folder} cannot be written to: {os.strerror(error.errno).lower()}") from error
        raise


@dataclass(frozen=True)
class Pending:
    """A job that is done and whose update is not known to be accepted or refused."""

    task: str
    report: dict[str, Any]
    sha256: str
    bytes: int


class DeviceFolder:
    """The folder of a client: downloads, and the folders of runs. One process at a time uses it."""

    def __init__(self, path: Path):
        self.path = path
        with needing_room(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(path / "lock")

    def close(self) -> None:
        """Lets another client use the folder."""
        self._lock.close()

    def run(self, name: str, device: str) -> RunFolder:
        """What this device keeps for a run."""
        folder = RunFolder(self.path / "runs" / as_file_name(name))
        folder.claim(device)
        return folder

    @property
    def blobs(self) -> Path:
        """Where downloads lie."""
        return self.path / "blobs"


class RunFolder:
    """What a device keeps for one run."""

    def __init__(self, path: Path):
        self.path = path
        with needing_room(path):
            path.mkdir(parents=True, exist_ok=True)
        self._current, self._pending, self._delivered = (
            path / n for n in ("current", "pending.json", "delivered.json")
        )

    def claim(self, device: str) -> None:
        """Notes whose folder this is; what another device keeps, as in a copy of its folder, is not gone on with."""
        path = self.path / "device.json"
        found = read_sealed(path, "device")
        if found is None:
            with needing_room(self.path):
                write_bytes(path, seal_json({"device": device}))
        elif found["device"] != device:
            raise BadInputError(
                f"{self.path} is what {harmless(str(found['device']))} keeps for this run, and this is {device}; "
                "choose another folder with --state"
            )

    def current(self) -> Groups | None:
        """What was kept with the last update that was accepted; None: nothing yet."""
        if not self._current.exists():
            return None
        digest = hashlib.sha256()
        try:
            with open(self._current, "rb") as file:
                header = codec.read_header(file, os.fstat(file.fileno()).st_size, None, str(self._current))
            groups = codec.load_groups(self._current)
        except codec.BadTensorsError as error:
            raise DamagedFileError(f"{error}; delete {self._current} to go on as a newcomer") from error
        _add_to(digest, groups)
        if header.metadata.get(_DIGEST) != digest.hexdigest():
            raise DamagedFileError(
                f"{self._current} is damaged: its numbers are not those that were written; delete it to go on as a "
                "newcomer"
            )
        return groups

    def pending(self) -> Pending | None:
        """The job whose fate is not known, if there is one."""
        try:
            value = unseal_json(self._pending.read_bytes())
            if value is None:
                raise ValueError
            task, report, digest, size = (value[name] for name in ("task", "report", "sha256", "bytes"))
            if not (isinstance(task, str) and _TASK.fullmatch(task) and isinstance(report, dict) and type(size) is int):
                raise ValueError
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise DamagedFileError(f"{self._pending} is damaged; delete it, and its job is done again") from None
        update = self.update(task)
        if not update.exists() or update.stat().st_size != size:
            raise DamagedFileError(f"{update} is damaged or missing; delete {self._pending}, and its job is done again")
        return Pending(task, report, str(digest), size)

    def update(self, task: str) -> Path:
        """The file with what is uploaded for a task."""
        return self.path / f"update.{_checked(task)}"

    def keep(self, task: str, trained: Trained, seconds: Mapping[str, float]) -> Pending:
        """Writes down what came of a job, before anybody hears of it."""
        with needing_room(self.path):
            if trained.kept is not None:
                digest = hashlib.sha256()
                _add_to(digest, trained.kept)
                codec.save_groups(self._memory(task), trained.kept, {_DIGEST: digest.hexdigest()})
            path = self.update(task)
            codec.save_groups(path, trained.update)
            with open(path, "rb") as file:
                body = hashlib.file_digest(file, "sha256").hexdigest()
            report = {**trained.report, "seconds": dict(seconds)}
            pending = Pending(task, report, body, path.stat().st_size)
            write_bytes(self._pending, seal_json(vars(pending)))
        return pending

    def delivered(self, task: str) -> None:
        """The server has the update; whether it uses it, it will say. May be called again after a kill."""
        if self._memory(task).exists():
            with needing_room(self.path):
                write_bytes(self._delivered, seal_json({"task": task}))
        for path in (self._pending, self.update(task)):
            path.unlink(missing_ok=True)

    def undecided(self) -> str | None:
        """The task whose update the server has and may use; None: there is none on which anything here depends."""
        try:
            found = unseal_json(self._delivered.read_bytes())
        except FileNotFoundError:
            return None
        if found is None:
            raise DamagedFileError(
                f"{self._delivered} is damaged; delete it, and this client goes on with what it kept before that job"
            )
        return _checked(str(found["task"]))

    def decided(self, task: str, used: bool) -> None:
        """What was kept with an update counts from now on, if it was used. May be called again after a kill."""
        if used:
            with needing_room(self.path), suppress(FileNotFoundError):  # it is current already
                os.replace(self._memory(task), self._current)
                sync_folder(self.path)
        self.dropped(task)

    def dropped(self, task: str) -> None:
        """The update counts for nothing: what was kept before goes on to be kept."""
        for path in (self._pending, self._delivered, self._memory(task), self.update(task)):
            path.unlink(missing_ok=True)

    def _memory(self, task: str) -> Path:
        return self.path / f"memory.{_checked(task)}"


def _checked(task: str) -> str:
    if not _TASK.fullmatch(task):
        raise BadInputError(f"The server calls a task {task!r:.80}, which is not the name of one")
    return task


def _add_to(digest: Any, groups: Groups) -> None:
    for name, t in flatten_groups(groups).items():
        digest.update(f"{name} {t.dtype} {list(t.shape)} ".encode())
        if t.numel():
            digest.update(codec.bytes_of(t))


def _locked(path: Path) -> Any:
    """Keeps a second client out of the folder, where the system has such locks, as long as the file is open.

    The lock of a client that was killed is free a moment later if some process was just being started there: until it
    is another program, it holds the file, too.
    """
    file = open(path, "w")  # noqa: SIM115
    try:
        import fcntl
    except ImportError:  # not on this system
        return file
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() < end:
                time.sleep(0.02)
                continue
            file.close()
            raise BadInputError(
                f"{path.parent} is in use by another client; stop that one, or choose another --state"
            ) from None
