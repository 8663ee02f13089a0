"""Clients in computations of their own, `engine.plan=apart`, train as in one computation and as one at a time."""

from __future__ import annotations

import pytest
from test_cohort import FAMILIES, LOCALS, SIZES, assert_same, lanes_are_used_again, make_engine, train  # noqa: F401

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine, choosing, suitable

CLIENTS = list(range(len(SIZES)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("model", FAMILIES)
def test_every_model_trains_as_one_client_at_a_time(model: str, local: str) -> None:
    found = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": "apart", "lanes": 3})):
        engine = make_engine(kind, model, FedAvg(), LOCALS[local], **options)
        found.append(train(engine, CLIENTS, {"params": engine.initial_params()}, {}))
    assert_same(*found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_trains_as_one_client_at_a_time(name: str) -> None:
    found = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": "apart", "lanes": 3})):
        algorithm = ALGORITHMS.get(name)()
        algorithm.prepare(len(SIZES), LOCALS["epochs"])
        engine = make_engine(kind, "cnn", algorithm, LOCALS["epochs"], **options)
        broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
        found.append(train(engine, CLIENTS[1:], broadcast, {}))
    assert_same(*found)


class SpreadOfTheBatch(FedAvg):
    """A loss for which it matters how many samples a batch has, so that no batch may be filled up."""

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        return task.losses(outputs, batch).mean() + 0.1 * outputs.std()


def test_own_losses_see_batches_as_they_are() -> None:
    found = []
    for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"plan": "apart", "lanes": 3})):
        engine = make_engine(kind, "mlp", SpreadOfTheBatch(), LOCALS["epochs"], **options)
        found.append(train(engine, CLIENTS, {"params": engine.initial_params()}, {}))
    assert_same(*found)


def test_how_clients_train_follows_from_sizes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, dense = (make_engine(CohortEngine, model, FedAvg(), LocalTraining()) for model in ("cnn", "mlp"))
    monkeypatch.setattr(type(engine.hardware), "is_gpu", property(lambda self: True))
    monkeypatch.setattr(type(engine.hardware), "free_bytes", lambda self: 1 << 36)
    assert engine._suitable.lanes_and_plan(None, None)[1] == "beside"
    monkeypatch.setattr(suitable, "_OPEN_LANE_BYTES", (1, 2))
    assert engine._suitable.lanes_and_plan(None, None)[1] == "together"
    monkeypatch.setattr(suitable, "_LARGE_LANE_BYTES", 1)
    lanes, plan = engine._suitable.lanes_and_plan(None, None)
    assert (plan, lanes) == ("apart", suitable._MOST_APART)
    before_there_were_plans = 64, None  # a run from then goes on as it began
    assert engine._suitable.lanes_and_plan(*before_there_were_plans) == (64, "together")
    assert engine._suitable.lanes_and_plan(4, "apart") == (4, "apart")
    assert dense._suitable.lanes_and_plan(None, None)[1] == "together"


def test_a_cpu_needs_no_plan() -> None:
    engine = make_engine(CohortEngine, "cnn", FedAvg(), LocalTraining())
    assert engine.plan == "together"
    assert "plan" not in engine.choices


def test_where_sizes_leave_it_open_both_plans_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suitable.Suitable, "leaves_plan_open", lambda self: True)
    tried = []
    seconds = choosing.seconds_of_step

    def noting(engine: CohortEngine) -> float:
        tried.append((engine.plan, seconds(engine)))
        return tried[-1][1]

    monkeypatch.setattr(choosing, "seconds_of_step", noting)
    engine = make_engine(CohortEngine, "cnn", FedAvg(), LocalTraining(batch_size=4), lanes=None)
    assert [plan for plan, _ in tried] == ["apart", "together"]
    apart, together = (seconds for _, seconds in tried)
    assert engine.plan == ("apart" if together > 1.2 * apart else "together")
    assert make_engine(CohortEngine, "cnn", FedAvg(), LocalTraining(), lanes=4, plan="apart").plan == "apart"
    assert len(tried) == 2  # a plan that is given, such as when a run is resumed, is taken


class Priced:
    """An engine of which is known how long a step takes."""

    def __init__(self, seconds: float):
        self.seconds = seconds


@pytest.mark.parametrize(
    ("by_size", "apart", "together", "compile", "chosen"),
    [
        ("together", 1.0, 1.1, False, "together"),  # not clearly slower
        ("together", 1.0, 1.3, False, "apart"),
        ("apart", 1.1, 1.0, False, "apart"),
        ("apart", 1.0, 0.5, False, "together"),
        ("together", 1.0, 1.8, True, "together"),  # as soon as it is compiled
        ("apart", 1.0, 1.6, True, "apart"),
        ("together", 1.0, 9.0, True, "apart"),
        ("apart", float("inf"), 5.0, True, "together"),  # not enough memory
        ("together", 5.0, float("inf"), True, "apart"),
    ],
)
def test_the_faster_plan_is_chosen_if_it_is_clearly_faster(
    by_size: str, apart: float, together: float, compile: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"apart": apart, "together": together}
    monkeypatch.setattr(choosing, "seconds_of_step", lambda engine: engine.seconds)
    assert choosing.faster_plan(by_size, compile, lambda plan: Priced(prices[plan])) == chosen


def test_example_clients_have_samples_as_the_task_needs_them() -> None:
    engine = make_engine(CohortEngine, "cnn", FedAvg(), LocalTraining())
    clients = choosing.ExampleClients(engine.task, 5)
    block = clients.samples(CLIENTS, "train")
    assert clients.counts(CLIENTS, "train").tolist() == [5] * len(CLIENTS)
    assert {len(values) for values in block.columns.values()} == {5 * len(CLIENTS)}
    assert block.offsets.tolist() == [5 * client for client in range(len(CLIENTS) + 1)]
