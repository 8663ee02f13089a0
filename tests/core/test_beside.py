"""Clients with far more to do than others, who train beside them."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_cohort import SIZES, assert_same, make_engine, train
from test_schedule import STEPS

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining, ReferenceEngine, beside, unwritten
from fedarena.train.beside import divide_by_length
from fedarena.train.finished_lanes import can_be_kept

LOCAL = LocalTraining(epochs=2, batch_size=2, lr=0.05)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "shards"), [("fedavg", 1), ("fedavg", 2), ("scaffold", 1)])
def test_everybody_learns_the_same(name: str, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def any_clients(engine: CohortEngine, steps: np.ndarray) -> list[np.ndarray]:
        return [np.arange(len(steps))] if shards == 1 else [np.array([0, 1, 4, 7]), np.array([2, 3, 5, 6, 8])]

    monkeypatch.setattr(CohortEngine, "_shards", any_clients)
    monkeypatch.setattr(beside, "_FAR_MORE", 2)
    algorithms = [ALGORITHMS.get(name)() for _ in range(2)]
    for algorithm in algorithms:
        algorithm.prepare(len(SIZES), LOCAL)
    reference = make_engine(ReferenceEngine, "mlp", algorithms[0], LOCAL)
    cohort = make_engine(CohortEngine, "mlp", algorithms[1], LOCAL, plan="beside", lanes=9)
    state = reference.algorithm.server_init(reference.initial_params())
    broadcast = reference.algorithm.broadcast(state)
    clients = list(range(1, len(SIZES)))
    for _ in range(2):  # the second time, in lanes that have been used
        assert_same(train(reference, clients, broadcast, {}), train(cohort, clients, broadcast, {}))
    assert cohort._beside._pools, "nobody had far more to do than others"


class Group:
    """Has one thing to tell."""

    told, has_more = 0, False

    def go_on(self) -> None:
        self.told += 1


def test_workers_tell_their_own_groups_alone() -> None:
    """As two generators that work off a group's steps at once would be one too many."""
    beside_others, group = beside.Beside(torch.device("cpu")), Group()
    beside_others._going_on.groups = [group]
    another_worker = threading.Thread(target=beside_others.tell_all)
    another_worker.start()
    another_worker.join()
    assert group.told == 0
    beside_others.tell_all()
    assert group.told == 1


@pytest.mark.parametrize("dense", ["written", "factored"])
def test_what_was_planned_ahead_is_the_same(dense: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_FAR_MORE", 1)
    monkeypatch.setattr(unwritten, "_FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(unwritten, "_WORTHWHILE_SHARE", 1e9)
    clients = list(range(1, len(SIZES)))
    found = []
    for ahead in (False, True):
        engine = make_engine(CohortEngine, "mlp", FedAvg(), LOCAL, plan="beside", lanes=9, dense=dense)
        if ahead:
            engine.plan_ahead(JobArrays.of([Job(client, 1) for client in clients]))
            division = engine._planned_ahead.division
            assert [len(group.steps) for group in division.groups] == [1, 4]
            assert len(division.unwritten) == (dense == "factored")
        found.append(train(engine, clients, {"params": engine.initial_params()}, {}))
    assert_same(*found, tolerance=0)


@given(STEPS, st.integers(1, 8), st.integers(1, 8))
def test_only_the_longest_are_apart(steps: np.ndarray, lanes: int, largest: int) -> None:
    groups, others = divide_by_length(steps, lanes, largest)
    divided = [*groups, *([others] if len(others) else [])]
    assert sorted(np.concatenate([*groups, others]).tolist()) == list(range(len(steps)))
    for longer, shorter in pairwise(divided):
        assert steps[longer].min() >= steps[shorter].max()
    for number, group in enumerate(groups):
        assert steps[group].max() > 4 * steps.sum() / min(lanes, (steps > 0).sum())
        assert len(group) == 4**number <= largest or not len(others)


def test_lanes_are_put_aside_in_graphs_if_they_lie_one_after_the_other() -> None:
    lanes = torch.zeros(4, 6, 5)
    assert can_be_kept({"a": lanes, "b": torch.zeros(4), "c": torch.zeros(4, 1).double()})
    assert not can_be_kept({"a": lanes, "b": torch.zeros(6, 4).t()})  # such as an own `local_start` may give
    assert not can_be_kept({"a": lanes, "b": torch.zeros(4, 3).bfloat16()})  # rows of 6 bytes


def test_nobody_is_apart_from_equals() -> None:
    steps = np.full(7, 5)
    assert divide_by_length(steps, 4, 4)[0] == []
