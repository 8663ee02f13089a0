"""Hooks that look right and would train something else without a word: refused, or right on both engines."""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import config, losses
from torch import nn
from torch.nn import functional as F

from fedarena.algorithms import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.metrics import Mean, MetricInfo
from fedarena.runs.run import start_run
from fedarena.simulate.schedules import Schedule
from fedarena.transforms import Transform
from fedarena.transforms.aggregators.multi_krum import MultiKrum

ENGINES = ("reference", "cohort")


class MomentumInPlace(FedAvg):
    def client_init(self, broadcast):
        return {"m": {name: torch.zeros_like(p) for name, p in broadcast["params"].items()}}

    def local_gradient(self, grad, params, client):
        for name, g in grad.items():
            client.state["m"][name].mul_(0.9).add_(g)
        return dict(client.state["m"])


class StartInSelf(FedAvg):
    def local_start(self, client):
        self.start = client.broadcast["params"]
        return self.start


class ListInSelf(FedAvg):
    def __init__(self):
        super().__init__()
        self.seen = []

    def client_update(self, params, client, work):
        self.seen.append(1)
        update, state = super().client_update(params, client, work)
        return {"params": {name: u / len(self.seen) for name, u in update["params"].items()}}, state


class StateOfAnotherType(FedAvg):
    def client_init(self, broadcast):
        return {"n": {"n": torch.tensor(0)}}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        return update, {"n": {"n": client.state["n"]["n"] + 0.5}}


class UpdateInPlace(FedAvg):
    def client_update(self, params, client, work):
        for name in params:
            params[name] -= client.broadcast["params"][name]
        return {"params": params}, client.state


class AddsToState(FedAvg):
    """A client that has not moved would add nothing."""

    def client_init(self, broadcast):
        return {"sum": {name: torch.zeros_like(p) for name, p in broadcast["params"].items()}}

    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        for name, u in update["params"].items():
            state["sum"][name] += u
        return update, state


class PersonalInPlace(FedAvg):
    def personal_models(self, client):
        return [{name: p.mul_(0.5) for name, p in client.broadcast["params"].items()}]


class PersonalByChance(FedAvg):
    def personal_models(self, client):
        return [{name: p + torch.randn_like(p) for name, p in client.broadcast["params"].items()}]


class ScoresByChance(FedAvg):
    def evaluation_params(self, state):
        return {name: p + torch.randn_like(p) for name, p in state["params"].items()}


class SentByChance(FedAvg):
    def broadcast(self, state):
        return {"params": {name: p + torch.randn_like(p) for name, p in state["params"].items()}}


class HalvesInPlace(FedAvg):
    def server_init(self, params):
        for p in params.values():
            p.mul_(0.5)
        return super().server_init(params)


class ScoresInPlace(FedAvg):
    def evaluation_params(self, state):
        return {name: p.mul_(0.5) for name, p in state["params"].items()}


class LossOfTheModule(FedAvg):
    def local_loss(self, task, params, batch, client):
        return F.cross_entropy(task.module(batch["x"]), batch["y"])


class LossOfBoth(LossOfTheModule):
    def local_loss(self, task, params, batch, client):
        return super().local_loss(task, params, batch, client) + sum(p.square().sum() for p in params.values())


class Weighted(FedAvg):
    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        return F.cross_entropy(outputs, batch["y"], weight=torch.arange(1.0, 11.0).to(outputs))


class HalfAModel(FedAvg):
    def personal_models(self, client):
        return [dict(list(client.broadcast["params"].items())[:1])]


class OneModel(FedAvg):
    def personal_models(self, client):
        return client.broadcast["params"]


PRIVATE = {"privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (MomentumInPlace, {}, r"MomentumInPlace.local_gradient changes client\.state in place"),
        (StartInSelf, {}, r"StartInSelf.local_start remembers something in self\.start, .* client\.broadcast has what"),
        (ListInSelf, {}, r"ListInSelf.client_update remembers something between its calls \(in self\.seen\)"),
        (StateOfAnotherType, {}, r"keeps n/n in the form torch.float32 \[\], and client_init made it torch.int64 \[\]"),
        (UpdateInPlace, {}, "UpdateInPlace.client_update changes params in place"),
        (AddsToState, {}, r"AddsToState.client_update changes client\.state in place"),
        (PersonalInPlace, {}, r"PersonalInPlace.personal_models changes client\.broadcast in place"),
        (PersonalByChance, {}, "PersonalByChance.personal_models draws random numbers"),
        (ScoresByChance, {}, "ScoresByChance.evaluation_params draws random numbers .* use numbers that server_init"),
        (SentByChance, {}, "SentByChance.broadcast draws random numbers"),
        (HalvesInPlace, {}, "HalvesInPlace.server_init changes the parameters that it gets in place"),
        (ScoresInPlace, {}, "ScoresInPlace.evaluation_params changes the server's state in place"),
        (LossOfTheModule, {}, r"local_loss depends on the parameters that task\.module has, .* task\.predict\(params"),
        (LossOfBoth, {}, r"local_loss depends on the parameters that task\.module has"),
        (Weighted, PRIVATE, "The loss of Weighted is not the mean of what it is for single samples"),
        (HalfAModel, {}, "HalfAModel.personal_models gives no parameter"),
        (OneModel, {}, "OneModel.personal_models must give a list of models"),
    ],
)
def test_what_would_train_something_else_is_refused(
    tmp_path: Path, algorithm: Any, settings: dict[str, Any], message: str, engine: str
) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(algorithm=algorithm, engine=engine, rounds=1, **settings), tmp_path)


class KeepsNames(FedAvg):
    """What is found out once, and is no number, may stay."""

    names: Any = None

    def local_gradient(self, grad, params, client):
        if self.names is None:
            self.names = list(params)
        for name in self.names:
            grad[name] += 0.1 * params[name]
        return grad


class CachedWeights(FedAvg):
    @cached_property
    def weights(self):
        return torch.linspace(1, 2, 10)

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        return F.cross_entropy(outputs, batch["y"], weight=self.weights.to(outputs))

    def server_step(self, state, mean_update, round):
        update = {name: self.server_factor * u for name, u in mean_update["params"].items()}
        return super().server_step(state, {"params": update}, round)

    @cached_property
    def server_factor(self):
        return 0.5


class LateWeights(FedAvg):
    """The same numbers whoever is first, of which nobody keeps anything."""

    weights = None

    def __init__(self):
        super().__init__()
        self.scales = {}

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        if self.weights is None:
            self.weights = torch.linspace(1, 2, outputs.shape[1]).to(outputs)
        return F.cross_entropy(outputs, batch["y"], weight=self.weights)

    def local_gradient(self, grad, params, client):
        for name, p in params.items():
            if name not in self.scales:
                self.scales[name] = p.numel() ** -0.5
        return {name: self.scales[name] * g for name, g in grad.items()}


class Proximal(FedAvg):
    def local_loss(self, task, params, batch, client):
        apart = [(p - client.broadcast["params"][name]).square().sum() for name, p in params.items()]
        return task.loss(params, batch) + 0.5 * sum(apart)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [(KeepsNames, {}), (CachedWeights, {}), (LateWeights, {}), (Proximal, {}), (Proximal, PRIVATE)],
)
def test_what_is_right_stays_allowed(tmp_path: Path, algorithm: Any, settings: dict[str, Any]) -> None:
    scores = [losses(tmp_path, engine, algorithm=algorithm, **settings) for engine in ENGINES]
    np.testing.assert_allclose(*scores, rtol=1e-9)


class Forgetful(Schedule):
    now = 1.0

    def scale(self, round):
        self.now *= 0.5
        return self.now


class ByChance(Schedule):
    def scale(self, round):
        return float(np.random.rand())


class Backwards(Schedule):
    def scale(self, round):
        return 1.0 - round


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Forgetful, "The schedule Forgetful gives 0.5 for round 1, and .* when it is asked again"),
        (ByChance, "The schedule ByChance gives .* when it is asked again"),
        (Backwards, "The schedule Backwards must give a number from 0 on, not -1.0"),
    ],
)
def test_schedules_that_remember_draw_or_go_backwards_are_refused(tmp_path: Path, schedule: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(client_lr_schedule=schedule, rounds=1), tmp_path)


class Guesses(Mean):
    info = MetricInfo("guesses", "guesses")

    def each(self, outputs, labels):
        return torch.rand(len(outputs))


class ClearsOutputs(Mean):
    info = MetricInfo("cleared", "cleared")

    def each(self, outputs, labels):
        return outputs.zero_().sum(1)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (Guesses, "The metric Guesses draws random numbers"),
        (ClearsOutputs, "ClearsOutputs changes what the model puts"),
    ],
)
def test_metrics_that_draw_or_change_outputs_are_refused(tmp_path: Path, metric: Any, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(task={"name": "classification", "metrics": ["accuracy", metric]}, rounds=1), tmp_path)


class OnlyAnUpdate(FedAvg):
    def client_update(self, params, client, work):
        return super().client_update(params, client, work)[0]


class WithoutGroups(FedAvg):
    def client_update(self, params, client, work):
        return params, client.state


class LeavesOneOut(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {"params": dict(list(update["params"].items())[1:])}, state


class TakesAClass(nn.Module):
    def __init__(self, *, act: Any = nn.ReLU):
        super().__init__()
        self.last = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), act())

    def forward(self, x):
        return self.last(x)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"algorithm": OnlyAnUpdate}, "OnlyAnUpdate.client_update must give an update and what the client keeps"),
        ({"algorithm": WithoutGroups}, "WithoutGroups.client_update must give an update and what the client keeps"),
        (
            {"algorithm": LeavesOneOut},
            "The mean update has no parameter '.*': an algorithm whose clients leave some",
        ),
        ({"model": TakesAClass}, r"model\.act of the .* is <class .*ReLU'>, which no configuration can hold"),
    ],
)
def test_what_ended_in_a_traceback_gets_a_sentence(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(**{"algorithm": "fedavg", "rounds": 1, **parts}), tmp_path)


class WeighsNothing(MultiKrum):
    def weigh(self, updates):
        return np.full(len(updates), np.nan)


def test_a_defence_that_weighs_by_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="weigh must give a number from 0 on for each of 10 clients"):
        start_run(config(aggregator=WeighsNothing, rounds=1, cohort=10, algorithm="fedavg"), tmp_path)


class OwnBeginning(FedAvg):
    def __init__(self, *, mu: float = 0.1):
        self.mu = mu


def test_an_algorithm_may_forget_the_beginning_of_what_it_extends(tmp_path: Path) -> None:
    assert start_run(config(algorithm=OwnBeginning, rounds=1), tmp_path).status == "finished"


class TrainsTheLastLayer(FedAvg):
    """Clients get all parameters and train some; the server knows what to do."""

    def local_start(self, client):
        return {name: p for name, p in client.broadcast["params"].items() if name.endswith("bias")}

    def client_update(self, params, client, work):
        start = client.broadcast["params"]
        return {"params": {name: p - start[name] for name, p in params.items()}}, client.state

    def server_step(self, state, mean_update, round):
        update = mean_update["params"]
        return {**state, "params": {name: p + update.get(name, 0) for name, p in state["params"].items()}}


def test_clients_may_train_some_of_the_parameters(tmp_path: Path) -> None:
    found = [losses(tmp_path, engine, algorithm=TrainsTheLastLayer) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert found[0][-1] < found[0][0]


class OfTensors(Schedule):
    def scale(self, round):
        return torch.tensor(0.5)


def test_schedules_may_give_numbers_of_any_kind(tmp_path: Path) -> None:
    assert start_run(config(client_lr_schedule=OfTensors, rounds=1), tmp_path).status == "finished"


class FirstNumber(FedAvg):
    """Called again with the same arguments it does the same, but another client's number would be another one."""

    level = None

    def local_loss(self, task, params, batch, client):
        if self.level is None:
            self.level = len(batch["y"]) / 7
        return task.loss(params, batch) * self.level


class FirstLabels(FirstNumber):
    def local_loss(self, task, params, batch, client):
        if self.level is None:
            self.level = batch["y"].max() / 10
        return task.loss(params, batch) * self.level


class FirstRound(FirstNumber):
    def local_start(self, client):
        if self.level is None:
            self.level = client.job.round
        return client.broadcast["params"]


class FirstOfAll(FirstNumber):
    """In the class, which all algorithms of this kind have in common."""

    def local_start(self, client):
        if FirstOfAll.level is None:
            FirstOfAll.level = client.broadcast["params"]
        return client.broadcast["params"]


@pytest.mark.parametrize(
    ("algorithm", "hook"),
    [
        (FirstNumber, "local_loss"),
        (FirstLabels, "local_loss"),
        (FirstRound, "local_start"),
        (FirstOfAll, "local_start"),
    ],
)
def test_numbers_of_the_first_client_are_not_kept_for_others(tmp_path: Path, algorithm: Any, hook: str) -> None:
    with pytest.raises(BadInputError, match=rf"{algorithm.__name__}\.{hook} remembers something in self\.level"):
        start_run(config(algorithm=algorithm, rounds=1), tmp_path)


class BeginsByChance(FedAvg):
    def server_init(self, params):
        return {"params": {name: 0.1 * torch.randn_like(p) for name, p in params.items()}}


def test_what_the_server_draws_at_the_beginning_follows_from_the_seed(tmp_path: Path) -> None:
    found = [losses(tmp_path, engine, algorithm=BeginsByChance, rounds=1) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert losses(tmp_path, "cohort", "other", algorithm=BeginsByChance, rounds=1, seed=1) != found[0]


class PutsAside(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x):
        self.features = self.body(x.flatten(1))
        self.both = [self.features, self.last(torch.relu(self.features))]
        return self.both[1]


class OfFeatures(FedAvg):
    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        return F.cross_entropy(outputs, batch["y"]) + task.module.features.square().mean()


class FreelyOfFeatures(FedAvg):
    def train(self, client, model, data):
        for batch in data:
            model.zero_grad()
            (F.cross_entropy(model(batch["x"]), batch["y"]) + model.features.square().mean()).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad


def test_a_model_may_put_aside_what_a_loss_looks_at(tmp_path: Path) -> None:
    found = [
        losses(tmp_path, engine, algorithm.__name__, algorithm=algorithm, model=PutsAside)
        for algorithm, engine in ((OfFeatures, "reference"), (OfFeatures, "cohort"), (FreelyOfFeatures, "reference"))
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-9)


class ServerOptimizer(FedAvg):
    """By torch; what it returns still asks for gradients."""

    def server_step(self, state, mean_update, round):
        params = {name: p.clone().requires_grad_() for name, p in state["params"].items()}
        for name, p in params.items():
            p.grad = -mean_update["params"][name]
        torch.optim.SGD(params.values(), lr=1.0).step()
        return {**state, "params": params}


def test_the_server_may_have_an_optimizer_of_torch(tmp_path: Path) -> None:
    found = losses(tmp_path, "cohort", algorithm=ServerOptimizer)
    np.testing.assert_allclose(found, losses(tmp_path, "cohort", "plain"), rtol=1e-9)


class FirstUpdate(Transform):
    first = None

    def at_client(self, rows, kept, server):
        if self.first is None:
            self.first = {name: t[:1].clone() for name, t in rows.update["params"].items()}
        return rows.update | {"params": {n: t - self.first[n] for n, t in rows.update["params"].items()}}, kept


class CountsRows(Transform):
    rows = 0

    def at_client(self, rows, kept, server):
        self.rows += len(rows)
        return rows.update, kept


@pytest.mark.parametrize(("transform", "where"), [(FirstUpdate, "first"), (CountsRows, "rows")])
def test_transforms_that_remember_clients_are_refused(tmp_path: Path, transform: Any, where: str) -> None:
    with pytest.raises(BadInputError, match=rf"{transform.__name__}\.at_client remembers something in self\.{where}"):
        start_run(config(transforms=[transform], rounds=1, algorithm="fedavg"), tmp_path)


class OfAllNumbers(Transform):
    """How many they are is the same for every client."""

    numbers = None

    def at_client(self, rows, kept, server):
        if self.numbers is None:
            self.numbers = sum(t[0].numel() for t in rows.update["params"].values())
        return rows.update | {"params": {n: t / self.numbers for n, t in rows.update["params"].items()}}, kept


def test_transforms_may_keep_what_never_changes(tmp_path: Path) -> None:
    assert start_run(config(transforms=[OfAllNumbers], rounds=1, algorithm="fedavg"), tmp_path).status == "finished"


class HalfLater(FedAvg):
    """What decides is the same for all clients of a round, and another in the next one."""

    def server_init(self, params):
        return {"params": params, "rounds": {"taken": torch.tensor(0)}}

    def server_step(self, state, mean_update, round):
        taken = {"taken": state["rounds"]["taken"] + 1}
        return {**super().server_step(state, mean_update, round), "rounds": taken}

    def broadcast(self, state):
        return {"params": state["params"], "rounds": state["rounds"]}

    def local_gradient(self, grad, params, client):
        return {name: g / 2 for name, g in grad.items()} if client.broadcast["rounds"]["taken"] > 0 else grad


@pytest.mark.filterwarnings("ignore:.*one at a time")
def test_hooks_that_decide_by_what_everybody_downloads_train_one_client_at_a_time(tmp_path: Path) -> None:
    found = [losses(tmp_path, engine, algorithm=HalfLater, rounds=3) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)


class PullsToNumPy(FedAvg):
    """What everybody downloads, read by other ways than operations of torch, is another one in every round."""

    def local_gradient(self, grad, params, client):
        pulls = {name: torch.tensor(np.asarray(p)) for name, p in client.broadcast["params"].items()}
        return {name: g + 0.1 * pulls[name] for name, g in grad.items()}


class PullsToCopy(FedAvg):
    def local_loss(self, task, params, batch, client):
        start = copy.deepcopy(client.broadcast["params"])
        return task.loss(params, batch) + 0.05 * sum(((p - start[name]) ** 2).sum() for name, p in params.items())


class PullsToParameter(FedAvg):
    def local_gradient(self, grad, params, client):
        pulls = {name: nn.Parameter(p, requires_grad=False) for name, p in client.broadcast["params"].items()}
        return {name: g + 0.1 * pulls[name] for name, g in grad.items()}


class PullsByList(FedAvg):
    def local_loss(self, task, params, batch, client):
        largest = max(max(row) for row in client.broadcast["params"]["1.weight"].tolist())
        return task.loss(params, batch) * (1 + 5 * largest)


class PullsToData(FedAvg):
    def local_loss(self, task, params, batch, client):
        start = client.broadcast["params"]
        return task.loss(params, batch) + 0.05 * sum(((p - start[name].data) ** 2).sum() for name, p in params.items())


@pytest.mark.filterwarnings("ignore:.*one at a time")
@pytest.mark.parametrize("algorithm", [PullsToNumPy, PullsToCopy, PullsToParameter, PullsByList, PullsToData])
def test_hooks_that_read_what_everybody_downloads_by_other_ways_read_that_of_every_round(
    tmp_path: Path, algorithm
) -> None:
    found = [losses(tmp_path, engine, algorithm=algorithm, rounds=3) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_what_to_write_instead_of_data_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"PullsToData cannot be vectorized .* \.data \(write \.detach\(\)\)"):
        losses(tmp_path, "cohort", algorithm=PullsToData, rounds=1)


class StartsFromCopy(FedAvg):
    def local_start(self, client):
        return copy.deepcopy(client.broadcast["params"])


class ScaledByDownload(FedAvg):
    def client_update(self, params, client, work):
        start = client.broadcast["params"]
        size = float(start["1.weight"].norm())
        return {"params": {name: (p - start[name]) / (1 + size) for name, p in params.items()}}, {}


@pytest.mark.filterwarnings("ignore:.*one at a time")
@pytest.mark.parametrize("algorithm", [StartsFromCopy, ScaledByDownload])
def test_hooks_that_read_downloads_may_be_of_clients_with_different_ones(tmp_path: Path, algorithm) -> None:
    settings = {"protocol": {"name": "buffered", "buffer_size": 3}, "fleet": "fedscale", "rounds": 3}
    found = [losses(tmp_path, engine, algorithm=algorithm, **settings) for engine in ENGINES]
    np.testing.assert_allclose(*found, rtol=1e-9)
