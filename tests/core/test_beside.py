"""Clients with far more to do than others, who train beside them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cohort import SIZES, assert_same, make_engine, train
from test_schedule import STEPS

from fedarena.algorithms import ALGORITHMS
from fedarena.train import CohortEngine, Job, JobArrays, LocalTraining, ReferenceEngine
from fedarena.train.beside import divide_by_length
from fedarena.train.placing import PlannedWork
from fedarena.train.schedule import Batches

LOCAL = LocalTraining(epochs=2, batch_size=2, lr=0.05)


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_everybody_learns_the_same(name: str) -> None:
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


def work_of(steps: np.ndarray) -> PlannedWork:
    nothing = np.zeros((0, 1), dtype=np.int64)
    batches = Batches(nothing, nothing.astype(bool), np.zeros(len(steps), dtype=np.int64))
    return PlannedWork(JobArrays.of([Job(client, 1) for client in range(len(steps))]), steps, steps, batches, None)


@given(STEPS, st.integers(1, 8))
def test_only_the_longest_are_apart(steps: np.ndarray, lanes: int) -> None:
    groups, others = divide_by_length(work_of(steps), lanes)
    divided = [*groups, *([] if others is None else [others])]
    assert sorted(client for some in divided for client in some.jobs.clients) == list(range(len(steps)))
    for longer, shorter in pairwise(divided):
        assert longer.steps.min() >= shorter.steps.max()
    for number, group in enumerate(groups):
        assert group.steps.max() > 2 * steps.sum() / min(lanes, (steps > 0).sum())
        assert len(group.steps) == 4**number or others is None


def test_nobody_is_apart_from_equals() -> None:
    steps = np.full(7, 5)
    assert divide_by_length(work_of(steps), 4)[0] == []
