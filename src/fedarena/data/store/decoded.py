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
        self.hits = 0
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()  # those that were read last come last
        self._shelves: dict[int, _Shelf] = {}  # by the bytes of an array
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places)

    @property
    def reserved_bytes(self) -> int:
        """What all blocks take."""
        return sum(shelf.reserved_bytes for shelf in self._shelves.values())

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
            if self._shelves.get(values.nbytes) is not place.shelf:
                return  # which was given up meanwhile
            if key in self._places:  # somebody else was faster
                place.shelf.free.append(place)
            else:
                self._places[key] = place

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._places.clear()
            self._shelves.clear()

    def _place_for(self, size: int) -> _Place | None:
        """A place that nobody else has; None if there is none, since all are just being read or filled."""
        if size > self.limit_bytes:
            return None
        while not self._has_free(size):
            oldest = next(iter(self._places.values()), None)
            if oldest is None or oldest.shelf is self._shelves.get(size):
                return self._oldest_of(size)
            self._give_up(oldest.shelf)  # arrays of another size, of which at least one is older than all of this size
        return self._shelves[size].free.pop()

    def _has_free(self, size: int) -> bool:
        """Whether there is a free place, if need be in a new block."""
        shelf = self._shelves.get(size)
        if shelf is not None and shelf.free:
            return True
        count = min(max(_BLOCK_BYTES // size, 1), (self.limit_bytes - self.reserved_bytes) // size)
        if count == 0:
            return False
        shelf = self._shelves.setdefault(size, _Shelf())
        shelf.free.extend(_Place(room, shelf) for room in np.empty((count, size), dtype=np.uint8))
        shelf.reserved_bytes += count * size
        return True

    def _oldest_of(self, size: int) -> _Place | None:
        """The place of the array that was not asked for longest and is not being read, which is forgotten."""
        for key, place in self._places.items():
            if place.shelf is self._shelves.get(size) and not place.readers:
                del self._places[key]
                return place
        return None

    def _give_up(self, shelf: _Shelf) -> None:
        self._shelves = {size: one for size, one in self._shelves.items() if one is not shelf}
        for key in [key for key, place in self._places.items() if place.shelf is shelf]:
            del self._places[key]


class _Shelf:
    """Places for arrays of one size."""

    def __init__(self) -> None:
        self.free: list[_Place] = []
        self.reserved_bytes = 0


class _Place:
    """Room for one array, and how many are reading it."""

    __slots__ = ("readers", "room", "shelf")

    def __init__(self, room: AnyArray, shelf: _Shelf):
        self.room, self.shelf, self.readers = room, shelf, 0


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
