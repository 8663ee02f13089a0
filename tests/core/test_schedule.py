from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train.schedule import deal_out, make_schedule, place_steps

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
    # no lane is idle before the client that ends last begins (Graham, 1966)
    assert make_schedule(steps, lanes).length <= steps.sum() / lanes + (1 - 1 / lanes) * steps.max()


@given(STEPS, st.integers(1, 8), st.integers(0, 3))
def test_every_step_has_its_place(steps: np.ndarray, lanes: int, padding: int) -> None:
    schedule = make_schedule(steps, lanes)
    widths = schedule.active_lanes() + padding
    client, number, begins = place_steps(schedule, widths)
    assert np.diff(begins).tolist() == widths.tolist()
    assert begins[-1] == len(client) == len(number)
    taken = sorted((int(c), int(n)) for c, n in zip(client, number, strict=True) if c >= 0)
    assert taken == [(c, n) for c, count in enumerate(steps.tolist()) for n in range(count)]
    assert ((client < 0) == (number < 0)).all()
    for c in np.flatnonzero(steps):
        where = np.flatnonzero(client == c)
        step = np.searchsorted(begins, where, side="right") - 1
        assert step.tolist() == list(range(schedule.start[c], schedule.start[c] + steps[c]))
        assert set(where - begins[step]) == {schedule.lane[c]}


@given(STEPS, st.integers(1, 8))
def test_clients_are_dealt_out(steps: np.ndarray, shards: int) -> None:
    dealt = deal_out(steps, shards)
    everybody = np.concatenate([*dealt, []]).astype(int)
    assert sorted(everybody.tolist()) == list(range(len(steps)))
    assert (np.diff(steps[everybody]) <= 0).all()
    assert all(len(shard) == 1 or steps[shard].sum() <= steps.sum() / 4 + steps[shard[-1]] / 2 for shard in dealt)


def test_equal_clients_are_dealt_out_evenly() -> None:
    assert [len(shard) for shard in deal_out(np.full(50, 5), 8)] == [7, 7, 6, 6, 6, 6, 6, 6]
    assert [len(shard) for shard in deal_out(np.full(50, 5), 4)] == [13, 13, 12, 12]  # and no two are left over
