"""The cohort engine on a GPU, where there is one: the same numbers as on the CPU, and the same bits twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_cohort import FAMILIES, LOCALS, SIZES, make_engine, train
from torch.nn import functional as F

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.simulate import PROTOCOLS, Simulation, simulate
from fedarena.simulate.trusted import TrustedTraining
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine
from fedarena.transforms import AGGREGATORS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU")


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("model", FAMILIES)
def test_models_train_as_on_the_cpu(model: str, compile: bool) -> None:
    reference = make_engine(ReferenceEngine, model, FedAvg(), LOCALS["momentum, decay"], device="cpu")
    broadcast, clients = {"params": reference.initial_params()}, list(range(len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    runs = []
    for _ in range(2):
        options = {"device": "cuda", "lanes": 4, "compile": compile}
        engine = make_engine(CohortEngine, model, FedAvg(), LOCALS["momentum, decay"], **options)
        runs.append(train(engine, clients, engine.place(broadcast), {}))
    for client, (update, *_) in expected.items():
        for name, value in update["params"].items():
            first, second = (run[client][0]["params"][name] for run in runs)
            torch.testing.assert_close(first.cpu(), value, rtol=0, atol=1e-10)
            assert torch.equal(first, second)


class WithinBatch(FedAvg):
    """A loss in which all samples of a batch, and their number, matter."""

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        apart = torch.exp(-torch.cdist(outputs, outputs.detach()).square()).mean()
        return F.cross_entropy(outputs, batch["y"]) + apart + 0.01 * len(batch["y"])


def freeze_first(engine):
    """The same engine of a model whose first parameters stay."""
    next(engine.task.module.parameters()).requires_grad_(False)
    return engine.like_this(engine.algorithm, engine.local, engine.data, engine.seed)


@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("algorithm", [WithinBatch, FedAvg])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_own_losses_and_frozen_parameters_train_as_on_the_cpu(model: str, algorithm, compile: bool) -> None:
    reference = freeze_first(make_engine(ReferenceEngine, model, algorithm(), LOCALS["epochs"], device="cpu"))
    broadcast, clients = {"params": reference.initial_params()}, list(range(1, len(SIZES)))
    expected = train(reference, clients, broadcast, {})
    options = {"device": "cuda", "lanes": 4, "compile": compile}
    engine = freeze_first(make_engine(CohortEngine, model, algorithm(), LOCALS["epochs"], **options))
    found = train(engine, clients, engine.place(broadcast), {})
    for client, (update, *_) in expected.items():
        assert found[client][0]["params"].keys() == update["params"].keys()
        for name, value in update["params"].items():
            torch.testing.assert_close(found[client][0]["params"][name].cpu(), value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ALGORITHMS.names())
@pytest.mark.parametrize("protocol", ["ideal", "buffered", "asynchronous"])
def test_algorithms_run_as_on_the_cpu(name: str, protocol: str) -> None:
    """Three rounds with memories, start losses and personal models, also from models of different age."""
    options = {"buffered": {"buffer_size": 2}, "asynchronous": {"updates_per_round": 3}}.get(protocol, {})
    local = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    clients = np.arange(1, len(SIZES))
    outcomes = []
    for device in ("cpu", "cuda"):
        algorithm = ALGORITHMS.get(name)()
        algorithm.prepare(len(SIZES), local)
        engine = make_engine(CohortEngine, "mlp", algorithm, local, device=device, lanes=3, compile=False)
        assert engine.notes == []
        simulation = Simulation(
            seed=0,
            rounds=3,
            cohort=5,
            task=engine.task,
            algorithm=algorithm,
            engine=engine,
            training_clients=clients,
            evaluation_clients=clients,
            evaluation_part="train",
            evaluate_every=1,
            flops_per_sample=0,
            client_ids=lambda chosen: [str(client) for client in chosen],
            protocol=PROTOCOLS.get(protocol)(**options),
        )
        *_, last = simulate(simulation)
        outcomes.append(last)
    cpu, gpu = outcomes
    assert gpu.row == pytest.approx(cpu.row, abs=1e-10)
    for key, value in cpu.snapshot.state["params"].items():
        torch.testing.assert_close(gpu.snapshot.state["params"][key].cpu(), value, rtol=0, atol=1e-10)


DEFENCES = (
    *("norm_bound", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"),
    *("centered_clipping", "fools_gold", "fl_trust", "sign_majority"),
)


@pytest.mark.parametrize("name", DEFENCES)
def test_defences_come_to_the_same_as_on_the_cpu(name: str) -> None:
    found = []
    for device in ("cpu", "cuda", "cuda"):
        local, algorithm, clients = LOCALS["epochs"], FedAvg(), np.arange(1, len(SIZES))
        algorithm.prepare(len(SIZES), local)
        engine = make_engine(CohortEngine, "mlp", algorithm, local, device=device, lanes=3, compile=False)
        aggregator = AGGREGATORS.get(name)()
        simulation = Simulation(
            seed=0,
            rounds=3,
            cohort=len(clients),
            task=engine.task,
            algorithm=algorithm,
            engine=engine,
            training_clients=clients,
            evaluation_clients=clients,
            evaluation_part="train",
            evaluate_every=1,
            flops_per_sample=0,
            client_ids=lambda chosen: [str(client) for client in chosen],
            aggregator=aggregator,
            trusted=TrustedTraining(engine, 5) if aggregator.trusted_samples else None,
        )
        *_, last = simulate(simulation)
        found.append(last)
    cpu, gpu, again = found
    np.testing.assert_allclose(gpu.jobs["counted"], cpu.jobs["counted"], atol=1e-8)
    for key, value in cpu.snapshot.state["params"].items():
        first, second = (run.snapshot.state["params"][key].cpu() for run in (gpu, again))
        torch.testing.assert_close(first, value, rtol=0, atol=1e-8)
        assert torch.equal(first, second)
