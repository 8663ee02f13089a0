"""Losses, models and metrics that strangers wrote the obvious way: padding cannot reach them, on either engine."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logistic_clients import flat, logistic_simulation
from small_runs import config, losses
from torch import nn
from torch.nn import functional as F

import fedarena
from fedarena.algorithms import Ditto, FedAvg
from fedarena.core.errors import BadInputError
from fedarena.metrics import Metric, MetricInfo
from fedarena.metrics.totals import MetricStates, Totals
from fedarena.models import DataSpec, make_task
from fedarena.models.dropout import with_keyed_dropout
from fedarena.models.probes import check_scores_apart, counts_padding
from fedarena.models.tasks.classification import Classification
from fedarena.runs.run import Run, start_run
from fedarena.simulate import simulate
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine
from fedarena.transforms import Transform

NUMBERS = itertools.count()
SIZES = [3, 17, 8, 1, 30, 12, 6]


class PlainCrossEntropy(FedAvg):
    """All weights are 1, so it is federated averaging."""

    def local_loss(self, task, params, batch, client):
        weight = torch.ones(3, dtype=torch.float64)
        return F.cross_entropy(task.predict(params, batch), batch["y"], weight=weight)


class Proximal(FedAvg):
    """Looks at no sample itself."""

    def local_loss(self, task, params, batch, client):
        start = client.broadcast["params"]
        distance = sum(((p - start[name]) ** 2).sum() for name, p in params.items())
        return super().local_loss(task, params, batch, client) + 0.1 * distance


class WithinBatch(FedAvg):
    """Outputs of a batch are pushed apart, so that its size and all of its samples matter."""

    def local_loss(self, task, params, batch, client):
        outputs = task.predict(params, batch)
        apart = torch.exp(-torch.cdist(outputs, outputs.detach()).square()).mean()
        return F.cross_entropy(outputs, batch["y"]) + apart + 0.01 * len(batch["y"])


class Augmented(FedAvg):
    """Changes the batch and hands it on."""

    def local_loss(self, task, params, batch, client):
        return task.loss(params, {**batch, "x": batch["x"] * 1.5})


class OwnDitto(Ditto):
    """A method with two models, and a loss that looks at samples."""

    def local_loss(self, task, params, batch, client):
        return super().local_loss(task, params, batch, client) * (1 + 0.1 * batch["x"].mean() ** 2)


def samples_of(sizes: list[int]):
    generator = np.random.default_rng(0)
    return {
        f"c{i}": (generator.normal(size=(n, 5)) + i / 5, generator.integers(3, size=n)) for i, n in enumerate(sizes)
    }


def trained(federation, algorithm, engine, local):
    outcomes = list(simulate(logistic_simulation(federation, algorithm, local, engine)))
    losses = [outcome.row["train_loss"] for outcome in outcomes[1:]]
    return flat(outcomes[-1].snapshot.state["params"]), losses


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", [PlainCrossEntropy, Proximal, WithinBatch, Augmented, OwnDitto])
@pytest.mark.parametrize("batch_size", [5, 100])
def test_obvious_losses_are_the_same_on_both_engines(make_federation, algorithm, batch_size) -> None:
    federation = make_federation(samples_of(SIZES), 3)
    local = LocalTraining(epochs=2, batch_size=batch_size, lr=0.2, momentum=0.5)
    cohort, reference = (trained(federation, algorithm(), kind, local) for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(cohort[0], reference[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(cohort[1], reference[1], rtol=1e-10)


@pytest.mark.parametrize("kind", [CohortEngine, ReferenceEngine])
def test_cross_entropy_with_weights_of_1_is_federated_averaging(make_federation, kind) -> None:
    federation = make_federation(samples_of(SIZES), 3)
    local = LocalTraining(epochs=2, batch_size=5, lr=0.2)
    own, ours = (trained(federation, algorithm(), kind, local)[0] for algorithm in (PlainCrossEntropy, FedAvg))
    np.testing.assert_allclose(own, ours, rtol=0, atol=1e-10)


@given(sizes=st.lists(st.integers(1, 12), min_size=4, max_size=9), batch_size=st.integers(1, 13))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_sizes(make_federation, sizes, batch_size) -> None:
    federation = make_federation(samples_of(sizes), 3, name=f"number {next(NUMBERS)}")
    local = LocalTraining(epochs=2, batch_size=batch_size, lr=0.2)
    cohort, reference = (trained(federation, WithinBatch(), kind, local) for kind in (CohortEngine, ReferenceEngine))
    np.testing.assert_allclose(cohort[0], reference[0], rtol=0, atol=1e-10)


def task_of(module, kind=None):
    spec = DataSpec("classification", 3, (5,))
    return make_task(module, spec) if kind is None else kind(module, spec)


class CountsAll(Classification):
    """Leaves padding out of the sum, but not out of the number of samples."""

    def mean(self, values, batch):
        return (values * batch.get("mask", torch.ones_like(values))).sum() / len(values)


class SumsToOne(Classification):
    """The loss of a sample depends on the others."""

    def losses(self, outputs, batch):
        losses = super().losses(outputs, batch)
        return losses / losses.sum()


class Centred(nn.Linear):
    """Takes the mean of the batch away while it is trained."""

    def forward(self, x):
        return super().forward(x - x.mean(0) if self.training else x)


class AboveTheMedian(nn.Linear):
    """Keeps what is above the median of the batch while it is trained."""

    def forward(self, x):
        h = super().forward(x)
        return torch.where(h > h.median(), h, 0 * h) if self.training else h


class ByTheLargest(nn.Linear):
    """Divides features by the largest of the batch, if that is above 1."""

    def forward(self, x):
        return super().forward(x / x.abs().amax(0).clamp(min=1) if self.training else x)


class Capped(Classification):
    """Losses beyond twice the median of the batch count no more than that."""

    def losses(self, outputs, batch):
        losses = super().losses(outputs, batch)
        return torch.minimum(losses, 2 * losses.median().detach()) if self.module.training else losses


class GradientByTheBatch(nn.Linear):
    """A gradient that depends on the number of samples, of a loss that does not."""

    def forward(self, x):
        h = super().forward(x)
        return h.detach() + (h - h.detach()) / len(h)


class SelfContained(nn.Module):
    """Whatever a model may do with a sample by itself, also such that cannot be computed for all numbers."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(2, 4), nn.LayerNorm(5), nn.Linear(9, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        looked_up = self.table(x[:, 0].long())  # which 100 is too large for
        return self.last(torch.cat([looked_up, self.drop(self.norm(x).exp())], 1))


class Overflowing(nn.Linear):
    def forward(self, x):
        return super().forward(x.exp() - 1)


def test_probes_see_what_counts_padding_of_some_kinds_only() -> None:
    for module in (AboveTheMedian(5, 3), ByTheLargest(5, 3), GradientByTheBatch(5, 3)):
        assert counts_padding(task_of(module))
    assert counts_padding(task_of(nn.Linear(5, 3), Capped))
    for module in (SelfContained(), Overflowing(5, 3)):
        assert not counts_padding(task_of(with_keyed_dropout(module)))


class AlwaysByTheLargest(nn.Linear):
    def forward(self, x):
        return super().forward(x / x.abs().amax(0).clamp(min=1))


class OfHardSamples(Classification):
    """Easy samples of a batch count nothing, also when a model is scored."""

    def losses(self, outputs, batch):
        losses = super().losses(outputs, batch)
        return torch.where(losses >= 0.2 * losses.max(), losses, 0 * losses)


def test_scores_that_depend_on_some_neighbours_only_are_refused() -> None:
    with pytest.raises(BadInputError, match="puts out for a sample depends on the other samples in the batch"):
        check_scores_apart(task_of(AlwaysByTheLargest(5, 3)))
    with pytest.raises(BadInputError, match="gives a sample a state that depends on the other samples in the batch"):
        check_scores_apart(task_of(nn.Linear(5, 3), OfHardSamples))
    check_scores_apart(task_of(SelfContained()))


def test_probes_leave_a_model_as_it_is() -> None:
    class RunningLargest(nn.Linear):
        def __init__(self):
            super().__init__(5, 3)
            self.register_buffer("largest", torch.zeros(()))

        def forward(self, x):
            self.largest.copy_(torch.maximum(self.largest, x.abs().max()))
            return super().forward(x)

    task = task_of(RunningLargest())
    counts_padding(task)
    check_scores_apart(task)
    assert task.module.largest <= 1


def test_a_capped_loss_is_the_same_on_both_engines(tmp_path: Path) -> None:
    found = [
        losses(tmp_path, engine, task=Capped, **{"local.batch_size": 16, "local.epochs": 2})
        for engine in ("cohort", "reference")
    ]
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_probes_see_what_counts_padding() -> None:
    assert not counts_padding(task_of(nn.Linear(5, 3)))
    assert not counts_padding(task_of(nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))))
    assert counts_padding(task_of(nn.Linear(5, 3), CountsAll))
    assert counts_padding(task_of(nn.Linear(5, 3), SumsToOne))
    assert counts_padding(task_of(Centred(5, 3)))


class AlwaysCentred(nn.Linear):
    """Takes the mean of the batch away, also when it is scored."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


def normalizes_batches(spec):
    return nn.Sequential(nn.Flatten(), AlwaysCentred(64, 10))


class MeanOfBatch(Metric):
    """One number for all."""

    predicts = ("classes",)
    info = MetricInfo("mean_of_batch", "mean of batch")

    def state(self, outputs, batch):
        return outputs.mean().expand(len(batch["y"]))


class OneState(MeanOfBatch):
    """Not even a number each."""

    def state(self, outputs, batch):
        return outputs.mean()


class Shares(Metric):
    """Of right answers, of wrong ones, of all: three numbers a sample."""

    predicts = ("classes",)
    info = MetricInfo("shares", "shares")

    def state(self, outputs, batch):
        right = (outputs.argmax(-1) == batch["y"]).double()
        return torch.stack([right, 1 - right, torch.ones_like(right)], -1)

    def value(self, state, count):
        return state[..., 0] / state[..., 2]


class OneShareForAll(Shares):
    """Spread over all clients if nobody looks."""

    def value(self, state, count):
        return state[..., 0].sum() / state[..., 2].sum()


class ClientsForNumbers(Shares):
    """Fits if there are three clients."""

    def value(self, state, count):
        right, wrong = state[0], state[1]
        return right / (right + wrong)


class RowsOnly(Shares):
    """Forgets that all clients together are one more state."""

    def value(self, state, count):
        return state[:, 0] / state[:, 2]


class OfTheBest(Shares):
    """Compares clients with each other."""

    def value(self, state, count):
        return state[..., 2] / state[..., 2].max()


def many_outputs(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"name": normalizes_batches}}, "puts out for a sample depends on the other samples in the batch"),
        ({"task": {"name": "classification", "metrics": [MeanOfBatch]}}, "MeanOfBatch gives a sample a state that"),
        ({"task": {"name": "classification", "metrics": [OneState]}}, "OneState must give a state for each of 5"),
        (
            {"task": {"name": "classification", "metrics": [OneShareForAll]}},
            r"The metric shares must give a value for every count: .* the shape \[\]",
        ),
        (
            {"task": {"name": "classification", "metrics": [ClientsForNumbers]}},
            "The metric shares must give a value for every count",
        ),
        ({"task": {"name": "classification", "metrics": [RowsOnly]}}, "RowsOnly cannot make values of states"),
        (
            {"task": {"name": "classification", "metrics": [OfTheBest]}},
            "OfTheBest makes another value of a client's state when there are others",
        ),
        ({"model": {"name": many_outputs}}, r"shape \[2, 12\], but \[2, 10\] is needed, a score for each of the 10"),
    ],
)
def test_what_couples_samples_or_has_too_many_outputs_is_refused(tmp_path: Path, parts, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(**parts), tmp_path)
    assert not (tmp_path / "small").exists()


def test_values_of_a_wrong_form_are_never_spread_over_clients() -> None:
    states = MetricStates(np.arange(3), np.ones(3), {"shares": np.ones((3, 3))})
    for kind, shown in ((Shares, None), (OneShareForAll, r"shape \[3\], its `value` made the shape \[\]")):
        totals = Totals([kind()])
        if shown is None:
            totals.add(states)
            assert totals.finish(3)[1]["shares"].values.tolist() == [1, 1, 1]
        else:
            with pytest.raises(BadInputError, match=shown):
                totals.add(states)


def centred_model(spec):
    return nn.Sequential(nn.Flatten(), Centred(64, 10))


def test_a_model_that_couples_samples_while_it_trains_is_the_same_on_both_engines(tmp_path: Path) -> None:
    found = []
    for name in ("cohort", "reference"):
        engine = {"name": name, "dtype": "float64"}
        run = start_run(config(name=name, model={"name": centred_model}, engine=engine, rounds=4), tmp_path)
        found.append(run.rounds["train_loss"].to_pylist()[1:])
    np.testing.assert_allclose(*found, rtol=1e-10)


class TorchNoise(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {"params": {name: u + torch.randn_like(u) for name, u in update["params"].items()}}, state


class NumpyNoise(FedAvg):
    def local_gradient(self, grad, params, client):
        return {name: g + float(np.random.rand()) for name, g in grad.items()}


class OwnGenerator(FedAvg):
    def local_start(self, client):
        generator = torch.Generator().manual_seed(0)
        return {
            name: p + torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for name, p in client.broadcast["params"].items()
        }


class NoisyTransform(Transform):
    def at_client(self, rows, state, server):
        update = {g: {n: t + torch.rand_like(t) for n, t in ts.items()} for g, ts in rows.update.items()}
        return update, state


@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"algorithm": TorchNoise},
            r"TorchNoise\.client_update draws .* of torch \(randn_like\).* client\.job\.normal",
        ),
        (
            {"algorithm": NumpyNoise},
            r"NumpyNoise\.local_gradient draws random numbers from the global generator of NumPy",
        ),
        ({"algorithm": OwnGenerator}, r"OwnGenerator\.local_start draws"),
        ({"transforms": [NoisyTransform]}, r"NoisyTransform\.at_client draws .* rows\.context\.normal"),
    ],
)
def test_global_generators_are_refused_in_hooks(tmp_path: Path, engine, parts, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(engine=engine, **parts), tmp_path)


class NoisyServer(FedAvg):
    def server_step(self, state, mean_update, round):
        stepped = super().server_step(state, mean_update, round)
        return {**stepped, "params": {n: p + 0.01 * torch.randn_like(p) for n, p in stepped["params"].items()}}


def test_a_server_that_draws_gives_the_same_bits_twice(tmp_path: Path) -> None:
    one, two = (start_run(config(algorithm=NoisyServer, rounds=3), tmp_path / name) for name in ("one", "two"))
    assert one.rounds.equals(two.rounds)


class SecondGroup(FedAvg):
    """Keeps the model of the last round, and scores the mean of the two."""

    def server_init(self, params):
        return {"params": params, "last": params}

    def broadcast(self, state):
        return {"params": state["params"]}

    def evaluation_params(self, state):
        return {name: (p + state["last"][name]) / 2 for name, p in state["params"].items()}


class Remembers(SecondGroup):
    def server_step(self, state, mean_update, round):
        return {**super().server_step(state, mean_update, round), "last": state["params"]}


class Forgets(SecondGroup):
    def server_step(self, state, mean_update, round):
        return {"params": super().server_step(state, mean_update, round)["params"]}


@pytest.mark.parametrize("kind", [CohortEngine, ReferenceEngine])
def test_another_model_than_the_broadcast_one_is_scored(make_federation, kind) -> None:
    federation = make_federation(samples_of(SIZES), 3)
    local = LocalTraining(epochs=1, batch_size=5, lr=0.2)
    simulation = logistic_simulation(federation, Remembers(), local, kind)
    outcomes = list(simulate(simulation))
    states = [outcome.snapshot.state for outcome in outcomes]
    assert list(states[-1]) == ["params", "last"]
    np.testing.assert_array_equal(flat(states[-1]["last"]), flat(states[-2]["params"]))
    mean = {name: (p + states[-2]["params"][name]) / 2 for name, p in states[-1]["params"].items()}
    scores = simulation.engine.evaluate(mean, simulation.evaluation_clients, "test")
    assert outcomes[-1].row["loss"] == scores.metrics["loss"].total


def test_subclasses_keep_their_groups_and_a_lost_one_is_noticed(make_federation, tmp_path: Path) -> None:
    run = start_run(config(algorithm=SecondGroup, rounds=2), tmp_path)
    assert run.status == "finished"
    with pytest.raises(BadInputError, match=r"server_step of Forgets loses last of the server's state; .*\*\*state"):
        start_run(config(algorithm=Forgets, rounds=2, name="forgets"), tmp_path)


def test_the_exported_model_is_the_one_that_was_scored(tmp_path: Path) -> None:
    with Run.create(config(algorithm=Remembers, rounds=3), tmp_path) as run:
        before = run.advance(2)._snapshot.state["params"]
        after = run.advance()._snapshot.state["params"]
        opened = run.model().state_dict()
    exported = fedarena.load(tmp_path / "small").model().state_dict()
    for name, p in after.items():
        torch.testing.assert_close(opened[name], (p + before[name]) / 2)
        assert torch.equal(exported[name], opened[name])
        assert not torch.equal(p, before[name])


class Slashed(FedAvg):
    def client_init(self, broadcast):
        return {"my/state": broadcast["params"]}


class CallsItCohort(FedAvg):
    def client_update(self, params, client, work):
        update, state = super().client_update(params, client, work)
        return {**update, "cohort": update["params"]}, state


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [(Slashed, "group of its clients' state 'my/state'"), (CallsItCohort, "group of its update 'cohort'")],
)
def test_groups_that_cannot_be_stored_or_sent_are_refused(tmp_path: Path, algorithm, message) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(algorithm=algorithm), tmp_path)


class WithWeights(Classification):
    """A batch may have more than inputs and labels."""

    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "weight_of": 1 + (made["y"] % 3).to(made["x"])}

    def losses(self, outputs, batch):
        return super().losses(outputs, batch) * batch["weight_of"]


def test_batches_may_have_more_columns(tmp_path: Path) -> None:
    found = [losses(tmp_path, engine, task=WithWeights) for engine in ("reference", "cohort")]
    np.testing.assert_allclose(*found, rtol=1e-9)


class Standardized(Classification):
    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "x": made["x"] / made["x"].max()}


class ByFrequency(WithWeights):
    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "weight_of": 1 / torch.bincount(made["y"], minlength=10)[made["y"]].to(made["x"])}


class Reversed(Classification):
    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "x": made["x"].flip(0)}


class NoisyBatches(Classification):
    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "x": made["x"] + torch.randn_like(made["x"])}


class CountedBatches(Classification):
    number = 0

    def batch(self, columns):
        self.number += 1
        made = super().batch(columns)
        return {**made, "x": made["x"] * self.number}


class OneNumber(Classification):
    def batch(self, columns):
        made = super().batch(columns)
        return {**made, "samples": torch.tensor(len(made["y"]))}


class CountedLosses(Classification):
    """Like a warm-up; a program of steps would always have the same number."""

    steps = 0

    def loss(self, params, batch):
        self.steps += 1
        return super().loss(params, batch) / (1 + 1 / self.steps)


class DecayOfModule(Classification):
    """The parameters that are trained are those that it is given."""

    def loss(self, params, batch):
        return super().loss(params, batch) + 0.01 * sum(p.square().sum() for p in self.module.parameters())


@pytest.mark.parametrize("engine", ["reference", "cohort"])
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Standardized, "something else of a sample when others are beside it"),
        (ByFrequency, "something else of a sample when others are beside it"),
        (Reversed, "something else of a sample when others are beside it"),
        (NoisyBatches, "another batch of the same samples when it is asked again"),
        (CountedBatches, "another batch of the same samples when it is asked again"),
        (OneNumber, "'samples' of shape \\[\\] of 5 samples"),
        (CountedLosses, "something else when it is called again with the same batch"),
        (DecayOfModule, "depends on the parameters that self.module has"),
    ],
)
def test_tasks_that_engines_would_train_differently_are_refused(tmp_path: Path, task, message, engine) -> None:
    with pytest.raises(BadInputError, match=message):
        start_run(config(task=task, rounds=1, engine=engine), tmp_path)


class OtherLabels(Classification):
    def targets(self, y):
        return (y.long() + 1) % 10


def test_what_knowing_nothing_scores_is_not_told_of_other_labels(tmp_path: Path) -> None:
    told = []
    for name, parts in (("usual", {}), ("other", {"task": OtherLabels})):
        run = start_run(config(rounds=1, name=name, **parts), tmp_path)
        told.append(json.loads((run.path / "summary.json").read_text())["baseline"])
    assert told[0]["metric"] == "accuracy"
    assert told[1] is None
