"""A host: on a machine of a cluster, it starts a process, and passes on lines and files."""

from __future__ import annotations

import getpass
import hashlib
import os
import queue
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedarena.core.folders import NewFolder
from fedarena.core.installation import here
from fedarena.core.signs import sees
from fedarena.runs.workers import start_worker

_MOST_LINES = 1000  # of an answer


class Host:
    """Starts one process at a time, and lends it a folder of its own where it does not see that of the driver."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None: there are no more
        self._lent: NewFolder | None = None

    def about(self, offer: dict[str, str]) -> dict[str, Any]:
        """Where this is, what is installed here, and whether it sees the driver's folder."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return {**here(), "cores": cores, "sees": sees(offer)}

    def start(self, module: str, order: dict[str, Any]) -> None:
        """Starts a process."""
        # Ray says here how many threads there are, and libraries would believe it.
        environment = {} if order["threads"] is None else {"OMP_NUM_THREADS": order["threads"]}
        if not environment:
            os.environ.pop("OMP_NUM_THREADS", None)
        folder = order["folder"] if os.path.isdir(order["folder"]) else None  # files are named from there
        place = order["command"], order["path"], folder
        self._process = start_worker(module, order["cores"], *place, **environment)
        self._lines = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()

    def tell(self, line: str) -> None:
        """Passes a line on."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is seen by what it tells
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def end_tasks(self) -> None:
        """There is nothing more to do for the process."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def listen(self, seconds: float) -> dict[str, Any]:
        """Lines that the process has written; if there are none, those of the next seconds; its code if it is over."""
        lines: list[str] = []
        code = None
        until = time.monotonic() + seconds
        while len(lines) < _MOST_LINES:
            try:
                line = self._lines.get(timeout=0 if lines else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if line is None:
                assert self._process is not None
                code = self._process.wait()
                break
            lines.append(line)
        return {"lines": lines, "code": code}

    def stop(self) -> None:
        """Has the process end after it has written what is done."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    # ---- a folder for those that do not see the driver's

    def lend_folder(self) -> str:
        """An empty folder on this machine; those of hosts that were killed are removed at the same time."""
        place = Path(tempfile.gettempdir()) / f"fedarena-runs-{getpass.getuser()}"
        place.mkdir(mode=0o700, exist_ok=True)
        if place.stat().st_uid != os.getuid():
            raise PermissionError(f"{place} belongs to somebody else")
        self._lent = NewFolder(place / "runs")
        return str(self._lent.temporary)

    def take_back_folder(self) -> None:
        """Removes it."""
        if self._lent is not None:
            self._lent.discard()
            self._lent = None

    def list_files(self, folder: str) -> dict[str, tuple[int, str]]:
        """All files of a folder by their path in it: how many bytes, and their fingerprint."""
        found = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "blake2b").hexdigest()
                found[path.relative_to(folder).as_posix()] = path.stat().st_size, digest
        return found

    def read_piece(self, path: str, start: int, length: int) -> bytes:
        """A piece of a file."""
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def append_piece(self, path: str, piece: bytes) -> None:
        """Adds a piece to a file, which is made if it is not there."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(piece)


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
