"""How much memory a piece of work takes: the process's peak while it goes on, above what it held before."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

from fedarena.profiling.system_files import read_text

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"


class MemoryWatch:
    """Watches the memory of this process from now on."""

    def __init__(self, process: Path = _PROCESS):
        self._process = process
        give_back_unused()
        try:  # so that an earlier, larger piece of work does not count
            (process / "clear_refs").write_text(_RESET_PEAK)
            self._earlier_peak: int | None = None
        except OSError:
            self._earlier_peak = self._peak()
        held = _status_bytes(process, "VmRSS")
        self._held = self._earlier_peak if held is None else held

    def growth_bytes(self) -> int | None:
        """How far memory grew above what was held at the beginning; None where the system does not tell.

        Where peaks cannot be reset and this one was not above an earlier one, nothing is known either.
        """
        peak = self._peak()
        if peak is None or self._held is None or (self._earlier_peak is not None and peak <= self._earlier_peak):
            return None
        return max(0, peak - self._held)

    def _peak(self) -> int | None:
        peak = _status_bytes(self._process, "VmHWM")
        if peak is None and resource is not None:
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return peak


def give_back_unused() -> None:
    """Returns what was freed but is still held, which would be used again without a trace."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(process: Path, key: str) -> int | None:
    for line in (read_text(process / "status") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == key and words and words[0].isdecimal():
            return int(words[0]) * 1024
    return None


def total_memory_bytes() -> int | None:
    """The memory of the machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
