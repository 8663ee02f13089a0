"""Samples that come to a device in pieces, while clients whose samples are there already train."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_cohort import FEATURES, LOCALS, SIZES, ClientsInMemory, assert_same, make_engine, train

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.models import Tensors
from fedarena.train import CohortEngine, Job, JobArrays, ReferenceEngine
from fedarena.train import resident as resident_samples
from fedarena.train.hardware import Hardware
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


@pytest.mark.parametrize("needed", [[3, 6, 5], EVERYBODY], ids=["the same", "others too"])
def test_samples_that_could_not_be_read_are_not_taken_for_read(needed) -> None:
    data = Failing(FEATURES)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    rows_of(resident, np.array([3]))
    data.unreadable = (5,)
    arrival = resident.arriving(np.array([3, 6, 5]))
    arrival.wait_for(0)
    with pytest.raises(ValueError, match="cannot be read"):
        arrival.wait_for(2)
    data.unreadable = ()
    columns, begins = rows_of(resident, np.array(needed))
    for client, begin in zip(needed, begins.tolist(), strict=True):
        rows = columns["x"][begin : begin + SIZES[client]]
        assert np.array_equal(rows.numpy(), data.columns[client]["x"])


class SlowAndFailing(Slow, Failing):
    """Both, each for a client of its own."""


def test_samples_are_read_again_while_others_are_still_coming() -> None:
    data = SlowAndFailing(held_back=5)
    data.unreadable = (3,)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    with pytest.raises(ValueError, match="cannot be read"):
        resident.arriving(np.array([6, 3, 5])).wait_for(1)
    data.unreadable = ()
    threading.Timer(0.2, data.told.set).start()
    columns, begins = rows_of(resident, np.array([3]))
    assert np.array_equal(columns["x"][begins[0] : begins[0] + SIZES[3]].numpy(), data.columns[3]["x"])


def test_nobody_looks_after_samples_that_have_arrived() -> None:
    resident = ResidentSamples(ClientsInMemory(FEATURES), torch.device("cpu"), 1 << 20)
    first = resident.arriving(EVERYBODY)
    assert resident._pieces
    first.wait()
    _, begins = rows_of(resident, EVERYBODY)
    assert not resident._pieces
    assert begins.tolist() == first.begins.tolist()


def test_clients_train_the_same_while_samples_arrive() -> None:
    found = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": "apart", "lanes": 3, "workers": 1})):
        engine = make_engine(kind, "mlp", FedAvg(), LOCALS["epochs"], **options)
        if isinstance(engine, CohortEngine):
            engine.training_samples = ResidentSamples(engine.data, engine.device, 1 << 20)
        found.append(train(engine, EVERYBODY.tolist(), {"params": engine.initial_params()}, {}))
    assert_same(*found)


@pytest.mark.parametrize("plan", ["apart", "together", "beside"])
@pytest.mark.parametrize("rows", [1, 12, 40])
def test_clients_train_the_same_when_not_all_of_their_samples_fit_at_once(plan: str, rows: int) -> None:
    found, held = [], []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": plan, "lanes": 3, "workers": 1})):
        engine = make_engine(kind, "mlp", FedAvg(), LOCALS["epochs"], **options)
        if isinstance(engine, CohortEngine):
            resident = engine.training_samples = ResidentSamples(engine.data, engine.device, rows * ROW_BYTES)
            arriving = resident.arriving
            resident.arriving = lambda clients, arriving=arriving: held.append(clients) or arriving(clients)
            engine.plan_ahead(JobArrays.of([Job(client, 1) for client in EVERYBODY.tolist()]))
        found.append(train(engine, EVERYBODY.tolist(), {"params": engine.initial_params()}, {}))
    assert_same(*found)
    counts = [sum(SIZES[client] for client in clients.tolist()) for clients in held]
    assert sum(counts) == sum(SIZES)
    assert all(count <= rows or len(clients) == 1 for count, clients in zip(counts, held, strict=True))


@pytest.mark.parametrize("plan", ["apart", "together", "beside"])
def test_bits_depend_on_the_recorded_bytes_and_not_on_what_is_free(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody goes on with a run who has more or less memory than whoever began it."""
    found, options = [], {"plan": plan, "lanes": 3}
    for free_rows in (60, 1000, 30):
        engine = engine_as_on_a_gpu(free_rows, monkeypatch, **options)
        options["sample_bytes"] = engine.choices["sample_bytes"]
        found.append([*train_jobs_in_order(engine)])
    assert options["sample_bytes"] == 1024  # a power of two, up to 0.4 of 60 rows
    for (client, params), *others in zip(*found, strict=True):
        for other_client, other_params in others:
            assert client == other_client
            assert all(torch.equal(value, other_params[name]) for name, value in params.items())


def engine_as_on_a_gpu(free_rows: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> CohortEngine:
    """An engine that chooses like one of a GPU on which so many samples would fit, and computes here."""
    with monkeypatch.context() as made:
        made.setattr(Hardware, "is_gpu", property(lambda self: True))
        made.setattr(Hardware, "free_bytes", lambda self: free_rows * ROW_BYTES)
        return make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], compile=False, **options)


def train_jobs_in_order(engine: CohortEngine) -> Iterator[tuple[int, Tensors]]:
    """Clients in the order in which their updates are added up, with what they send."""
    jobs = JobArrays.of([Job(client, 1) for client in EVERYBODY.tolist()])
    for shard in engine.divide(jobs, {0: {"params": engine.initial_params()}}, {}):
        for results in engine.train(shard):
            for place, client in enumerate(results.jobs.clients.tolist()):
                yield client, {name: t[place] for name, t in results.update["params"].items()}


def test_no_bytes_for_samples_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"engine\.sample_bytes must be 1 or more, not 0"):
        make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], sample_bytes=0)


def test_all_clients_are_one_part_if_their_samples_fit() -> None:
    resident = ResidentSamples(ClientsInMemory(FEATURES), torch.device("cpu"), sum(SIZES) * ROW_BYTES)
    assert resident.parts(EVERYBODY, np.array(SIZES)) == [slice(None)]
    assert resident.parts(EVERYBODY[:0], np.array(SIZES[:0])) == [slice(None)]


def assert_has(resident: ResidentSamples, data: ClientsInMemory, clients: np.ndarray) -> None:
    columns, begins = rows_of(resident, clients)
    for client, begin in zip(clients.tolist(), begins.tolist(), strict=True):
        assert np.array_equal(columns["x"][begin : begin + SIZES[client]].numpy(), data.columns[client]["x"])


def test_who_is_expected_is_read_when_all_others_are_there() -> None:
    data = Slow(held_back=5)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    present = resident.arriving(np.array([6, 5]))
    resident.expect(np.array([6, 3, 8]))
    assert not resident._expecting.done()
    data.told.set()
    present.wait()
    resident._stop_expecting()
    data.held_back = 8  # would keep whoever reads it once more waiting
    begin = present.begins[1]  # where it was, whatever has moved
    assert np.array_equal(present.columns["x"][begin : begin + SIZES[5]].numpy(), data.columns[5]["x"])
    assert_has(resident, data, np.array([8, 3, 6]))


def test_others_than_those_who_were_expected_may_come() -> None:
    data = ClientsInMemory(FEATURES)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    for expected, needed in (([1, 2], [3, 6]), ([6, 9], [9, 5]), ([3], [0, 8])):
        resident.expect(np.array(expected))
        assert_has(resident, data, np.array(needed))


def test_nobody_is_expected_who_has_no_room() -> None:
    data = ClientsInMemory(FEATURES)
    rows = int(SIZES[6] + SIZES[5])
    resident = ResidentSamples(data, torch.device("cpu"), rows * ROW_BYTES)
    present = resident.arriving(np.array([6, 5]))
    resident.expect(EVERYBODY)
    resident._stop_expecting()
    assert resident._begins.keys() == {6, 5}
    present.wait()
    assert_has(resident, data, np.array([8, 3]))  # in place of the others


def test_samples_that_cannot_be_read_are_missed_only_when_they_are_needed() -> None:
    data = Failing(FEATURES)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    data.unreadable = (5,)
    resident.expect(np.array([3, 5]))
    resident._stop_expecting()
    assert_has(resident, data, np.array([3, 6]))
    with pytest.raises(ValueError, match="cannot be read"):
        rows_of(resident, np.array([5]))


def test_samples_that_turn_out_not_to_come_are_read_again() -> None:
    """Whoever was to come with somebody who cannot be read is missing, too, though that is found out late."""
    told = threading.Event()

    class FailingLate(ClientsInMemory):
        def samples(self, clients: Any, part: str) -> Any:
            if 5 in np.asarray(clients).tolist():
                told.wait()
                raise ValueError("cannot be read")
            return super().samples(clients, part)

    data = FailingLate(FEATURES)
    resident = ResidentSamples(data, torch.device("cpu"), 1 << 20)
    resident.expect(np.array([3, 5]))
    resident._stop_expecting()
    threading.Timer(0.05, told.set).start()
    assert_has(resident, data, np.array([3, 6]))


def test_planning_ahead_changes_nothing() -> None:
    found = []
    for plans in (False, True):
        engine = make_engine(CohortEngine, "mlp", FedAvg(), LOCALS["epochs"], plan="apart", lanes=3, workers=1)
        engine.training_samples = ResidentSamples(engine.data, engine.device, 1 << 20)
        rounds = []
        for clients, following in ((EVERYBODY[:4], EVERYBODY[4:]), (EVERYBODY[4:], EVERYBODY[:6])):
            rounds.append(train(engine, clients.tolist(), {"params": engine.initial_params()}, {}))
            if plans:
                engine.plan_ahead(JobArrays.of([Job(client, 1) for client in following.tolist()]))
                engine.training_samples._stop_expecting()
                assert set(following.tolist()) <= engine.training_samples._begins.keys()
        found.append(rounds)
    for without, ahead in zip(*found, strict=True):
        assert_same(without, ahead)
