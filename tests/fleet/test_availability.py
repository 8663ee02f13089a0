"""Availability against brute force, and laws that hold for all times."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from brute_force import TICKS, PlainPhone
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError
from fedarena.fleet import Availability

FAR_PERIODS = 100_000_000


def availability_of(phones: list[PlainPhone], cuts: random.Random | None = None) -> Availability:
    """The phones' intervals in random order, some of them cut in two that touch."""
    cuts = cuts or random.Random(0)
    intervals: list[tuple[int, int, int]] = []
    for row, phone in enumerate(phones):
        for start, end in phone.runs:
            middle = cuts.randint(start, end)
            intervals += [(row, *piece) for piece in ((start, middle), (middle, end)) if piece[0] < piece[1]]
    cuts.shuffle(intervals)
    rows, starts, ends = (np.array([interval[i] for interval in intervals], dtype=np.int64) for i in range(3))
    return Availability.from_intervals(rows, starts, ends, [phone.period for phone in phones])


plain_phones = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.integers(1, 12).map(lambda period: [True] * period),
    st.integers(1, 12).map(lambda period: [False] * period),
    st.integers(3, 12).map(lambda period: [True, *[False] * (period - 2), True]),
).map(PlainPhone)
fleets = st.lists(plain_phones, min_size=1, max_size=5)
quarters = st.one_of(st.integers(0, 5 * TICKS), st.integers(0, 50 * TICKS)).map(lambda ticks: ticks / TICKS)
any_time = st.floats(0, 1e10)


@st.composite
def questions(draw: Any, *values: Any) -> tuple[list[PlainPhone], Availability, list[tuple[Any, ...]]]:
    """A few phones, and questions about them: row and times."""
    phones = draw(fleets)
    asked = draw(st.lists(st.tuples(st.integers(0, len(phones) - 1), *values), min_size=1, max_size=20))
    return phones, availability_of(phones, draw(st.randoms(use_true_random=False))), asked


def columns(asked: list[tuple[Any, ...]]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*asked, strict=True)]


@settings(deadline=None)
@given(questions(quarters))
def test_is_available(case: Any) -> None:
    phones, availability, asked = case
    expected = [phones[row].is_available(time) for row, time in asked]
    assert availability.is_available(*columns(asked)).tolist() == expected


@settings(deadline=None)
@given(questions(quarters))
def test_next_available(case: Any) -> None:
    phones, availability, asked = case
    expected = [
        time if phones[row].is_available(time) else float(np.ceil(phones[row].next_available(math.floor(time) + 1)))
        for row, time in asked
    ]
    assert availability.next_available(*columns(asked)).tolist() == expected


@settings(deadline=None)
@given(questions(quarters))
def test_leaves_at(case: Any) -> None:
    phones, availability, asked = case
    expected = [phones[row].leaves_at(time) for row, time in asked]
    assert availability.leaves_at(*columns(asked)).tolist() == expected


@settings(deadline=None)
@given(questions(quarters, quarters))
def test_available_seconds(case: Any) -> None:
    phones, availability, asked = case
    rows, times, lengths = columns(asked)
    expected = [phones[row].available_seconds(begin, begin + length) for row, begin, length in asked]
    assert availability.available_seconds(rows, times, times + lengths).tolist() == expected


@pytest.mark.parametrize("leaving", ["abort", "pause"])
@settings(deadline=None)
@given(questions(quarters, quarters))
def test_finish_time(leaving: Any, case: Any) -> None:
    phones, availability, asked = case
    expected = [getattr(phones[row], leaving)(time, work) for row, time, work in asked]
    assert availability.finish_time(*columns(asked), leaving).tolist() == expected


@settings(deadline=None)
@given(questions(quarters, quarters), st.integers(0, FAR_PERIODS))
def test_every_period_is_like_the_first(case: Any, periods: int) -> None:
    _, availability, asked = case
    rows, times, work = columns(asked)
    later = periods * availability.periods[rows]
    for question in (availability.next_available, availability.leaves_at):
        np.testing.assert_array_equal(question(rows, times + later), question(rows, times) + later)
    np.testing.assert_array_equal(
        availability.is_available(rows, times + later), availability.is_available(rows, times)
    )
    for leaving in ("abort", "pause"):
        now, then = (availability.finish_time(rows, begin, work, leaving) for begin in (times, times + later))
        np.testing.assert_array_equal(then, now + later)
    np.testing.assert_array_equal(
        availability.available_seconds(rows, times, times + later + work),
        availability.available_seconds(rows, times, times + work) + periods * share_seconds(availability, rows),
    )


def share_seconds(availability: Availability, rows: np.ndarray) -> np.ndarray:
    return np.rint(availability.share() * availability.periods)[rows]


@settings(deadline=None)
@given(fleets)
def test_share(phones: list[PlainPhone]) -> None:
    expected = [sum(phone.seconds) / phone.period for phone in phones]
    assert availability_of(phones).share().tolist() == expected


LATE = (0, 1.0, 2.0**30 + 0.75, 2.0**-23)  # so late that the first moment is less than times can tell apart


@settings(deadline=None)
@given(questions(any_time, any_time, any_time))
@example(([PlainPhone([True])], availability_of([PlainPhone([True])]), [LATE]))
def test_available_seconds_add_up(case: Any) -> None:
    _, availability, asked = case
    rows, *times = columns(asked)
    first, middle, last = np.sort(times, axis=0)
    whole = availability.available_seconds(rows, first, last)
    parts = availability.available_seconds(rows, first, middle) + availability.available_seconds(rows, middle, last)
    np.testing.assert_allclose(parts, whole, rtol=1e-15, atol=1e-9)
    assert (whole >= 0).all()
    assert (whole <= last - first + np.spacing(last)).all()


@settings(deadline=None)
@given(questions(any_time, st.floats(0, 1e6)))
def test_paused_work_takes_that_many_available_seconds(case: Any) -> None:
    _, availability, asked = case
    rows, times, work = columns(asked)
    finished = availability.finish_time(rows, times, work, "pause")
    possible = np.isfinite(finished)
    assert (possible == ((availability.share()[rows] > 0) | (work == 0))).all()
    assert (finished >= times + work).all()
    rows, times, work, finished = rows[possible], times[possible], work[possible], finished[possible]
    precision = 4 * np.spacing(finished)
    spent = availability.available_seconds(rows, times, finished)
    assert (np.abs(spent - work) <= precision).all()
    # It ends at work: not while the phone is away. (That it ends at the first such moment is tested above.)
    at_work = availability.is_available(rows, np.maximum(finished - precision, 0.0))
    assert (at_work | availability.is_available(rows, finished) | (work == 0)).all()


@settings(deadline=None)
@given(questions(any_time, st.floats(0, 1e4), st.floats(0, 1e4)))
def test_work_can_be_done_in_parts(case: Any) -> None:
    _, availability, asked = case
    rows, times, first, second = columns(asked)
    for leaving in ("abort", "pause"):
        halfway = availability.finish_time(rows, times, first, leaving)
        in_parts = availability.finish_time(rows, halfway, second, leaving)
        at_once = availability.finish_time(rows, times, first + second, leaving)
        # Both are right when rounding decides whether work just fits into an interval or needs the next one.
        for finished in (in_parts, at_once):
            spent = availability.available_seconds(rows, times, finished)
            done = np.isfinite(finished)
            np.testing.assert_allclose(spent[done], (first + second)[done], rtol=1e-12, atol=1e-4)
        if leaving == "pause":
            assert (np.isfinite(in_parts) == np.isfinite(at_once)).all()


def test_uninterrupted_work_is_the_same_in_both_ways() -> None:
    """To the last bit, so that rounding does not distinguish phones that stay."""
    phones = availability_of([PlainPhone([False, True, True, True, False, True]), PlainPhone([True])])
    random = np.random.default_rng(0)
    rows, times, work = random.integers(0, 2, 5000), random.uniform(0, 1e6, 5000), random.uniform(0, 3, 5000)
    aborted, paused = (phones.finish_time(rows, times, work, leaving) for leaving in ("abort", "pause"))
    done = np.isfinite(aborted)
    assert 1000 < done.sum() < 4000
    assert (aborted[done] == (times + work)[done]).all()
    assert (paused[done] == aborted[done]).all()
    assert (paused[~done] > (times + work)[~done]).all()


@settings(deadline=None)
@given(questions(quarters, quarters, quarters))
def test_work_in_parts_exactly(case: Any) -> None:
    _, availability, asked = case
    rows, times, first, second = columns(asked)
    for leaving in ("abort", "pause"):
        halfway = availability.finish_time(rows, times, first, leaving)
        in_parts = availability.finish_time(rows, halfway, second, leaving)
        np.testing.assert_array_equal(in_parts, availability.finish_time(rows, times, first + second, leaving))


@settings(deadline=None)
@given(questions(any_time, st.floats(0, 1e6)), st.randoms(use_true_random=False))
def test_the_order_of_questions_does_not_matter(case: Any, order: random.Random) -> None:
    _, availability, asked = case
    shuffled = order.sample(range(len(asked)), len(asked))
    rows, times, work = columns(asked)
    answers = {
        "is_available": (times,),
        "next_available": (times,),
        "leaves_at": (times,),
        "available_seconds": (times, times + work),
        "finish_time": (times, work),
    }
    for name, arguments in answers.items():
        more = ("pause",) if name == "finish_time" else ()
        together = getattr(availability, name)(rows, *arguments, *more)
        alone = [
            getattr(availability, name)(int(rows[i]), *(float(values[i]) for values in arguments), *more).item()
            for i in shuffled
        ]
        assert together[shuffled].tolist() == alone


@settings(deadline=None)
@given(questions(any_time, any_time))
def test_answers_agree_with_each_other(case: Any) -> None:
    _, availability, asked = case
    rows, times, _ = columns(asked)
    available = availability.is_available(rows, times)
    coming, leaving = availability.next_available(rows, times), availability.leaves_at(rows, times)
    assert ((coming == times) == available).all()
    assert ((leaving > times) == available).all()
    assert (np.isfinite(coming) == (availability.share()[rows] > 0)).all()
    comes, leaves = np.isfinite(coming), np.isfinite(leaving)
    assert availability.is_available(rows[comes], coming[comes]).all()
    assert not availability.is_available(rows[leaves], leaving[leaves]).any()
    np.testing.assert_array_equal(availability.finish_time(rows, times, 0.0, "pause"), times)
    np.testing.assert_array_equal(availability.finish_time(rows, times, 0.0, "abort"), times)


@settings(deadline=None)
@given(questions(any_time), st.data())
def test_taken_phones_behave_as_before(case: Any, data: Any) -> None:
    _, availability, asked = case
    rows, times = columns(asked)
    if data.draw(st.booleans()):
        assert len(availability.before) == len(availability.starts)  # computed before or after: no difference
    taken = availability.take(rows)
    assert len(taken) == len(rows)
    here = np.arange(len(rows))
    np.testing.assert_array_equal(taken.next_available(here, times), availability.next_available(rows, times))
    np.testing.assert_array_equal(
        taken.finish_time(here, times, 7.25, "pause"), availability.finish_time(rows, times, 7.25, "pause")
    )


def test_touching_intervals_are_merged() -> None:
    availability = Availability.from_intervals([1, 0, 1, 1], [5, 0, 0, 8], [8, 3, 5, 9], [10, 10, 10])
    assert availability.offsets.tolist() == [0, 1, 2, 2]
    assert availability.starts.tolist() == [0, 0]
    assert availability.ends.tolist() == [3, 9]
    assert (availability.starts.dtype, availability.ends.dtype) == (np.int32, np.int32)
    assert (availability.offsets.dtype, availability.periods.dtype) == (np.int64, np.int64)


def test_the_night_is_one_interval() -> None:
    phones = Availability.from_intervals([0, 0], [0, 79_200], [21_600, 86_400], [86_400])
    assert phones.leaves_at(0, 80_000).item() == 86_400 + 21_600
    assert phones.leaves_at(0, 86_400 * 10 - 0.5).item() == 86_400 * 10 + 21_600
    assert phones.finish_time(0, 80_000, 20_000, "abort").item() == 100_000
    assert phones.finish_time(0, 80_000, 28_000, "abort").item() == 108_000
    assert phones.finish_time(0, 80_000, 28_000.25, "abort").item() == math.inf
    assert phones.finish_time(0, 80_000, 28_000, "pause").item() == 108_000
    assert phones.finish_time(0, 80_000, 28_000.25, "pause").item() == 86_400 + 79_200.25


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(-30, 30))
def test_wrapped_intervals(seconds: list[bool], shift: int) -> None:
    """Intervals may lie anywhere in time; they are those of the phone turned by `shift`."""
    phone = PlainPhone(seconds)
    starts, ends = ([run[side] + shift for run in phone.runs] for side in (0, 1))
    turned = PlainPhone([seconds[(second - shift) % phone.period] for second in range(phone.period)])
    made = Availability.from_intervals([0] * len(starts), starts, ends, [phone.period], wrap=True)
    assert list(zip(made.starts.tolist(), made.ends.tolist(), strict=True)) == turned.runs


def test_always_and_never() -> None:
    always, never = Availability.always(3), Availability.never(3)
    times = np.array([0.0, 0.5, 1e12])
    rows = np.arange(3)
    assert (len(always), len(never)) == (3, 3)
    assert always.is_available(rows, times).all()
    assert not never.is_available(rows, times).any()
    assert np.isinf(always.leaves_at(rows, times)).all()
    assert np.isinf(never.next_available(rows, times)).all()
    assert always.finish_time(rows, times, 3.5, "abort").tolist() == (times + 3.5).tolist()
    assert always.finish_time(rows, times, 3.5, "pause").tolist() == (times + 3.5).tolist()
    assert np.isinf(never.finish_time(rows, times, 3.5, "pause")).all()
    assert always.available_seconds(rows, times, times + 1e6).tolist() == [1e6] * 3
    assert never.available_seconds(rows, times, times + 1e6).tolist() == [0] * 3
    assert (always.share().tolist(), never.share().tolist()) == ([1] * 3, [0] * 3)


def test_infinity_is_a_time() -> None:
    phones = Availability.from_intervals([0], [0], [10], [20, 20])
    assert not phones.is_available([0, 1], np.inf).any()
    assert phones.next_available([0, 1], np.inf).tolist() == [np.inf] * 2
    assert phones.leaves_at([0, 1], np.inf).tolist() == [np.inf] * 2
    assert phones.available_seconds([0, 1], 5.0, np.inf).tolist() == [np.inf, 0]
    assert phones.available_seconds([0, 1], np.inf, np.inf).tolist() == [0, 0]
    for leaving in ("abort", "pause"):
        assert phones.finish_time([0, 1], np.inf, [1.0, 0.0], leaving).tolist() == [np.inf] * 2
        assert phones.finish_time([0, 1], 0.0, np.inf, leaving).tolist() == [np.inf] * 2
        assert Availability.always(1).finish_time(0, 0.0, np.inf, leaving).item() == np.inf


def test_tiny_work_waits_for_the_phone() -> None:
    phone = Availability.from_intervals([0, 0], [0, 50], [10, 60], [100])
    assert phone.finish_time(0, 20.0, 1e-300, "pause").item() == 50
    assert phone.finish_time(0, 1e9 + 70, 1e-300, "pause").item() == 1e9 + 100


def test_large_sums_over_all_phones() -> None:
    """All phones together are available for more seconds than 32 bits can count."""
    period = 2**31 - 1
    rows = np.repeat(np.arange(5), 2)
    starts, ends = np.tile([0, 2**30], 5), np.tile([2**29, period], 5)
    phones = Availability.from_intervals(rows, starts, ends, [period] * 5)
    assert phones.before.tolist() == [0, 2**29] * 5
    total = 2**29 + period - 2**30
    assert phones.available_seconds(np.arange(5), 0, 3 * period).tolist() == [3 * total] * 5


def test_answers_have_the_shape_of_the_question() -> None:
    phones = Availability.always(4)
    assert phones.is_available(np.arange(4)[:, None], np.arange(3.0)[None]).shape == (4, 3)
    assert phones.finish_time(2, 1.0, np.ones((2, 5)), "pause").shape == (2, 5)
    assert phones.next_available(np.empty(0, dtype=np.int64), 3.0).shape == (0,)
    assert phones.leaves_at([], []).shape == (0,)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_rows_of_any_type(dtype: Any) -> None:
    assert Availability.always(256 if dtype == np.uint8 else 128).is_available(np.array([127], dtype=dtype), 0.0).all()


@pytest.mark.parametrize("row", [-1, 3])
def test_rows_that_do_not_exist(row: int) -> None:
    with pytest.raises(IndexError, match="between 0 and 2"):
        Availability.always(3).is_available([0, row], 0.0)
    with pytest.raises(IndexError, match="between 0 and 2"):
        Availability.always(3).take([0, row])


def test_questions_that_make_no_sense() -> None:
    phones = Availability.always(1)
    with pytest.raises(ValueError, match="negative or NaN"):
        phones.is_available(0, -1.0)
    with pytest.raises(ValueError, match="negative or NaN"):
        phones.next_available(0, np.nan)
    with pytest.raises(ValueError, match="work must not be negative or NaN"):
        phones.finish_time(0, 0.0, -1.0, "pause")
    with pytest.raises(ValueError, match="before it begins"):
        phones.available_seconds(0, 2.0, 1.0)
    with pytest.raises(BadInputError, match="'abort' or 'pause' its work, not 'wait'"):
        phones.finish_time(0, 0.0, 1.0, "wait")  # type: ignore[arg-type]


GOOD: dict[str, Any] = {"rows": [0, 0, 1], "starts": [0, 20, 5], "ends": [10, 30, 6], "periods": [30, 40]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ends": [10, 20, 6]}, "An interval of phone 'ann' begins at 20 and ends at 20 seconds; it must end after"),
        ({"starts": [0, 20, 7]}, "An interval of phone 'bob' begins at 7 and ends at 6 seconds; it must end after"),
        ({"ends": [21, 30, 6]}, "The intervals 0 to 21 and 20 to 30 of phone 'ann' overlap; they must be apart."),
        ({"starts": [0, 0, 5]}, "The intervals 0 to 10 and 0 to 30 of phone 'ann' overlap"),
        ({"ends": [10, 31, 6]}, "The interval from 20 to 31 of phone 'ann' is outside of its period, which is from 0"),
        ({"starts": [-1, 20, 5]}, "The interval from -1 to 10 of phone 'ann' is outside of its period"),
        ({"ends": [10, 30, 2**40]}, "The interval from 5 to 1099511627776 of phone 'bob' is outside of its period"),
        ({"starts": [0, 20, 2**40]}, "An interval of phone 'bob' begins at 1099511627776 and ends at 6 seconds"),
        ({"periods": [30, 0]}, "The period of phone 'bob' is 0 seconds; it must be between 1 and 2147483647."),
        ({"periods": [-5, 40]}, "The period of phone 'ann' is -5 seconds"),
        ({"periods": [30, 2**31]}, "The period of phone 'bob' is 2147483648 seconds"),
        ({"rows": [0, 0, 2]}, "Interval 2 belongs to phone 2, but phones are numbered from 0 to 1."),
        ({"rows": [0, -1, 1]}, "Interval 1 belongs to phone -1"),
        ({"rows": [0, 1]}, "There are 2 rows, 3 starts and 3 ends; every interval needs all three."),
        ({"starts": [0.0, 20.5, 5.0]}, "Starts must be whole numbers, but number 1 is 20.5."),
        ({"ends": [10, float("nan"), 6]}, "Ends must be whole numbers, but number 1 is nan."),
        ({"periods": [30, float("inf")]}, "Periods must be whole numbers, but number 1 is inf."),
        ({"starts": ["0", "20", "5"]}, "Starts must be numbers"),
        ({"starts": [[0, 20, 5]]}, "Starts must be a list of numbers, not an array of 2 dimensions."),
        ({"names": ["ann"]}, "There are 1 names for 2 phones; every phone needs one."),
        (
            {"wrap": True, "ends": [31, 30, 6]},
            "The interval from 0 to 31 of phone 'ann' is longer than its period",
        ),
        ({"wrap": True, "ends": [10, 19, 6]}, "An interval of phone 'ann' begins at 20 and ends at 19 seconds"),
        ({"wrap": True, "ends": [10, 35, 6]}, "The intervals 0 to 10 and 0 to 5 of phone 'ann' overlap"),
    ],
)
def test_bad_intervals(change: dict[str, Any], sentence: str) -> None:
    Availability.from_intervals(**GOOD)
    with pytest.raises(BadInputError) as caught:
        Availability.from_intervals(**{**GOOD, "names": ["ann", "bob"], **change})
    assert str(caught.value).startswith(sentence)


def test_sentences_without_names_count_phones() -> None:
    with pytest.raises(BadInputError, match="The period of phone 1 is 0 seconds"):
        Availability.from_intervals(**{**GOOD, "periods": [30, 0]})
