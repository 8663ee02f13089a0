from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedarena.train import LocalTraining
from fedarena.train.batches import batch_indices, count_processed, count_steps
from fedarena.train.schedule import _ranked, deal_out, draw_batches, make_schedule, place_steps

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


@given(
    samples=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    work=st.one_of(st.tuples(st.integers(1, 3), st.none()), st.tuples(st.none(), st.integers(1, 9))),
    batch_size=st.integers(1, 7),
    round=st.integers(1, 3),
)
def test_batches_are_those_of_one_client_at_a_time(samples, work, batch_size, round) -> None:
    local = LocalTraining(epochs=work[0], steps=work[1], batch_size=batch_size)
    sizes = np.array(samples)
    clients = np.arange(len(samples)) * 7 + 3
    steps = count_steps(sizes, local)
    rounds = round + np.arange(len(clients)) % 2
    batches = draw_batches(clients, sizes, steps, local.batch_size, 5, rounds)
    expected = [batch_indices(n, local, 5, int(r), int(c)) for n, c, r in zip(samples, clients, rounds, strict=True)]
    assert len(batches.rows) == sum(map(len, expected))
    assert batches.processed(steps).tolist() == [sum(map(len, each)) for each in expected]
    assert count_processed(sizes, steps, local.batch_size).tolist() == batches.processed(steps).tolist()
    for first, of_client in zip(batches.first, expected, strict=True):
        for step, rows in enumerate(of_client, start=first):
            assert batches.rows[step][batches.mask[step]].tolist() == rows.tolist()


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


def test_equal_keys_stay_in_their_order() -> None:
    most, samples = np.iinfo(np.uint64).max, np.array([40, 3])
    keys = np.full((2, 40), most, dtype=np.uint64)  # in the second row, the third sample has the key of what is none
    keys[0], keys[1, :2] = np.repeat([2**63, 7, 2**63 + 1, 7], 10), [9, 8]
    first, second = _ranked(keys, samples)
    assert first.tolist() == np.argsort(keys[0], kind="stable").tolist()
    assert second[:3].tolist() == [1, 0, 2]


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
