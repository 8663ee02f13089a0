"""How much memory a process and everything that it starts take at their peak."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROCESSES = Path("/proc")
LOOKS_APART_SECONDS = 0.25


def run_watched(command: list[str], **options: Any) -> tuple[subprocess.CompletedProcess[str], int | None]:
    """What `subprocess.run` gives, and the peak in bytes; None where the system does not tell.

    Memory that several processes share counts once. Looking takes time, so what is watched so is not to be timed.
    """
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    seen: list[int] = []
    ended = threading.Event()
    watching = threading.Thread(target=_look, args=(process.pid, seen, ended), daemon=True)
    watching.start()
    try:
        output, errors = process.communicate()
    finally:
        ended.set()
        watching.join()
    return subprocess.CompletedProcess(command, process.returncode, output, errors), max(seen, default=None)


def _look(process: int, seen: list[int], ended: threading.Event) -> None:
    if not (PROCESSES / "self" / "smaps_rollup").exists():
        return
    while not ended.wait(LOOKS_APART_SECONDS):
        seen.append(sum(_bytes(member) for member in _family(process)))


def _family(first: int) -> Iterator[int]:
    """A process, those that it has started, those that they have, and so on."""
    children: dict[int, list[int]] = {}
    for path in PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            after_name = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            children.setdefault(int(after_name.split()[1]), []).append(int(path.parent.name))
    waiting = [first]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process, [])


def _bytes(process: int) -> int:
    """What a process has in memory, with its share of what others have, too."""
    try:
        lines = (PROCESSES / str(process) / "smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
