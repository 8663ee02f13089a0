"""Threads that do many tasks, and whose turn it is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedarena.train.execution import Turn, Workers, in_order


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    def slow_if_even(task: int) -> int:
        time.sleep(0.002 * (task % 2 == 0))
        return task

    assert list(in_order(slow_if_even, range(20), workers)) == list(range(20))
    assert list(in_order(slow_if_even, [], workers)) == []


def test_threads_stay_for_the_next_tasks() -> None:
    workers, together = Workers(2), threading.Barrier(2)

    def who(_: int) -> int:
        together.wait(10)
        return threading.get_ident()

    first, second = (set(workers.in_order(who, range(4))) for _ in range(2))
    assert first == second
    assert len(first) == 2
    assert threading.get_ident() not in first


@pytest.mark.parametrize("ends", ["by an error", "since nobody wants more"])
def test_nobody_is_at_work_when_it_is_over(ends: str) -> None:
    at_work, begun = [], []

    def work(task: int) -> int:
        begun.append(task)
        at_work.append(task)
        time.sleep(0.01)
        at_work.remove(task)
        if task == 1 and ends == "by an error":
            raise ValueError("task 1")
        return task

    workers = Workers(2)
    results = workers.in_order(work, range(100))
    assert next(results) == 0
    if ends == "by an error":
        with pytest.raises(ValueError, match="task 1"):
            next(results)
    else:
        results.close()
    assert not at_work
    assert len(begun) < 20
    assert list(workers.in_order(lambda task: -task, range(3))) == [0, -1, -2]


def test_one_thread_at_a_time_has_its_turn() -> None:
    turn, inside, most = Turn(), [], []

    def work(task: int) -> None:
        with turn.taken():
            for _ in range(3):
                inside.append(task)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.remove(task)
                with turn.given_up():
                    time.sleep(0.0005)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
    assert max(most) == 1


def test_a_turn_that_was_given_up_is_for_others() -> None:
    turn, other = Turn(), threading.Event()

    def take() -> None:
        with turn.taken():
            other.set()

    thread = threading.Thread(target=take)
    with turn.taken():
        thread.start()
        assert not other.wait(0.02)
        with turn.given_up():
            assert other.wait(10)
    thread.join()
