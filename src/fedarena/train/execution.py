"""Many tasks on several cores, with the results in the order of the tasks."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def without_gradients(items: Iterator[T]) -> Iterator[T]:
    """The items, computed without keeping anything for gradients; whoever uses them is left alone."""
    while True:
        with torch.no_grad():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def one_ahead(function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
    """Results of `function` in the order of the tasks; another thread computes the next one while one is used."""
    if len(tasks) < 2:
        yield from map(function, tasks)
        return
    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(function, tasks[0])
        for task in tasks[1:]:
            result, ahead = ahead.result(), pool.submit(function, task)
            yield result
        yield ahead.result()


def in_order(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """Results of `function` in the order of the tasks, computed by several threads that stay a little ahead."""
    return Workers(workers).in_order(function, tasks)


class Workers:
    """Threads that stay for the next tasks: it takes a while until a new one is as fast as those before it."""

    def __init__(self, number: int):
        self.number = number
        self._pool: ThreadPoolExecutor | None = None

    def in_order(
        self, function: Callable[[T], R], tasks: Sequence[T], meanwhile: Callable[[], None] | None = None
    ) -> Iterator[R]:
        """Results of `function` in the order of the tasks, computed by threads that stay a little ahead.

        If there are such threads, one of them does other work `meanwhile`: beside a single task, or when no task is
        left to begin. It is done before the last result is given.
        """
        if self.number == 1 or (len(tasks) == 1 and meanwhile is None):
            yield from map(function, tasks)
            return
        pool = self._pool = self._pool or ThreadPoolExecutor(self.number)
        if len(tasks) == 1 and meanwhile is not None:
            other = pool.submit(meanwhile)
            try:
                result = function(tasks[0])  # by this thread, since others have to wake up first
                other.result()
            finally:
                wait([other])
            yield result
            return
        # The other work is one more task, the last to begin.
        of_tasks: Iterator[Callable[[], Any]] = (partial(function, task) for task in tasks)
        remaining = itertools.chain(of_tasks, [meanwhile] if meanwhile else [])
        ahead: deque[Future[Any]] = deque()
        try:
            ahead.extend(pool.submit(work) for work in itertools.islice(remaining, 2 * self.number + 2))
            for number in range(len(tasks)):
                result = ahead.popleft().result()
                ahead.extend(pool.submit(work) for work in itertools.islice(remaining, 1))
                if number == len(tasks) - 1 and ahead:
                    ahead.popleft().result()
                yield result
        finally:
            for future in ahead:
                future.cancel()
            wait(ahead)  # nobody is at work on something that was given up


class Turn:
    """Whose turn it is, of threads with many small operations.

    Python runs in one thread at a time, and every operation of torch lets another one in. Two threads with hundreds of
    small operations would hand Python to and fro, which takes longer than the operations. So each keeps its turn until
    it comes to large ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @property
    def _is_mine(self) -> bool:
        return getattr(self._of_thread, "has_it", False)

    def _take(self) -> None:
        self._lock.acquire()
        self._of_thread.has_it = True

    def _give_up(self) -> None:
        self._of_thread.has_it = False
        self._lock.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for the turn, unless this thread has it, and keeps it."""
        if self._is_mine:
            yield
            return
        self._take()
        try:
            yield
        finally:
            self._give_up()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Lets others have the turn, if this thread has it, for a while, in which a large operation goes on."""
        if not self._is_mine:
            yield
            return
        self._give_up()
        try:
            yield
        finally:
            self._take()


SMALL_OPERATIONS = Turn()
