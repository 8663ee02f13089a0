"""Pictures that were decoded already, as many as fit into a bounded part of the memory."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable

import numpy as np

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted
from fedarena.data.store.schema import AnyArray

LIMIT_VARIABLE = "FEDARENA_DECODED_MEGABYTES"
_DEFAULT_LIMIT_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 24
_DEFAULT_SHARE = 8  # of a small machine's memory, one in so many bytes


class DecodedCache:
    """Keeps the arrays that were asked for last, up to `limit_bytes` in all; any number of threads may use it.

    Arrays lie in large blocks of memory, whose places are used again: to ask the system for every picture's memory
    would take a third of the time of decoding it.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.hits = 0
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()
        self._free: dict[int, list[_Place]] = {}  # by the bytes that fit in
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    def read(self, key: Hashable, target: AnyArray) -> bool:
        """Copies the array that was put in under this name into `target`, if it is still there."""
        with self._lock:
            place = self._places.get(key)
            if place is None:
                return False
            self._places.move_to_end(key)
            self.hits += 1
            place.readers += 1
        target.reshape(-1).view(np.uint8)[:] = place.room
        with self._lock:
            place.readers -= 1
        return True

    def put(self, key: Hashable, values: AnyArray) -> None:
        """Keeps a copy of `values`, and lets go of what was not asked for the longest time."""
        with self._lock:
            place = None if key in self._places else self._place_for(values.nbytes)
        if place is None:
            return
        place.room[:] = values.reshape(-1).view(np.uint8)
        with self._lock:
            if key in self._places:  # somebody else was faster
                self._free.setdefault(values.nbytes, []).append(place)
            else:
                self._places[key] = place

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._places.clear()
        self._free.clear()
        self.reserved_bytes = 0

    def _place_for(self, size: int) -> _Place | None:
        """A place that nobody else has: a free one, one in a new block, or that of the array not asked for longest."""
        if size > self.limit_bytes:
            return None
        if not self._free.get(size) and not self._reserve(size):
            for key, place in self._places.items():
                if place.room.nbytes == size and not place.readers:
                    del self._places[key]
                    return place
            if any(place.room.nbytes == size for place in self._places.values()):
                return None  # all of them are being read
            self._forget()  # everything was taken by arrays of other sizes
            self._reserve(size)
        return self._free[size].pop()

    def _reserve(self, size: int) -> bool:
        """Makes a block of places if the limit allows for one."""
        count = min(max(_BLOCK_BYTES // size, 1), (self.limit_bytes - self.reserved_bytes) // size)
        if count:
            block = np.empty((count, size), dtype=np.uint8)
            self._free.setdefault(size, []).extend(map(_Place, block))
            self.reserved_bytes += block.nbytes
        return count > 0


class _Place:
    """Room for one array, and how many are reading it."""

    __slots__ = ("readers", "room")

    def __init__(self, room: AnyArray):
        self.room, self.readers = room, 0


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
