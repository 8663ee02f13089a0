"""Trials as lanes give what a run of each trial alone gives."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedarena
from fedarena.algorithms.fedavg import FedAvg
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, SourceSpec, TaskSpec
from fedarena.hpo.lanes import TrialCurves, train_in_blocks, train_trials, training, trials
from fedarena.hpo.lanes.curves import best_rounds
from fedarena.hpo.lanes.functions import LaneFunctions
from fedarena.metrics.totals import COUNT
from fedarena.models import DataSpec
from fedarena.runs.building import prepare
from fedarena.runs.config import resolve_settings
from fedarena.runs.observer import Observer
from fedarena.simulate import simulate
from fedarena.train import Groups
from fedarena.train.batches import count_processed

ROUNDS, FEATURES, CLASSES = 3, 5, 3
SAMPLES = (3, 9, 16, 20, 33, 40)  # that clients train on
METRICS = ("loss", "accuracy", "macro_f1", "f1_of_averages", "tail_recall")
Settings = dict[str, Any]


def with_dropout(spec: DataSpec, *, dropout: float = 0.0, hidden: int = 6) -> nn.Module:
    some = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, hidden), nn.ReLU(), *some, nn.Linear(hidden, spec.classes))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A run on six clients with 3 to 40 training samples of three classes."""
    path, random = tmp_path_factory.mktemp("lanes") / "made", np.random.default_rng(0)
    weights = random.normal(size=(FEATURES, CLASSES))

    def samples(count: int) -> dict[str, np.ndarray]:
        x = random.normal(size=(count, FEATURES)).astype(np.float32)
        return {"x": x, "y": (x @ weights + random.gumbel(size=(count, CLASSES))).argmax(1)}

    columns = {"x": ColumnSpec(dtype="float32", shape=(FEATURES,)), "y": ColumnSpec(dtype="int64", shape=())}
    task, source = TaskSpec(kind="classification", classes=CLASSES), SourceSpec(name="made", version=1, options={})
    with FederationWriter(path, name="made", task=task, columns=columns, source=source) as writer:
        for client, count in enumerate(SAMPLES):
            writer.add_client(str(client), train=samples(count), validation=samples(4 + client), test=samples(7))
    return {
        "federation": {"name": "store", "path": str(path)},
        "model": "logistic_regression",
        "task.metrics": METRICS[1:],
        "engine.dtype": "float64",
        "local.steps": 2,
        "local.batch_size": 8,
        "local.lr": 0.2,
        "cohort": 3,
    }


def alone(settings: Settings, rounds: int) -> dict[str, list[float]]:
    """The scores of one trial after every round, trained by itself."""
    found: dict[str, list[float]] = {}
    config = resolve_settings({**settings, "engine.name": "reference"}, {"rounds": rounds})
    experiment = prepare(config, Observer())
    federation, simulation = experiment.federation, experiment.simulation
    for outcome in simulate(simulation):
        params = simulation.algorithm.evaluation_params(outcome.snapshot.state)
        for part in ("train", "validation", "test") if outcome.snapshot.round else ():
            clients = federation.clients("train" if part == "train" else "all")
            for name, scores in simulation.engine.evaluate(params, clients, part).metrics.items():
                found.setdefault(f"{part}_{name}", []).append(scores.total)
    return found


def check(settings: Settings, each: list[Settings], rounds: int = ROUNDS) -> TrialCurves:
    """Every trial as a lane and by itself."""
    curves = train_trials(settings, each, rounds=rounds)
    assert curves.trials == tuple(each)
    for number, trial in enumerate(each):
        expected = alone({**settings, **trial}, rounds)
        assert set(curves.metrics) == set(expected)
        for name, values in expected.items():
            found = curves.metrics[name][number]
            np.testing.assert_allclose(found, values, rtol=0, atol=1e-10, err_msg=f"{trial}: {name}")
    return curves


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_drawn_trials_equal_runs_of_their_own(base: Settings, seed: int) -> None:
    random = np.random.default_rng(seed)

    def draw() -> Settings:
        return {
            "seed": int(random.integers(2)),
            "cohort": int(random.choice([2, 6])),
            "local.lr": float(10 ** random.uniform(-3, 0)),
            "local.weight_decay": float(random.choice([0.0, 0.01])),
            "local.momentum": float(random.choice([0.0, 0.9])),
            "local.steps": int(random.integers(1, 6)),
            "local.batch_size": int(random.choice([8, 64])),
            "algorithm.server_lr": float(random.choice([0.5, 1.0])),
        }

    check(base, [draw() for _ in range(6)])


def test_a_run_with_the_cohort_engine_says_the_same(base: Settings, tmp_path: Path) -> None:
    trial = {"local.lr": 0.3, "seed": 4}
    settings = {**base, **trial, "rounds": ROUNDS, "evaluation.every": 1, "evaluation.part": "validation"}
    result = fedarena.run(settings, runs_folder=tmp_path, progress=False)
    curves = train_trials(base, [trial], rounds=ROUNDS)
    for metric in METRICS:
        expected = result.rounds[metric].to_pylist()[1:]
        np.testing.assert_allclose(curves.metrics[f"validation_{metric}"][0], expected, rtol=0, atol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("algorithm", "each"),
    [
        ("fedprox", [{"algorithm.mu": 0.0}, {"algorithm.mu": 1.0, "algorithm.server_lr": 0.7}]),
        ("fedavgm", [{"algorithm.beta": 0.0}, {"algorithm.beta": 0.9, "algorithm.server_lr": 0.3}]),
        pytest.param(
            "fedadam", [{"algorithm.tau": 0.1}, {"algorithm.tau": 0.01, "algorithm.beta2": 0.5}], marks=pytest.mark.slow
        ),
        pytest.param("fedyogi", [{"algorithm.server_lr": 0.1}, {"algorithm.beta1": 0.5}], marks=pytest.mark.slow),
        pytest.param(
            "fedadagrad", [{"algorithm.server_lr": 0.1}, {"algorithm.server_lr": 0.2}], marks=pytest.mark.slow
        ),
        ("fednova", [{"local.momentum": 0.0}, {"local.momentum": 0.5, "local.steps": 4}]),
        ("minibatch_sgd", [{"algorithm.fraction": 0.3}, {"algorithm.fraction": 0.9, "local.lr": 0.1}]),
    ],
)
def test_algorithms(base: Settings, algorithm: str, each: list[Settings]) -> None:
    check({**base, "algorithm": algorithm}, each)


@pytest.mark.slow
def test_methods_side_by_side(base: Settings) -> None:
    check(base, [{"algorithm": "fedavgm"}, {"algorithm": "fedavg"}, {"algorithm": "fedadam"}])


@pytest.mark.slow
def test_models_of_different_form(base: Settings) -> None:
    each = [
        {"model": {"name": "mlp", "hidden": hidden}, "local.lr": lr, "local.optimizer": optimizer}
        for hidden, lr, optimizer in (
            ((7,), 0.1, "sgd"),
            ((7,), 0.4, "sgd"),
            ((4, 6), 0.1, "sgd"),
            ((7,), 0.01, "adam"),
        )
    ]
    check(base, each)


@pytest.mark.slow
def test_graphs(base: Settings) -> None:
    random = np.random.default_rng(0)
    labels, edges = random.integers(3, size=40), random.integers(40, size=(120, 2))
    features = random.normal(size=(40, 4)) + labels[:, None]
    clients, names = np.arange(40) % 3, [f"class {label}" for label in labels]
    graph = {"features": features, "edges": edges, "labels": names, "clients": clients}
    federation = fedarena.from_graph(**graph, train_fraction=0.5, validation_fraction=0.25)
    each = [
        {"local.lr": lr, "local.steps": steps, "model.dropout": share}
        for lr, steps, share in ((0.1, 2, 0.0), (0.5, 3, 0.5))
    ]
    store = {"name": "store", "path": str(federation.path)}
    check({**base, "federation": store, "model": "gcn", "cohort": 2}, each)


def test_dropout_differs_by_lane(base: Settings) -> None:
    each = [{"model.dropout": share, "local.lr": lr} for share in (0.0, 0.3, 0.5) for lr in (0.1, 0.5)]
    settings = {**base, "model": f"{__name__}:with_dropout"}
    check(settings, each)
    made = trials._make_trainer(settings, each, ROUNDS, training.all_rounds(ROUNDS), False, "cpu", 1)
    assert [len(block.trials) for block in made.blocks] == [6]


@pytest.mark.slow
def test_epochs_and_schedules(base: Settings) -> None:
    scheduled = {"client_lr_schedule": "cosine", "server_lr_schedule": {"name": "exponential", "decay": 0.5}}
    settings = {**base, **scheduled, "local.steps": None}
    check(settings, [{"local.epochs": 1}, {"local.epochs": 3, "cohort": 6}, {"local.epochs": 2}])


@pytest.mark.parametrize("selector", ["by_size", pytest.param({"name": "cyclic", "groups": 3}, marks=pytest.mark.slow)])
def test_selectors(base: Settings, selector: Any) -> None:
    check({**base, "selector": selector}, [{"seed": 5, "cohort": 2}])


@pytest.mark.slow
def test_all_clients_at_once(base: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU."""
    usual = training.LaneTrainer.__init__

    def together(self: Any, *arguments: Any) -> None:
        usual(self, *arguments, together=True)

    monkeypatch.setattr(training.LaneTrainer, "__init__", together)
    each = [
        {"seed": seed, "cohort": cohort, "local.steps": steps, "local.lr": lr}
        for seed, cohort in ((0, 3), (0, 6), (1, 2))
        for steps, lr in ((1, 0.5), (3, 0.2))
    ]
    curves = check(base, each)
    assert curves.steps[:, 0].tolist() == [3, 9, 6, 18, 2, 6]
    check({**base, "local.steps": None, "algorithm": "fedprox"}, [{"local.epochs": 2}, {"local.epochs": 1}])


def test_a_trial_that_diverges_disturbs_nobody(base: Settings) -> None:
    each = [{"local.lr": lr, "local.weight_decay": 0.5} for lr in (0.1, 1e200, 0.3)]
    curves = train_trials(base, each, rounds=4)
    calm = train_trials(base, [each[0], each[2]], rounds=4)
    assert np.isfinite(curves.losses[[0, 2]]).all()
    ended = int(np.isfinite(curves.losses[1]).argmin()) + 1  # the first round that was not finite
    assert 1 <= ended < 4
    assert not np.isfinite(curves.metrics["validation_loss"][1, ended - 1])
    for name, values in curves.metrics.items():
        np.testing.assert_allclose(values[[0, 2]], calm.metrics[name], rtol=0, atol=1e-10)
        assert np.isnan(values[1, ended:]).all()
        if not name.endswith("loss"):
            assert np.isnan(values[1, ended - 1])
    best = train_trials(base, [{"local.lr": 1e308, "local.weight_decay": 0.5}], rounds=4, best=True)
    assert np.isnan(best.metrics["test_accuracy"][0, best.best_rounds[0] == 0]).all()


def test_who_has_diverged_does_not_come_back(base: Settings) -> None:
    made = trials._make_trainer(base, [{}], ROUNDS, training.all_rounds(ROUNDS), False, "cpu", 1)
    functions = LaneFunctions(made.trials[0], made.hardware)
    best = {"loss": torch.tensor([2.0, 2.0]), "now": torch.zeros(2), "alive": torch.tensor([True, True])}
    for losses in ([torch.inf, 1.5], [1.0, 1.0]):
        sums = {"loss": 10 * torch.tensor(losses), COUNT: torch.tensor([10.0, 10.0])}
        best = functions.judge(best, {"sums": sums}, {})
    assert best["alive"].tolist() == [False, True]
    assert best["loss"].tolist() == [2.0, 1.0]
    assert best["now"].isnan().tolist() == [True, False]


def test_the_best_so_far(base: Settings) -> None:
    each = [{"local.lr": lr, "seed": 1} for lr in (0.001, 2.0, 8.0)]
    every = train_trials(base, each, rounds=12, note_rounds=range(13))
    best = train_trials(base, each, rounds=12, note_rounds=[0, 2, 5, 12], best=True)
    assert (np.diff(best.best_rounds, axis=1) >= 0).all()
    assert (best.best_rounds[:, -1] < 12).any(), "the last round should not be the best of all trials"
    losses = every.losses
    assert best.best_rounds[:, -1].tolist() == (losses.argmin(1) + 1).tolist()
    for name, values in best.metrics.items():
        np.testing.assert_allclose(values, every.best_so_far().metrics[name][:, [0, 2, 5, 12]], rtol=0, atol=1e-12)
    some = {name: values[:, [2, 12]] for name, values in every.metrics.items()}
    with pytest.raises(BadInputError, match="note every round, or train with best=True"):
        replace(every, note_rounds=np.array([2, 12]), metrics=some).best_so_far()


def test_blocks_can_be_kept_one_by_one(base: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    each = [{"local.lr": lr, "local.steps": steps} for lr in (0.1, 0.2, 0.3) for steps in (1, 2, 3)]
    whole = train_trials(base, each, rounds=2)
    monkeypatch.setattr(training, "_CACHE_BYTES", 1 << 12)
    told: list[tuple[int, int]] = []
    parts = list(train_in_blocks(base, each, rounds=2, progress=lambda done, of: told.append((done, of))))
    assert len(parts) > 2
    assert sorted(number for numbers, _ in parts for number in numbers) == list(range(len(each)))
    for numbers, curves in parts:
        assert curves.trials == tuple(each[number] for number in numbers)
        expected = whole.take(numbers)
        np.testing.assert_allclose(curves.losses, expected.losses, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(curves.steps, expected.steps)
    assert told[-1] == (18, 18)


def test_what_rounds_take(base: Settings) -> None:
    curves = train_trials(base, [{"local.steps": 7, "local.batch_size": 16, "cohort": 6}, {"cohort": 6}], rounds=2)
    parameters = FEATURES * CLASSES + CLASSES
    assert curves.model_bytes.tolist() == curves.upload_bytes.tolist() == [8 * parameters] * 2
    assert curves.cohorts.tolist() == [6, 6]
    assert curves.steps.tolist() == [[42, 42], [12, 12]]
    processed = [int(count_processed(np.array(SAMPLES), steps, size).sum()) for steps, size in ((7, 16), (2, 8))]
    assert curves.processed_samples.tolist() == [[number] * 2 for number in processed]


@pytest.mark.parametrize(
    ("change", "trial", "sentence"),
    [
        ({"algorithm": "scaffold"}, {}, "Scaffold cannot be lanes .* keep something between their rounds"),
        ({"algorithm": "qfedavg"}, {}, "needs the loss of every client before training"),
        ({"algorithm": "ditto"}, {}, "models of their own"),
        ({"selector": "oort"}, {}, "selector Oort"),
        ({"transforms": ["clip"]}, {}, "transforms=clip cannot be lanes"),
        ({"protocol": "deadline", "fleet": "uniform"}, {}, "fleet=|protocol="),
        ({"task.metrics": ["accuracy", "auc"]}, {}, "The metric auc needs the scores of all samples"),
        ({}, {"rounds": 9}, "Trials cannot differ in rounds"),
        ({}, {"selector": "cyclic"}, "Trials cannot differ in selector"),
        ({}, {"cohort": 7}, "cohort is 7 in trial 1, .* only 6 clients"),
        ({}, {"local.learning": 1}, "local"),
    ],
)
def test_what_cannot_be_lanes_is_refused(base: Settings, change: Settings, trial: Settings, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        train_trials({**base, **change}, [{}, trial], rounds=2)


def test_rounds_that_cannot_be_noted(base: Settings) -> None:
    with pytest.raises(BadInputError, match="note_rounds must be from 0 to 2"):
        train_trials(base, [{}], rounds=2, note_rounds=[3])
    with pytest.raises(BadInputError, match="no trials"):
        train_trials(base, [], rounds=2)
    with pytest.raises(BadInputError, match="Trial 1 must be settings"):
        train_trials(base, [{}, 0.1], rounds=2)  # type: ignore[list-item]
    with pytest.raises(BadInputError, match="whole number of rounds"):
        train_trials(base, [{}], rounds=0)


def test_a_federation_that_is_an_object(base: Settings) -> None:
    given = {**base, "federation": Federation.open(base["federation"]["path"])}
    found, expected = (train_trials(settings, [{"seed": 2}], rounds=1) for settings in (given, base))
    np.testing.assert_array_equal(found.losses, expected.losses)


def needs_a_number(value: float) -> bool:
    return value > 0.5


class Branching(FedAvg):
    def server_step(self, state: Groups, mean_update: Groups, round: int) -> Groups:
        return super().server_step(state, mean_update, round) if needs_a_number(self.server_lr) else state


def test_a_method_that_looks_at_numbers_is_refused(base: Settings) -> None:
    each = [{"algorithm.server_lr": lr} for lr in (0.1, 1.0)]
    with pytest.raises(BadInputError, match="Trials of Branching and Sequential cannot be lanes"):
        train_trials({**base, "algorithm": f"{__name__}:Branching"}, each, rounds=2)


def test_best_rounds_of_losses() -> None:
    nan, inf = np.nan, np.inf
    losses = np.array([[3.0, 2.0, 2.0, 1.0], [nan, 1.0, 1.0, 1.0], [2.0, inf, 1.0, 1.0]])
    assert best_rounds(losses).tolist() == [[0, 1, 2, 2, 4], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]


@pytest.mark.slow
def test_benchmark(tmp_path: Path, run_benchmark: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """At a small size, where nothing is said about speed, but both ways come to the same losses."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, counts in (("train", (30, 20, 9)), ("validation", (5, 6, 7)), ("test", (4, 4, 4))):
        arrays |= {
            f"53/{part}/x": random.normal(size=(sum(counts), FEATURES)).astype(np.float32),
            f"53/{part}/y": random.integers(CLASSES, size=sum(counts)),
            f"53/{part}/offsets": np.concatenate([[0], np.cumsum(counts)]),
        }
    np.savez(tmp_path / "tables.npz", **arrays)
    sizes = ("--rounds", "4", "--seeds", "1", "--thinned", "60", "--alone", "2", "--note-every", "2")
    script = Path(__file__).parents[2] / "benchmarks" / "hpo.py"
    options = ("--arrays", str(tmp_path / "tables.npz"), "--device", "cpu", "--dtype", "float64")
    run_benchmark(script, *options, *sizes, "--output", str(tmp_path / "result.json"))
    facts = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["facts"]["53"]
    assert facts["courses"] == -(-672 * 3 // 60)
    assert facts["largest_difference"] < 1e-10


# ---- a method and a model of one's own ----


class Pulled(FedAvg):
    """Its loss has a number that may differ by trial, in a term of the parameters and of what was downloaded."""

    def __init__(self, *, pull: float = 0.0, server_lr: float = 1.0):
        super().__init__(server_lr=server_lr)
        self.pull = pull

    def local_loss(self, task: Any, params: Any, batch: Any, client: Any) -> torch.Tensor:
        loss = super().local_loss(task, params, batch, client)
        start = client.broadcast["params"]
        return loss + self.pull * sum((p - 0.5 * start[name]).abs().sum() for name, p in params.items())


def with_frozen_layer(spec: DataSpec, *, hidden: int = 6, dropout: float = 0.0) -> nn.Module:
    """Features that are drawn, and never trained, and a classifier."""
    layers = [
        nn.Flatten(),
        nn.Linear(FEATURES, hidden),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(hidden, spec.classes),
    ]
    layers[1].requires_grad_(False)
    return nn.Sequential(*layers)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("together", [False, True])
def test_an_own_loss_and_a_frozen_layer(base: Settings, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**base, "algorithm": f"{__name__}:Pulled", "model": f"{__name__}:with_frozen_layer"}
    original = training.LaneTrainer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs, together=together)  # as on a GPU, where seeds and cohorts are in one block

    monkeypatch.setattr(training.LaneTrainer, "__init__", init)
    each = [
        {"algorithm.pull": pull, "model.dropout": dropout, "seed": seed, "local.lr": lr}
        for pull, dropout, seed, lr in [(0.0, 0.0, 0, 0.2), (0.1, 0.0, 0, 0.1), (0.1, 0.3, 1, 0.2), (0.4, 0.3, 0, 0.2)]
    ]
    curves = check(own, each)
    assert len({row.tobytes() for row in curves.metrics["train_loss"]}) == len(each)
    sent = 8 * (6 * CLASSES + CLASSES)  # the frozen layer is not
    assert curves.upload_bytes.tolist() == [sent] * len(each)
