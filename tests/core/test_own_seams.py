"""Own code at the seams of the engines: the same on both, or a sentence."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import config, losses
from torch import nn
from torch.nn import functional as F

import fedarena
from fedarena.algorithms import Ditto, FedAvg, LocalHead, QFedAvg
from fedarena.core.errors import BadInputError
from fedarena.models.tasks.classification import Classification
from fedarena.runs.run import start_run
from fedarena.simulate import Selector
from fedarena.transforms import Aggregator, Partial, Transform
from fedarena.transforms.aggregators import Mean


def both(tmp_path: Path, **settings):
    """The losses of a run on both engines, and the log of the one that trains many clients at once."""
    found = []
    for name in ("cohort", "reference"):
        always = {
            "algorithm": "fedavg",
            "rounds": 3,
            "local.batch_size": 16,
            "engine": {"name": name, "dtype": "float64"},
        }
        run = start_run(config(name=name, **(always | settings)), tmp_path)
        found.append([loss for loss in run.rounds["train_loss"].to_pylist() if loss is not None])
    np.testing.assert_allclose(*found, rtol=1e-9)
    return (tmp_path / "cohort" / "log.txt").read_text()


class WritesToACopy(FedAvg):
    def local_loss(self, task, params, batch, client):
        out = task.predict(params, batch)
        shifted = out * 1.0
        shifted -= torch.arange(10, dtype=out.dtype)
        return F.cross_entropy(shifted, batch["y"]) + (out**2).mean()


class OtherOrder(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: grad[name] for name in reversed(list(grad))}


class TwoAlike(nn.Sequential):
    def __init__(self, spec):
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


class StateInAnotherOrder(FedAvg):
    def client_init(self, broadcast):
        params = broadcast["params"]
        zeros, ones = ({name: torch.full_like(p, value) for name, p in params.items()} for value in (0.0, 1.0))
        return {"a": zeros, "b": ones}

    def local_gradient(self, grad, params, client):
        return {name: g + 0.05 * client.state["a"][name] - 0.001 * client.state["b"][name] for name, g in grad.items()}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        b = {name: t + 1 for name, t in client.state["b"].items()}
        return update, {"b": b, "a": {name: 0.5 * t + update["params"][name] for name, t in client.state["a"].items()}}


@pytest.mark.parametrize(
    "settings", [{"algorithm": WritesToACopy}, {"algorithm": OtherOrder, "model": {"name": TwoAlike}}]
)
def test_the_same_on_both_engines(tmp_path: Path, settings) -> None:
    both(tmp_path, **settings)


class NoisyOwnModels(FedAvg):
    """Every client's own model is the global one with noise of its own."""

    def personal_models(self, client):
        params = client.broadcast["params"]
        return [{name: p + 0.1 * client.job.normal(name, p) * client.job.round for name, p in params.items()}]


def test_own_personal_models_know_client_and_round(tmp_path: Path) -> None:
    runs = []
    for name in ("cohort", "reference"):
        engine = {"name": name, "dtype": "float64"}
        settings = {"algorithm": NoisyOwnModels, "rounds": 2, "evaluation.every": 1, "local.lr": 1e-9, "engine": engine}
        runs.append(start_run(config(name=name, **settings), tmp_path))
    losses = [run.clients.to_pandas().pivot(index="client", columns="round", values="personal_loss") for run in runs]
    np.testing.assert_allclose(*losses, rtol=1e-9)
    # The model stays, so that only the noise changes from round to round; in round 0 there is none.
    moved = (losses[0][2] - losses[0][0]) / (losses[0][1] - losses[0][0])
    assert (losses[0][1] != losses[0][0]).all()
    assert not np.allclose(moved, moved.iloc[0], rtol=0.05)


def test_states_in_another_order_when_cohorts_grow(tmp_path: Path) -> None:
    growing = {
        "fleet": {"name": "uniform", "seconds_per_sample": 0.1},
        "protocol": "synchronous",
        "clock": {"crash_rate": 0.6},
        "cohort": 8,
        "rounds": 8,
    }
    both(tmp_path, algorithm=StateInAnotherOrder, **growing)


class ClipsByDecision(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        norm = torch.sqrt(sum((u**2).sum() for u in update["params"].values()))
        if norm > 0.1:
            update = {"params": {name: 0.1 * u / norm for name, u in update["params"].items()}}
        return update, state


def test_an_update_that_cannot_be_vectorized_is_computed_one_at_a_time(tmp_path: Path) -> None:
    assert "client_update of ClipsByDecision cannot be vectorized" in both(tmp_path, algorithm=ClipsByDecision)


class Margins(Classification):
    def losses(self, outputs, batch):
        right = F.one_hot(batch["y"], outputs.shape[-1])
        return F.cross_entropy(outputs - 0.1 * right, batch["y"], reduction="none")


def test_a_loss_of_an_own_task_that_cannot_be_vectorized_is_not_the_algorithms(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"the loss of the task Margins cannot .*; test_own_seams.py, line \d+\)"):
        start_run(config(task=Margins, rounds=1), tmp_path)


class TwoPasses(FedAvg):
    def local_loss(self, task, params, batch, client):
        one, two = (task.predict(params, batch) for _ in range(2))
        return F.cross_entropy(one, batch["y"]) + 10 * ((one - two) ** 2).mean()


class OnePass(FedAvg):
    def local_loss(self, task, params, batch, client):
        one = task.predict(params, batch)
        return F.cross_entropy(one, batch["y"]) + 10 * ((one - one) ** 2).mean()


def with_dropout(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))


def test_every_pass_through_the_model_drops_something_else(tmp_path: Path) -> None:
    both(tmp_path / "two", algorithm=TwoPasses, model={"name": with_dropout})
    both(tmp_path / "one", algorithm=OnePass, model={"name": with_dropout})
    two, one = (fedarena.load(tmp_path / name / "cohort").rounds["train_loss"][1].as_py() for name in ("two", "one"))
    assert two > one + 0.01


class OwnGenerator(FedAvg):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def local_loss(self, task, params, batch, client):
        share = self.generator.beta(0.4, 0.4)
        mixed = {**batch, "x": share * batch["x"] + (1 - share) * batch["x"].flip(0)}
        return task.loss(params, mixed)


class Counts(FedAvg):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def local_gradient(self, grad, params, client):
        self.calls += 1
        return grad


class LeavesOut(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: g for name, g in grad.items() if name.endswith("weight")}


class Invents(FedAvg):
    def local_gradient(self, grad, params, client):
        return {**grad, "nothing": next(iter(grad.values()))}


class LossOfEverySample(FedAvg):
    def local_loss(self, task, params, batch, client):
        return F.cross_entropy(task.predict(params, batch), batch["y"], reduction="none")


class NormalizedWeights(FedAvg):
    def client_weight(self, work):
        return work.samples / work.samples.sum()


class PlainPythonWeights(FedAvg):
    def client_weight(self, work):
        return min(work.samples, 50)


class ClipsAllTogether(Transform):
    def at_client(self, rows, kept, server):
        params = rows.update["params"]
        norm = torch.sqrt(sum((t**2).sum() for t in params.values()))
        return rows.update | {
            "params": {name: t * torch.clamp(0.3 / norm, max=1.0) for name, t in params.items()}
        }, kept


class MeansOfParts(Aggregator):
    def add_up(self, rows):
        return Partial({"params": {name: t.mean(0) for name, t in rows.update["params"].items()}})

    def finish(self, total):
        return {"params": total.tensors["params"]}


class StochasticDepth(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layer, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        if not (self.training and random.random() < 0.5):
            x = x + self.layer(x)
        return self.last(x)


class OwnGeneratorInside(StochasticDepth):
    def __init__(self, spec):
        super().__init__(spec)
        self.generator = np.random.default_rng(0)

    def forward(self, x):
        scale = self.generator.random() if self.training else 1.0
        return self.last(self.layer(x.flatten(1)) * scale)


class CentredWhereItSaturates(StochasticDepth):
    def forward(self, x):
        hidden = torch.tanh(self.layer(x.flatten(1)))
        return self.last(hidden - hidden.mean(0))


class CappedWeights(FedAvg):
    def client_weight(self, work):
        return np.minimum(work.samples, 2 * np.median(work.samples))


def lengths(rows):
    return sum(u.flatten(1).square().sum(1) for u in rows.update["params"].values()).sqrt()


def along(t, like):
    return t.view(-1, *[1] * (like.dim() - 1))


class ClipsToTheMean(Transform):
    def at_client(self, rows, kept, server):
        factors = (1.5 * lengths(rows).mean() / lengths(rows)).clamp(max=1)
        return {"params": {name: u * along(factors, u) for name, u in rows.update["params"].items()}}, kept


class PlainMeanOfParts(Aggregator):
    def add_up(self, rows):
        return Partial({"params": {name: u.mean(0) for name, u in rows.update["params"].items()}}, {"parts": 1.0})

    def finish(self, total):
        return {"params": {name: u / total.numbers["parts"] for name, u in total.tensors["params"].items()}}


class LeavesOutliersOut(Aggregator):
    def add_up(self, rows):
        far = lengths(rows)
        weights = torch.tensor(rows.weights).to(far) * (far <= 1.5 * far.median())
        added = {name: (along(weights, u) * u).sum(0) for name, u in rows.update["params"].items()}
        return Partial({"params": added}, {"weight": float(weights.sum())})

    def finish(self, total):
        return {"params": {name: u / total.numbers["weight"] for name, u in total.tensors["params"].items()}}


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"algorithm": OwnGenerator},
            r"OwnGenerator\.local_loss remembers something between its calls .*, or has a gen",
        ),
        ({"algorithm": Counts}, r"Counts\.local_gradient remembers something"),
        ({"algorithm": LeavesOut}, r"local_gradient of LeavesOut gives no gradient of '.*bias'; give zeros"),
        ({"algorithm": Invents}, "gives a gradient of 'nothing', which is no parameter"),
        ({"algorithm": LossOfEverySample}, r"local_loss must give one number, .* not a tensor of shape \[3\]"),
        ({"algorithm": NormalizedWeights}, "gives a client another weight when others are with it"),
        ({"algorithm": PlainPythonWeights}, "is called with arrays that have an entry per client"),
        ({"transforms": [ClipsAllTogether]}, r"ClipsAllTogether\.at_client gives a client another update when others"),
        ({"aggregator": MeansOfParts, "algorithm": "fedavg"}, "MeansOfParts comes to something else when updates are"),
        ({"algorithm": CappedWeights}, "gives a client another weight when others are with it"),
        ({"transforms": [ClipsToTheMean]}, r"ClipsToTheMean\.at_client gives a client another update when others"),
        ({"aggregator": PlainMeanOfParts, "algorithm": "fedavg"}, "PlainMeanOfParts comes to something else when"),
        ({"aggregator": LeavesOutliersOut, "algorithm": "fedavg"}, "LeavesOutliersOut comes to something else when"),
        ({"model": {"name": StochasticDepth}}, "draws random numbers from the global generator of NumPy or Python"),
        ({"model": {"name": OwnGeneratorInside}}, "puts out something else when it is called again"),
        ({"model": {"name": CentredWhereItSaturates}}, "depends on the other samples in the batch"),
    ],
)
def test_what_would_be_wrong_is_refused(tmp_path: Path, engine, parts, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(engine=engine, **parts), tmp_path)
    assert not (tmp_path / "small").exists()


class HalfBroadcast(FedAvg):
    def broadcast(self, state):
        return {"params": {name: 0.5 * p for name, p in state["params"].items()}}

    def evaluation_params(self, state):
        assert self.horizon == 3
        return super().evaluation_params(state)


class IntegerBuffer(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.register_buffer("places", torch.arange(64))
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1)[:, self.places])


def test_the_model_that_is_given_is_the_one_that_is_scored(tmp_path: Path) -> None:
    run = start_run(config(algorithm=HalfBroadcast, rounds=3), tmp_path)
    state = fedarena.load(run.path)
    again = start_run(config(algorithm="fedavg", rounds=1, weights=str(run.path), name="again"), tmp_path)
    assert again.rounds["loss"][0].as_py() == pytest.approx(run.summary["final"]["loss"], rel=1e-6)
    weight = state.model().state_dict()["1.weight"]
    assert torch.equal(weight, state.state_dict()["1.weight"])


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_buffers_of_whole_numbers(tmp_path: Path, algorithm) -> None:
    run = start_run(config(model={"name": IntegerBuffer}, algorithm=algorithm, rounds=2), tmp_path)
    client = {"client": fedarena.load(run.path).clients["client"][0].as_py()} if algorithm == "ditto" else {}
    assert fedarena.load(run.path).model(**client).state_dict()["places"].dtype == torch.int64


class DrawingServer(FedAvg):
    def server_step(self, state, mean_update, round):
        stepped = super().server_step(state, mean_update, round)
        return {**stepped, "params": {n: p + 0.01 * float(np.random.rand()) for n, p in stepped["params"].items()}}


def test_whatever_the_server_draws_from_gives_the_same_bits_twice(tmp_path: Path) -> None:
    one, two = (start_run(config(algorithm=DrawingServer, rounds=3), tmp_path / name) for name in ("one", "two"))
    assert one.rounds.equals(two.rounds)


class DrawingSelector(Selector):
    def select(self, number, candidates, round):
        return np.random.choice(candidates.clients, number, replace=False)


def test_a_selector_that_draws_from_a_global_generator_gives_the_same_bits_twice(tmp_path: Path) -> None:
    one, two = (start_run(config(selector=DrawingSelector, rounds=4), tmp_path / name) for name in ("one", "two"))
    assert one.rounds.equals(two.rounds)
    assert len(set(one.rounds["train_loss"].to_pylist())) == 5


class SendsWholeNumbers(FedAvg):
    """A number of steps, which the server divides by; clients count by fractions."""

    def client_weight(self, work):
        return work.samples / 1000

    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {**update, "taken": {"steps": torch.tensor(1) * work.steps, "two": torch.tensor(2)}}, state

    def server_step(self, state, update, round):
        assert update["taken"]["two"] == 2
        moved = {name: p / update["taken"]["steps"] for name, p in update["params"].items()}
        return super().server_step(state, {**update, "params": moved}, round)


def test_whole_numbers_are_weighed_like_others(tmp_path: Path) -> None:
    both(tmp_path, algorithm={"name": SendsWholeNumbers})


class WeighsByInput(Classification):
    def losses(self, outputs, batch):
        return super().losses(outputs, batch) * batch["x"].flatten(1).norm(dim=1)


def test_a_loss_may_depend_on_inputs(tmp_path: Path) -> None:
    """Of a constant answer, nobody can say how good it is then."""
    both(tmp_path, task={"name": WeighsByInput, "metrics": ["accuracy"], "lead": "loss"})
    assert fedarena.load(tmp_path / "cohort").summary["baseline"] is None


class SendsMore(FedAvg):
    """Sends a group of its own beside the change of the model."""

    def __init__(self, *, group: str = "more", dtype: str = "float32"):
        super().__init__()
        self.group, self.dtype = group, dtype

    def client_update(self, params, client, work):
        update, kept = super().client_update(params, client, work)
        return {**update, self.group: {"x": torch.ones(2, dtype=getattr(torch, self.dtype))}}, kept

    def server_step(self, state, mean_update, round):
        assert mean_update[self.group]["x"].shape == (2,)
        return super().server_step(state, mean_update, round)


_POISSON = {"privacy": {"name": "gaussian", "noise_multiplier": 1.0}, "selector": "poisson"}


@pytest.mark.parametrize("dtype", ["int64", "bool"])
@pytest.mark.parametrize(
    "settings",
    [
        _POISSON,
        {"transforms": [{"name": "clip", "groups": "all"}]},
        {
            "privacy": {"name": "correlated_gaussian", "noise_multiplier": 1.0},
            "selector": {"name": "cyclic", "groups": 2},
        },
        {
            "privacy": {"name": "distributed_gaussian", "noise_multiplier": 1.0},
            "selector": "shuffled",
            "secure_aggregation": "bonawitz",
        },
    ],
    ids=["gaussian", "clip", "correlated", "distributed"],
)
def test_whole_numbers_that_cannot_be_shortened_have_a_sentence(tmp_path: Path, dtype, settings) -> None:
    with pytest.raises(BadInputError, match="its clients send more/x as whole numbers, which cannot be shortened"):
        start_run(config(algorithm={"name": SendsMore, "dtype": dtype}, **settings), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("group", "settings", "sentence"),
    [
        ("verdict", {}, "SendsMore calls a group of its update 'verdict'.*choose another name"),
        ("sent", _POISSON, "SendsMore calls a group of its update 'sent'"),
        ("packed", {"transforms": ["top_k"]}, "SendsMore calls a group of its update 'packed'"),
        ("clipping", _POISSON, "call a group of their update 'clipping'"),
    ],
)
def test_groups_that_mean_something_else_on_their_way_have_a_sentence(tmp_path, group, settings, sentence) -> None:
    with pytest.raises(BadInputError, match=sentence):
        start_run(config(algorithm={"name": SendsMore, "group": group}, **settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_groups_may_have_any_name_that_nobody_else_uses(tmp_path: Path) -> None:
    start_run(config(algorithm={"name": SendsMore, "group": "sent"}, rounds=2), tmp_path)


@pytest.mark.filterwarnings("ignore:Privacy")
def test_local_noise_keeps_the_precision_of_every_group(tmp_path: Path) -> None:
    settings = {"algorithm": {"name": SendsMore, "dtype": "float64"}, "privacy": "local_laplace", "rounds": 2}
    assert start_run(config(**settings), tmp_path).summary["status"] == "finished"


def test_local_noise_does_not_hide_how_much_is_sent(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="does not fit FedKD: how much its clients send tells what they learned"):
        start_run(config(algorithm="fedkd", privacy="local_laplace"), tmp_path)


class LossByOption(FedAvg):
    def __init__(self, *, smooth: bool = True):
        super().__init__()
        if smooth:
            self.local_loss = self._smooth

    def _smooth(self, task, params, batch, client):
        return F.cross_entropy(task.predict(params, batch), batch["y"], label_smoothing=0.2)


class ScaleByOption(Transform):
    def __init__(self, *, factor: float = 0.5):
        super().__init__()
        self.at_client = lambda rows, kept, server: (rows.update, kept)


class ConcludesInItself(Mean):
    def __init__(self):
        super().__init__()
        self.conclude = super().conclude


class FirstComeByOption(Selector):
    def __init__(self):
        self.select = lambda number, candidates, round: candidates.everybody()[:number]


@pytest.mark.parametrize(
    ("settings", "hook"),
    [
        ({"algorithm": LossByOption}, "LossByOption sets self.local_loss"),
        ({"algorithm": LossByOption, "privacy": {"name": "dp_sgd", "noise_multiplier": 1.0}}, "sets self.local_loss"),
        ({"transforms": [ScaleByOption]}, "ScaleByOption sets self.at_client"),
        ({"aggregator": ConcludesInItself}, "ConcludesInItself sets self.conclude"),
        ({"selector": FirstComeByOption}, "FirstComeByOption sets self.select"),
    ],
)
@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_hook_that_a_part_sets_on_itself_is_refused(tmp_path: Path, settings, hook: str, engine: str) -> None:
    with pytest.raises(BadInputError, match=hook):
        start_run(config(**{"algorithm": "fedavg", "rounds": 1, **settings, "engine": engine}), tmp_path)


def test_an_option_may_leave_a_hook_as_the_class_has_it(tmp_path: Path) -> None:
    both(tmp_path, algorithm={"name": LossByOption, "smooth": False})


class OwnLoop(FedAvg):
    def train(self, client, model, data):
        for batch in data:
            model.zero_grad()
            F.cross_entropy(model(batch["x"]), batch["y"]).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad


class HalfWay(FedAvg):
    def client_init(self, broadcast):
        return {"own": broadcast["params"]}

    def local_start(self, client):
        return {name: (p + client.state["own"][name]) / 2 for name, p in client.broadcast["params"].items()}

    def client_update(self, params, client, work):
        update, _ = super().client_update(params, client, work)
        return update, {"own": params}


class HalfWayInALoop(HalfWay, OwnLoop):
    pass


class HeadInALoop(OwnLoop, LocalHead):
    pass


@pytest.mark.parametrize(("loop", "plain"), [(HalfWayInALoop, HalfWay), (HeadInALoop, "local_head")])
@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_an_own_loop_begins_where_local_start_says(tmp_path: Path, loop, plain, engine: str) -> None:
    settings = {"rounds": 3, "cohort": 12, "local.lr": 0.1, "local.batch_size": 16}
    found = [losses(tmp_path, engine, name, algorithm=one, **settings) for name, one in (("a", loop), ("b", plain))]
    np.testing.assert_allclose(*found, rtol=1e-9)


class TwoModelsInALoop(OwnLoop, Ditto):
    pass


def test_an_own_loop_trains_one_model(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"TwoModelsInALoop\.train gets one model, and local_start gives 'global/"):
        start_run(config(algorithm=TwoModelsInALoop, rounds=1), tmp_path)


class OwnQFedAvg(QFedAvg):
    pass


class TimesTheLossAtTheStart(FedAvg):
    needs_start_loss = True

    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {"params": {name: work.start_loss * u for name, u in update["params"].items()}}, state


@pytest.mark.parametrize("algorithm", [OwnQFedAvg, TimesTheLossAtTheStart])
def test_an_own_method_may_ask_for_the_loss_at_the_start(tmp_path: Path, algorithm) -> None:
    both(tmp_path, algorithm=algorithm)


class TrainsForAWhile(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: torch.where(client.job.step <= 3, g, 0 * g) for name, g in grad.items()}


class SmallerAndSmaller(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: 0.7**client.job.step * g / client.job.step.clamp(min=1) for name, g in grad.items()}


@pytest.mark.parametrize("algorithm", [TrainsForAWhile, SmallerAndSmaller])
def test_the_number_of_a_step_is_a_tensor_on_both_engines(tmp_path: Path, algorithm) -> None:
    assert "cannot be vectorized" not in both(tmp_path, algorithm=algorithm, **{"local.epochs": 3})
