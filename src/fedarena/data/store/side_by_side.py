"""Small pieces of work on all cores of the machine, by threads that the whole process shares."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for

from fedarena.core.errors import BadInputError
from fedarena.core.outside_text import quoted

THREADS_VARIABLE = "FEDARENA_DECODING_THREADS"
# A part of a picture's decoding is Python's, one thread at a time: on 16 cores, 4 threads decode 1.3 to 1.8 times as
# many pictures of 256 pixels per second as 16 do, and leave more of the interpreter to who trains.
_MOST_THREADS = 4

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def decoding_threads() -> int:
    """How many threads decode: ``$FEDARENA_DECODING_THREADS``, or one for every core this process may use, up to 4."""
    given = os.environ.get(THREADS_VARIABLE)
    if not given:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(cores, _MOST_THREADS)
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise BadInputError(f"{THREADS_VARIABLE} must be a whole number from 1, not {quoted(given)}.")
    return int(given)


def for_each(work: Callable[[int], None], count: int, threads: int | None = None) -> None:
    """Calls `work` with the numbers from 0 to `count` - 1, by several threads, one of which is the caller's.

    Because the caller works as well, threads that are busy with somebody else's work never keep it waiting. If some
    calls raise, the error is that of the smallest number, however many threads there are.
    """
    numbers = itertools.count()  # handing out the next one is a single step of the interpreter
    failures: dict[int, BaseException] = {}

    def take_part() -> None:
        while not failures and (number := next(numbers)) < count:
            try:
                work(number)
            except BaseException as error:
                failures[number] = error

    helpers: list[Future[None]] = []
    helping = min(threads or decoding_threads(), count) - 1
    if helping > 0:
        pool = _shared_pool()
        helpers = [pool.submit(take_part) for _ in range(helping)]
    try:
        take_part()
        wait_for([helper for helper in helpers if not helper.cancel()])
    except BaseException as interruption:
        failures.setdefault(count, interruption)  # so that nobody goes on
        raise
    if failures:
        raise failures[min(failures)]


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(decoding_threads() - 1, 1), thread_name_prefix="decoding")
        return _pool


def _forget_threads() -> None:
    """A forked process has none of the threads of the one it comes from."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
