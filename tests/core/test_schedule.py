from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train import LocalTraining
from fedarena.train.batches import batch_indices, count_steps
from fedarena.train.schedule import batch_table, make_schedule

STEPS = st.lists(st.integers(0, 12), max_size=30).map(lambda values: np.array(values, dtype=np.int64))


@given(STEPS, st.integers(1, 8))
def test_every_client_has_its_lane_for_itself(steps: np.ndarray, lanes: int) -> None:
    schedule = make_schedule(steps, lanes)
    taken = np.zeros((schedule.length, schedule.lanes), dtype=int)
    for client, count in enumerate(steps):
        if count == 0:
            assert schedule.lane[client] == -1
        else:
            taken[schedule.start[client] : schedule.start[client] + count, schedule.lane[client]] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == steps.sum()
    # no gaps, and the lanes at work are a prefix
    assert (taken.sum(0) == schedule.lane_lengths).all()
    assert schedule.active_lanes().tolist() == taken.sum(1).tolist()
    assert all((np.diff(row) <= 0).all() for row in taken)


@given(STEPS.filter(lambda steps: steps.sum() > 0), st.integers(1, 8))
def test_it_is_about_as_short_as_possible(steps: np.ndarray, lanes: int) -> None:
    # longest-first list scheduling is within 4/3 of the optimum (Graham, 1969)
    least = max(steps.max(), -(-steps.sum() // lanes))
    assert make_schedule(steps, lanes).length <= 4 / 3 * least + 1


@given(
    samples=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    work=st.one_of(st.tuples(st.integers(1, 3), st.none()), st.tuples(st.none(), st.integers(1, 9))),
    batch_size=st.integers(1, 7),
    lanes=st.integers(1, 5),
    round=st.integers(1, 3),
)
def test_batches_are_those_of_one_client_at_a_time(samples, work, batch_size, lanes, round) -> None:
    local = LocalTraining(epochs=work[0], steps=work[1], batch_size=batch_size)
    sizes = np.array(samples)
    clients = np.arange(len(samples)) * 7 + 3
    steps = count_steps(sizes, local)
    schedule = make_schedule(steps, lanes)
    first_row = np.cumsum(sizes) - sizes
    rows, mask = batch_table(schedule, lanes, clients, sizes, first_row, local.batch_size, seed=5, round=round)
    assert mask.sum() == sum(
        len(b) for n, c in zip(samples, clients, strict=True) for b in batch_indices(n, local, 5, round, c)
    )
    for position, (count, client) in enumerate(zip(samples, clients, strict=True)):
        for step, expected in enumerate(batch_indices(count, local, 5, round, int(client))):
            where = schedule.start[position] + step, schedule.lane[position]
            assert rows[where][mask[where]].tolist() == (first_row[position] + expected).tolist()
