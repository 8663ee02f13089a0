"""Pictures that were decoded already, as many as fit into a bounded part of the memory."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import AnyArray

LIMIT_VARIABLE = "FEDARENA_DECODED_MEGABYTES"
_DEFAULT_LIMIT_BYTES = 1 << 30
_DEFAULT_SHARE = 8  # of a small machine's memory, one in so many bytes


class DecodedCache:
    """Keeps the arrays that were asked for last, up to `limit_bytes` in all; any number of threads may use it."""

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.hits = 0
        self._arrays: OrderedDict[Hashable, AnyArray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._arrays)

    def get(self, key: Hashable) -> AnyArray | None:
        """The array that was put in under this name, if it is still there; it is not to be changed."""
        with self._lock:
            found = self._arrays.get(key)
            if found is not None:
                self._arrays.move_to_end(key)
                self.hits += 1
            return found

    def put(self, key: Hashable, values: AnyArray) -> None:
        """Keeps a copy of `values`, and lets go of what was not asked for the longest time."""
        if values.nbytes > self.limit_bytes:
            return
        copy = values.copy()
        with self._lock:
            if key in self._arrays:
                return
            self._arrays[key] = copy
            self.used_bytes += copy.nbytes
            while self.used_bytes > self.limit_bytes:
                self.used_bytes -= self._arrays.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._arrays.clear()
            self.used_bytes = 0


def limit_from_environment() -> int:
    """How many bytes may be kept: ``$FEDARENA_DECODED_MEGABYTES``, or 1 GiB but at most an eighth of the memory."""
    given = os.environ.get(LIMIT_VARIABLE)
    if not given:
        try:
            memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return _DEFAULT_LIMIT_BYTES
        return min(_DEFAULT_LIMIT_BYTES, memory_bytes // _DEFAULT_SHARE)
    if not given.isascii() or not given.isdigit():
        raise BadInputError(
            f"{LIMIT_VARIABLE} must be a whole number of megabytes from 0 (keep nothing), not {quoted(given)}."
        )
    return int(given) * 1_000_000


_cache: DecodedCache | None = None
_lock = threading.Lock()


def decoded_cache() -> DecodedCache:
    """What the whole process shares."""
    global _cache
    with _lock:
        if _cache is None:
            _cache = DecodedCache(limit_from_environment())
        return _cache
