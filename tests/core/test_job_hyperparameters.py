"""Jobs with hyperparameters of their own: as if each had been trained by a run with these settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_cohort import FAMILIES, FEATURES, SIZES, assert_same, make_engine
from torch import nn

from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.models import MODELS, DataSpec
from fedarena.train import (
    Algorithm,
    CohortEngine,
    Engine,
    Groups,
    Job,
    LocalTraining,
    ReferenceEngine,
    take_row,
    train_jobs,
)
from fedarena.train import cohort as cohort_module

CLIENTS = list(range(len(SIZES)))
STEPS = LocalTraining(epochs=None, steps=3, batch_size=8, lr=0.1)


@pytest.fixture(autouse=True)
def lanes_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort_module, "_SHARDS_FOR_WORKERS", 1)


def own_settings(client: int, *names: str) -> dict[str, float]:
    """Values that differ from client to client; some are 0."""
    values = {
        "local.lr": 0.02 * (1 + client),
        "local.weight_decay": 0.01 * (client % 3),
        "local.momentum": 0.3 * (client % 4),
        "local.steps": 1 + client % 5,
        "local.epochs": 1 + client % 3,
        "local.batch_size": (2, 5, 8, 16)[client % 4],
        "model.dropout": 0.2 * (client % 4),
        "algorithm.mu": 0.5 * (client % 2),
        "algorithm.lam": 0.7 * (client % 3),
    }
    return {name: values[name] for name in names}


def found_by(engine: Engine, jobs: list[Job], broadcast: Groups, kept: dict[int, Groups]) -> dict[int, Any]:
    found = {}
    for results in train_jobs(engine, jobs, {0: broadcast}, kept):
        for row, client in enumerate(results.clients):
            work = results.work
            amounts = (work.samples[row], work.steps[row], work.processed_samples[row])
            state = take_row(results.client_states, row)
            found[int(client)] = (take_row(results.update, row), state, results.losses[row], amounts)
    return found


def alone(client: int, local: LocalTraining, settings: dict[str, float]) -> LocalTraining:
    """The same training as settings of a whole run."""
    own = {name.removeprefix("local."): value for name, value in settings.items() if name.startswith("local.")}
    whole = {name: int(value) if name in ("steps", "epochs", "batch_size") else value for name, value in own.items()}
    if "epochs" in whole:
        whole["steps"] = None
    return replace(local, **whole)


def check(model: str, name: str, local: LocalTraining, settings: tuple[str, ...], **options: Any) -> None:
    """Each client's job in both engines against a reference engine that has nothing but its settings."""

    def algorithm(own: dict[str, float], local: LocalTraining) -> Algorithm:
        of_algorithm = {k.removeprefix("algorithm."): v for k, v in own.items() if k.startswith("algorithm.")}
        made = ALGORITHMS.get(name)(**of_algorithm)
        made.prepare(len(SIZES), local)
        return made

    engines = [make_engine(ReferenceEngine, model, algorithm({}, local), local)]
    engines += [make_engine(CohortEngine, model, algorithm({}, local), local, lanes=n) for n in (3, 64)]
    first = engines[0]
    broadcast = first.algorithm.broadcast(first.algorithm.server_init(first.initial_params()))
    clients = CLIENTS if name == "fedavg" else CLIENTS[1:]
    each = {client: own_settings(client, *settings) for client in clients}
    kept: dict[int, Groups] = {}
    for round in (1, 2):
        expected = {}
        for client, own in each.items():
            how = alone(client, local, own)
            engine = make_engine(ReferenceEngine, model, algorithm(own, how), how)
            expected |= found_by(engine, [Job(client, round)], broadcast, kept)
        jobs = [Job(client, round, hyperparameters=own) for client, own in each.items()]
        for engine in engines:
            assert_same(expected, found_by(engine, jobs, broadcast, kept))
        if not expected[clients[-1]][1]:
            break
        kept = {client: state for client, (_, state, _, _) in expected.items() if client % 2}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "algorithm", "local", "settings"),
    [
        ("mlp", "fedavg", STEPS, ("local.lr",)),
        ("mlp", "fedavg", STEPS, ("local.lr", "local.weight_decay", "local.momentum", "local.steps")),
        ("mlp", "fedavg", STEPS, ("local.batch_size", "local.epochs", "local.momentum")),
        ("logistic_regression", "fedavg", replace(STEPS, momentum=0.9, weight_decay=0.1), ("local.batch_size",)),
        ("cnn", "fedavg", replace(STEPS, optimizer="adam", lr=0.01), ("local.lr", "local.steps")),
        pytest.param(
            *("lstm", "fedavg", STEPS, ("local.lr", "local.batch_size", "local.steps")), marks=pytest.mark.slow
        ),
        ("mlp", "fedprox", STEPS, ("algorithm.mu", "local.lr", "local.steps")),
        ("mlp", "ditto", STEPS, ("algorithm.lam", "local.lr", "local.momentum")),
        ("mlp", "scaffold", STEPS, ("local.lr", "local.steps")),
        ("mlp", "fednova", replace(STEPS, momentum=0.5), ("local.momentum", "local.steps")),
        ("mlp", "qfedavg", STEPS, ("local.lr", "local.batch_size")),
        ("mlp", "fedbn", STEPS, ("local.lr",)),
    ],
)
def test_a_job_trains_as_a_run_with_its_settings(
    model: str, algorithm: str, local: LocalTraining, settings: tuple[str, ...]
) -> None:
    check(model, algorithm, local, settings)


class Centering(nn.Module):
    """A model that centers its batch while it is trained, so that batches must not be padded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(hidden - hidden.mean(0) if self.training else hidden)


def test_exact_batches_of_different_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(spec: DataSpec) -> nn.Module:
        return Centering()

    monkeypatch.setitem(MODELS._parts, "counting", build)
    monkeypatch.setitem(FAMILIES, "counting", (FEATURES, {}))
    engine = make_engine(CohortEngine, "counting", FedAvg(), STEPS)
    assert engine.exact_batches
    check("counting", "fedavg", STEPS, ("local.lr", "local.batch_size", "local.steps"))


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_dropout_of_a_job_is_that_of_a_model(own: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the layers of the run would drop nothing."""

    def build(spec: DataSpec, *, dropped: float = own) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 9), nn.Dropout(dropped), nn.Linear(9, 5), nn.Dropout(dropped), nn.Linear(5, 3)
        )

    monkeypatch.setitem(MODELS._parts, "dropping", build)
    monkeypatch.setitem(FAMILIES, "dropping", (FEATURES, {}))
    engines = [make_engine(ReferenceEngine, "dropping", FedAvg(), STEPS)]
    engines += [make_engine(CohortEngine, "dropping", FedAvg(), STEPS, lanes=3)]
    broadcast = {"params": engines[0].initial_params()}
    each = {client: own_settings(client, "model.dropout", "local.steps") for client in CLIENTS}
    expected = {}
    for client, settings in each.items():
        monkeypatch.setitem(FAMILIES, "dropping", (FEATURES, {"dropped": settings["model.dropout"]}))
        engine = make_engine(
            ReferenceEngine, "dropping", FedAvg(), alone(client, STEPS, {"local.steps": settings["local.steps"]})
        )
        expected |= found_by(engine, [Job(client, 1)], broadcast, {})
    jobs = [Job(client, 1, hyperparameters=settings) for client, settings in each.items()]
    for engine in engines:
        assert_same(expected, found_by(engine, jobs, broadcast, {}))


def test_engines_agree_on_how_good_trained_models_are() -> None:
    """Also for clients who have no sample to tell by, and of models that keep a part for themselves."""
    for name in ("fedavg", "ditto", "fedbn"):
        found = []
        for kind, options in ((ReferenceEngine, {}), (CohortEngine, {"lanes": 3})):
            algorithm = ALGORITHMS.get(name)()
            algorithm.prepare(len(SIZES), STEPS)
            engine = make_engine(kind, "mlp", algorithm, STEPS, **options)
            engine.validate_on("validation", compare=True)
            broadcast = algorithm.broadcast(algorithm.server_init(engine.initial_params()))
            jobs = [Job(c, 1, hyperparameters=own_settings(c, "local.lr")) for c in CLIENTS]
            of_client = {}
            for results in train_jobs(engine, jobs, {0: broadcast}, {}):
                assert results.validated is not None
                one = results.validated
                for row, client in enumerate(results.clients.tolist()):
                    of_client[client] = (one.samples[row], one.after[row], one.before[row])
                    if name == "fedavg" and SIZES[client]:
                        params = {n: p + results.update["params"][n][row] for n, p in broadcast["params"].items()}
                        for value, model in ((one.after[row], params), (one.before[row], broadcast["params"])):
                            scores = engine.evaluate(model, np.array([client]), "validation")
                            np.testing.assert_allclose(value, scores.means("loss")[0], rtol=0, atol=1e-10)
            found.append(np.array([of_client[client] for client in CLIENTS]))
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-10)
        assert np.isnan(found[0][0, 1:]).all()
        assert np.isfinite(found[0][1:]).all()


def test_jobs_of_one_call_set_the_same_things() -> None:
    engine = make_engine(ReferenceEngine, "mlp", FedAvg(), STEPS)
    jobs = [Job(1, 1, hyperparameters={"local.lr": 0.1}), Job(2, 1)]
    with pytest.raises(ValueError, match="values for the same settings"):
        found_by(engine, jobs, {"params": engine.initial_params()}, {})
