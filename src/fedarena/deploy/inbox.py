"""What devices upload, on disk: bodies as far as they came, and receipts. Nothing is acknowledged before it is durable.

A body is ``<task>``, its receipt ``<task>.json``. A task without a receipt is not decided: its body may be incomplete.
Receipts are sealed and have the digest of what was accepted, so that nothing that changed on disk is ever added up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from fedarena.core.errors import DamagedFileError
from fedarena.core.files import sync_folder, write_bytes
from fedarena.core.sealed_json import read_sealed_of, seal_json_of


class Inbox:
    """The bodies and receipts of one run."""

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def body(self, task: str) -> Path:
        """Where the body of an upload is."""
        return self._folder / task

    def size(self, task: str) -> int:
        """How many bytes of a body are there."""
        try:
            return os.stat(self.body(task)).st_size
        except FileNotFoundError:
            return 0

    def receipt(self, task: str) -> dict[str, Any] | None:
        """What was decided about a task; None: nothing yet."""
        return read_sealed_of(task, self._receipt(task), "accepted", "sha256")

    def accepted_body(self, task: str) -> Path:
        """Where an update is that was accepted, after a look whether it is still the same."""
        path, receipt = self.body(task), self.receipt(task)
        if receipt is None or not path.exists() or digest_of(path) != receipt["sha256"]:
            raise DamagedFileError(f"{path} is damaged: it is not the update that was accepted")
        return path

    def settle(self, task: str, receipt: dict[str, Any]) -> None:
        """Decides about a task, durably; what was accepted is on disk already. Others' bodies are thrown away."""
        write_bytes(self._receipt(task), seal_json_of(task, receipt))
        if not receipt.get("accepted"):
            self.body(task).unlink(missing_ok=True)

    def keep_only(self, tasks: Iterable[str]) -> None:
        """Removes everything about other tasks."""
        kept = set(tasks)
        for path in self._folder.iterdir():
            if path.name.removesuffix(".json") not in kept:
                path.unlink(missing_ok=True)

    def _receipt(self, task: str) -> Path:
        return self._folder / f"{task}.json"


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Receiving:
    """A body in the making: what comes is appended from an offset on."""

    def __init__(self, inbox: Inbox, task: str, offset: int, expected: int):
        self.task, self.expected, self.begins_at = task, expected, offset
        self._path = inbox.body(task)
        self._file: BinaryIO = open(self._path, "r+b" if self._path.exists() else "w+b")  # noqa: SIM115
        self._file.truncate(offset)
        self._file.seek(offset)
        self.bytes = offset

    def close(self) -> None:
        """Lets go of the file; may be called more than once."""
        self._file.close()

    def truncate(self) -> None:
        """Throws away what has come."""
        self._file.truncate(0)

    def write(self, chunk: bytes) -> bool:
        """Appends a chunk; False, and nothing is written, if that would be more than was announced."""
        if self.bytes + len(chunk) > self.expected:
            return False
        self._file.write(chunk)
        self.bytes += len(chunk)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all is there."""
        return self.bytes == self.expected

    def make_durable(self) -> None:
        """Has everything on disk, and its name as well."""
        self._file.flush()
        os.fsync(self._file.fileno())
        sync_folder(self._path.parent)
