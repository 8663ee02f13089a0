"""Who works on what, and what becomes of it when workers fail: the pool, with workers that do next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pretend_ray import Call, Fate, Fates, PretendRay, pretending

from fedarena.core.errors import BadInputError, RunFailedError
from fedarena.runs.cluster.pool import Hiring, Member, Pool, Task
from fedarena.runs.cluster.working import OwnCodeError, WorkerSaysError, work_off


class Doer:
    """Answers with what it was asked."""

    def is_here(self) -> bool:
        return True

    def prepare(self, order: Any) -> dict[str, Any]:
        return {"node": "a machine", "pid": 1}

    def train(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"seconds": 0.01, "place": message["place"], **message["more"]}


@dataclass
class Workshop:
    """A pool that is open, and what it told."""

    ray: PretendRay
    pool: Pool
    told: list[str]
    handed_out: list[int] = field(default_factory=list)  # places of tasks
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)  # of some tasks

    def results(self, sizes: Sequence[float]) -> Iterator[int]:
        def task(place: int, size: float) -> Task:
            def message(member: Member) -> dict[str, Any]:
                self.handed_out.append(place)
                return {"place": place, "more": self.answers.get(place, {})}

            return Task("train", message, size, lambda: f"Task {place}")

        tasks = [task(place, size) for place, size in enumerate(sizes)]
        return (answer["place"] for answer in work_off(self.pool, tasks))


@contextmanager
def workshop(
    fates: Fates | None = None,
    wanted: int | None = 2,
    seed: int = 0,
    room: int = 10,
    at_once: int = 1,
    check: Callable[[dict[str, Any]], str | None] = lambda answer: None,
) -> Iterator[Workshop]:
    """Workers that do next to nothing."""
    with pretending(PretendRay(fates, seed, room)) as ray:
        remote = ray.remote(Doer).options(max_concurrency=at_once)
        hiring = Hiring(
            start=remote.remote,
            retire=lambda worker: False,
            begun=lambda worker: worker.is_here.remote(),
            ask=lambda worker: worker.prepare.remote(None),
            check=check,
            room=lambda: ray.room,
            wanted=wanted,
            at_once=at_once,
        )
        told: list[str] = []
        pool = Pool(ray, hiring, told.append)
        pool.open(5.0)
        yield Workshop(ray, pool, told)
        pool.close()
        assert not ray.living()


def at(number: int, fate: Fate) -> Fates:
    """What becomes of a training call, counted from 0, of all workers together."""
    calls = iter(range(10**9))
    return lambda call: fate if call.method == "train" and next(calls) == number else None


@given(
    sizes=st.lists(st.integers(1, 100), max_size=30),
    seed=st.integers(0, 10**6),
    wanted=st.integers(1, 4),
    at_once=st.integers(1, 3),
    unlucky=st.dictionaries(
        st.integers(0, 40), st.sampled_from(["dies", "hangs", "slow", "lost", "late", "memory"]), max_size=2
    ),
)
def test_results_come_in_the_order_of_tasks_whoever_fails(
    sizes: list[int], seed: int, wanted: int, at_once: int, unlucky: dict[int, Fate]
) -> None:
    calls = iter(range(10**9))

    def fates(call: Call) -> Fate:
        return unlucky.get(next(calls)) if call.method == "train" else None

    with workshop(fates, wanted, seed, at_once=at_once) as shop:
        assert list(shop.results(sizes)) == list(range(len(sizes)))
        assert list(shop.results(sizes)) == list(range(len(sizes)))  # whoever is late with the first is no trouble
        assert shop.ray.clock.now < 1000 + 2 * 4000  # what hangs is noticed, even if nobody knows how long tasks take


def test_the_largest_is_begun_first_and_little_is_handed_out_in_advance() -> None:
    sizes = [3, 9, 1, 7, 5, 8, 2, 4]
    with workshop() as shop:
        results = shop.results(sizes)
        next(results)
        assert shop.handed_out[:4] == [1, 5, 3, 4]  # two to do, and one in advance each
        list(results)
        assert sorted(shop.handed_out) == list(range(len(sizes)))  # each once
        assert {call.worker.number for call in shop.ray.began if call.method == "train"} == {0, 1}  # both work


def test_results_that_wait_for_their_turn_are_not_more_and_more() -> None:
    """The first result, for which all others wait, is that of the smallest task; it comes late."""
    with workshop(lambda call: "slow" if call.method == "train" and call.message["place"] == 0 else None) as shop:
        next(shop.results([1.0, *[2.0] * 200]))
        assert len(shop.handed_out) < 40


@pytest.mark.parametrize("fate", ["dies", "memory"])
def test_what_somebody_had_who_is_gone_is_done_by_others(fate: Fate) -> None:
    with workshop(at(2, fate)) as shop:
        assert list(shop.results([1] * 9)) == list(range(9))
        assert shop.pool.lost == 1
        assert any("is gone; what it had is done again" in told for told in shop.told)
        assert len(shop.ray.living()) == 2  # somebody was hired instead


def test_nobody_who_has_not_answered_gets_work() -> None:
    with workshop(at(0, "dies"), room=2) as shop:
        shop.ray.room = 1  # a replacement finds no room
        assert list(shop.results([1] * 9)) == list(range(9))
        waiting = [worker for worker in shop.ray.living() if worker.itself is None]
        assert waiting
        assert all(call.method != "train" for worker in waiting for call in worker.calls)


def test_a_task_that_ends_three_workers_ends_the_run() -> None:
    def dies(call: Call) -> Fate:
        return "dies" if call.method == "train" and call.message["place"] == 4 else None

    with workshop(dies) as shop, pytest.raises(RunFailedError, match="Task 4 ended 3 workers") as error:
        list(shop.results([1] * 8))
    assert "engine.lanes" in str(error.value)
    assert shop.pool.lost == 3


def test_a_task_that_nobody_gets_done_ends_the_run() -> None:
    def hangs(call: Call) -> Fate:
        return "hangs" if call.method == "train" and call.message["place"] == 4 else None

    with (
        workshop(hangs) as shop,
        pytest.raises(RunFailedError, match="Task 4 has kept 3 workers busy"),
    ):
        list(shop.results([1] * 8))


def test_other_tasks_of_workers_that_end_are_not_suspected() -> None:
    """Of what a worker had in advance nothing can be said."""
    lost = iter([True, True, False, True, True] + [False] * 100)
    with workshop(lambda call: "dies" if call.method == "train" and next(lost) else None, wanted=1) as shop:
        assert list(shop.results([9, 8, 7, 6, 5])) == list(range(5))
        assert shop.pool.lost == 4


def test_an_exception_of_somebodys_own_is_raised_once_and_at_once() -> None:
    with workshop() as shop:
        shop.answers[0] = {"exception": ("Traceback: my_method.py", "ValueError: mine")}
        with pytest.raises(OwnCodeError, match=r"ValueError: mine \(on a machine\)") as error:
            list(shop.results([9, 1, 1, 1, 1, 1, 1, 1]))
        assert "my_method.py" in error.value.__notes__[0]
        assert shop.handed_out.count(0) == 1
        assert shop.pool.lost == 0


@pytest.mark.parametrize("kind", ["bad_input", "failed"])
def test_what_a_worker_says_is_told(kind: str) -> None:
    with workshop() as shop:
        shop.answers[1] = {kind: "a sentence"}
        with pytest.raises(WorkerSaysError, match="a sentence") as error:
            list(shop.results([1, 1, 1]))
        assert error.value.is_bad_input == (kind == "bad_input")


def test_a_full_disk_ends_the_run_with_a_sentence() -> None:
    with workshop(at(1, "disk")) as shop, pytest.raises(RunFailedError, match="The disk of a machine is full"):
        list(shop.results([1] * 4))


def test_who_hangs_is_given_up_after_a_while() -> None:
    with workshop(at(1, "hangs"), wanted=1) as shop:
        assert list(shop.results([1] * 4)) == list(range(4))
        assert any("has not answered for" in told for told in shop.told)
        assert 60 <= shop.ray.clock.now - 1000 < 90


def test_who_hangs_with_the_first_task_is_given_up_too() -> None:
    with workshop(at(0, "hangs"), wanted=1) as shop:
        assert list(shop.results([1] * 4)) == list(range(4))
        assert shop.ray.clock.now - 1000 < 4000


def test_the_last_task_is_repeated_by_somebody_idle_and_the_first_result_counts() -> None:
    with workshop(at(9, "slow")) as shop:
        assert list(shop.results([1] * 10)) == list(range(10))
        assert len(shop.handed_out) == 11  # one of them twice
        assert shop.ray.clock.now - 1000 < 20
        assert shop.pool.lost == 0
        assert list(shop.results([1] * 10)) == list(range(10))  # the answer of the slow one is nobody's


def test_who_hangs_with_what_another_one_has_done_gets_nothing_more_and_is_given_up() -> None:
    with workshop(at(9, "hangs")) as shop:
        assert list(shop.results([1] * 10)) == list(range(10))
        for _ in range(50):
            before = shop.ray.clock.now
            assert list(shop.results([1] * 4)) == list(range(4))
            assert shop.ray.clock.now - before < 1.0  # nobody waits for it
            shop.ray.clock.now += 2.0
        assert shop.pool.lost == 1
        assert len(shop.pool.members) == 2  # another one came


def test_without_workers_for_five_minutes_a_run_stops() -> None:
    with workshop(at(0, "dies"), wanted=1) as shop:
        shop.ray.room = 0
        with pytest.raises(RunFailedError, match=r"No worker has answered for 30\d seconds.*fedarena resume"):
            list(shop.results([1] * 4))


def test_workers_that_end_before_they_answer_are_not_hired_forever() -> None:
    with (
        pytest.raises(RunFailedError, match="3 workers ended before they had built the run"),
        workshop(lambda call: "dies" if call.method == "prepare" else None),
    ):
        pass


def test_machines_that_are_gone_before_a_worker_begins_do_not_count() -> None:
    gone = iter(range(5))

    def fate(call: Call) -> Fate:
        if call.method == "train" and next(gone, None) == 0:
            return "dies"  # the only one, so that nobody is left
        if call.method != "train" and call.worker.number and next(gone, None) is not None:
            call.worker.die(
                "The actor died unexpectedly before finishing this task.\nThe actor never ran - it was cancelled"
            )
            return "hangs"
        return None

    with workshop(fate, wanted=1) as shop:
        assert list(shop.results([1] * 4)) == list(range(4))
        assert next(gone, None) is None
        assert shop.pool.lost == 1


def test_machines_without_fedarena_are_named() -> None:
    said = "ray::Worker.__init__() (pid=4, ip=10.0.0.7, repr=…)\nModuleNotFoundError: No module named 'fedarena'"

    def cannot(call: Call) -> Fate:
        call.worker.die(said)
        return "hangs"

    sentence = r"could not import FedArena, the last one on 10\.0\.0\.7 .*install the same version"
    with pytest.raises(BadInputError, match=sentence), workshop(cannot):
        pass


def test_a_worker_that_never_builds_the_run_is_not_waited_for_forever() -> None:
    with (
        pytest.raises(RunFailedError, match="No worker has answered for 36"),
        workshop(lambda call: "hangs" if call.method == "prepare" else None, wanted=1),
    ):
        pass


def test_who_is_refused_at_the_beginning_ends_the_run_and_later_is_not_used() -> None:
    with pytest.raises(BadInputError, match="another torch"), workshop(check=lambda answer: "another torch"):
        pass
    reasons: list[str | None] = [None, None]
    with workshop(at(1, "dies"), check=lambda answer: reasons.pop() if reasons else "another torch") as shop:
        assert list(shop.results([1] * 9)) == list(range(9))
        shop.ray.clock.now += 10
        assert list(shop.results([1] * 9)) == list(range(9))
        assert shop.told.count("A worker is not used: another torch") <= 1
        assert len(shop.pool.members) == 1


def test_when_all_who_are_left_are_refused_the_run_stops() -> None:
    reasons: list[str | None] = [None]
    refusing = workshop(at(1, "dies"), 1, check=lambda answer: reasons.pop() if reasons else "another torch")
    with refusing as shop, pytest.raises(RunFailedError, match="another torch; then go on with fedarena resume"):
        list(shop.results([1] * 9))


def test_machines_that_come_get_workers() -> None:
    with workshop(wanted=None, room=2) as shop:
        assert len(shop.pool.members) == 2
        shop.ray.room = 4
        shop.ray.clock.now += 10
        list(shop.results([1] * 40))
        assert len(shop.pool.members) == 4


def test_who_is_left_alone_does_not_disturb_the_next_round() -> None:
    """A round that ends in the middle, as by Ctrl-C or an exception, leaves work behind that nobody waits for."""
    with workshop() as shop:
        results = shop.results([1] * 10)
        next(results)
        results.close()
        assert list(shop.results([1] * 10)) == list(range(10))
