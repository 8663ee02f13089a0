"""Many tasks on several cores, with the results in the order of the tasks."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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


def in_order(
    function: Callable[[T], R], tasks: Sequence[T], workers: int, meanwhile: Callable[[], None] | None = None
) -> Iterator[R]:
    """Results of `function` in the order of the tasks, computed by several threads that stay a little ahead.

    If there are such threads, this one does other work `meanwhile`, once.
    """
    if workers == 1 or len(tasks) == 1:
        yield from map(function, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    try:
        remaining = iter(tasks)
        ahead = deque(pool.submit(function, task) for task in itertools.islice(remaining, 2 * workers + 2))
        if meanwhile is not None:
            meanwhile()
        while ahead:
            result = ahead.popleft().result()
            ahead.extend(pool.submit(function, task) for task in itertools.islice(remaining, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
