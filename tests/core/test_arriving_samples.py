"""Samples that come to a device in pieces, while clients whose samples are there already train."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from test_cohort import FEATURES, LOCALS, SIZES, ClientsInMemory, assert_same, make_engine, train

from fedarena.algorithms import FedAvg
from fedarena.train import CohortEngine, ReferenceEngine
from fedarena.train import resident as resident_samples
from fedarena.train.resident import ResidentSamples, rows_of

ROW_BYTES = 6 * 8 + 8
EVERYBODY = np.arange(len(SIZES))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_samples, "_PIECE_BYTES", 10 * ROW_BYTES)


class Slow(ClientsInMemory):
    """Gives the samples of a client only when it is told to."""

    def __init__(self, held_back: int):
        super().__init__(FEATURES)
        self.held_back, self.told = held_back, threading.Event()

    def samples(self, clients: Any, part: str) -> Any:
        if self.held_back in np.asarray(clients).tolist():
            assert self.told.wait(60)
        return super().samples(clients, part)


def test_who_is_there_need_not_wait_for_the_others() -> None:
    data = Slow(held_back=5)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    order = np.array([3, 6, 5])
    arrival = resident.arriving(order)
    for place, client in enumerate(order[:2].tolist()):
        arrival.wait_for(place)
        begin = arrival.begins[place]
        rows = arrival.columns["x"][begin : begin + SIZES[client]]
        assert np.array_equal(rows.numpy(), data.columns[client]["x"])
    data.told.set()
    arrival.wait()
    begin = arrival.begins[2]
    assert np.array_equal(arrival.columns["x"][begin : begin + SIZES[5]].numpy(), data.columns[5]["x"])


class Failing(ClientsInMemory):
    """Cannot read the samples of some clients for a while."""

    unreadable: tuple[int, ...] = ()

    def samples(self, clients: Any, part: str) -> Any:
        if set(np.asarray(clients).tolist()) & set(self.unreadable):
            raise ValueError("cannot be read")
        return super().samples(clients, part)


def test_samples_that_could_not_be_read_are_not_taken_for_read() -> None:
    data = Failing(FEATURES)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    rows_of(resident, np.array([3]))
    data.unreadable = (5,)
    arrival = resident.arriving(np.array([3, 6, 5]))
    arrival.wait_for(0)
    with pytest.raises(ValueError, match="cannot be read"):
        arrival.wait_for(2)
    data.unreadable = ()
    columns, begins = rows_of(resident, EVERYBODY)
    for client, begin in enumerate(begins.tolist()):
        rows = columns["x"][begin : begin + SIZES[client]]
        assert np.array_equal(rows.numpy(), data.columns[client]["x"])


def test_clients_train_the_same_while_samples_arrive() -> None:
    found = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": "apart", "lanes": 3})):
        engine = make_engine(kind, "mlp", FedAvg(), LOCALS["epochs"], **options)
        if isinstance(engine, CohortEngine):
            engine.training_samples = ResidentSamples(engine.data, engine.device, 1 << 20)
        found.append(train(engine, EVERYBODY.tolist(), {"params": engine.initial_params()}, {}))
    assert_same(*found)
