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


@pytest.mark.parametrize("tasks", [1, 2, 3, 20])
def test_other_work_is_done_once_by_another_thread_before_the_last_result(tasks: int) -> None:
    done: list[int] = []
    began: list[int] = []

    def other_work() -> None:
        time.sleep(0.01)
        done.append(threading.get_ident())

    results = []
    for result in Workers(2).in_order(lambda task: began.append(task) or task, range(tasks), other_work):
        results.append(result)
        assert done or len(results) < tasks
    assert results == list(range(tasks))
    assert len(done) == 1
    assert done != [threading.get_ident()]


def test_other_work_goes_on_beside_a_single_task() -> None:
    both = threading.Barrier(2)
    assert list(Workers(2).in_order(lambda _: both.wait(10), [0], lambda: both.wait(10) and None)) in ([0], [1])


def test_other_work_begins_when_no_task_is_left_to_begin() -> None:
    begun: list[int | str] = []

    def work(task: int) -> None:
        begun.append(task)
        time.sleep(0.001)

    list(Workers(2).in_order(work, range(9), lambda: begun.append("other")))
    assert begun.index("other") >= 8


@pytest.mark.parametrize("tasks", [1, 4])
@pytest.mark.parametrize("failing", ["a task", "other work"])
def test_errors_are_raised_when_nobody_is_at_work_any_more(tasks: int, failing: str) -> None:
    at_work: list[str] = []

    def work(who: str) -> None:
        at_work.append(who)
        time.sleep(0.01)
        at_work.remove(who)
        if who == failing:
            raise ValueError(who)

    with pytest.raises(ValueError, match=failing):
        list(Workers(2).in_order(lambda _: work("a task"), range(tasks), lambda: work("other work")))
    assert not at_work


def test_one_thread_does_no_other_work() -> None:
    done: list[int] = []
    assert list(Workers(1).in_order(abs, [-1, -2], lambda: done.append(1))) == [1, 2]
    assert not done


def test_a_turn_is_taken_once_and_given_up_by_who_has_it() -> None:
    turn, others = Turn(), []

    def try_to_take() -> None:
        with turn.given_up(), turn.taken():
            others.append(1)

    with turn.taken():
        with turn.taken():
            pass  # which does not give it up at its end
        thread = threading.Thread(target=try_to_take)
        thread.start()
        thread.join(0.02)
        assert not others
    thread.join(10)
    assert others


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
