"""The graph convolutional network and classification of nodes: against dense matrices, and engine by engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss

import fedarena
from fedarena.algorithms import ALGORITHMS, FedAvg
from fedarena.core.errors import BadInputError
from fedarena.data import Federation, load_federation
from fedarena.models import DataSpec, InputSpec, build_model, default_model, make_task
from fedarena.runs.opening import data_spec
from fedarena.train import CohortEngine, Engine, Job, LocalTraining, ReferenceEngine, take_row, train_jobs
from fedarena.train import cohort as cohort_module

CLASSES = 3
PARTS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def graph() -> dict[str, Any]:
    """60 nodes of 7 features, three classes, edges mostly within a class; four clients of unequal size."""
    random = np.random.default_rng(0)
    labels = random.integers(CLASSES, size=60)
    features = random.integers(0, 3, size=(60, 7)) + (np.arange(7) % CLASSES == labels[:, None])
    pairs = random.integers(60, size=(260, 2))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    clients = np.repeat([0, 1, 2, 3], [25, 8, 15, 12])
    return {
        "features": features,
        "edges": pairs[same | (random.random(len(pairs)) < 0.2)],
        "labels": [None if node % 11 == 0 else f"class {label}" for node, label in enumerate(labels)],
        "clients": clients[random.permutation(60)],
    }


@pytest.fixture(scope="module")
def federation(graph: dict[str, Any]) -> Federation:
    return fedarena.from_graph(**graph, train_fraction=0.5, validation_fraction=0.25)


@pytest.fixture(scope="module")
def graph_tasks() -> Federation:
    return load_federation("graph_tasks_stand_in", {"most_nodes": 8, "clients": 4})


@pytest.fixture(autouse=True)
def lanes_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort_module, "_SHARDS_FOR_WORKERS", 1)


def make_engine(
    kind: Any, federation: Federation, algorithm: Any, local: LocalTraining, model: Any = None, **options: Any
) -> Engine:
    spec = data_spec(federation)
    task = make_task(build_model("gcn", spec, {"hidden": 5, **(model or {})}, seed=1), spec)
    return kind(task, algorithm, local, federation, seed=3, dtype="float64", device="cpu", **options)


def trained(engine: Engine, clients: list[int], broadcast: Any) -> dict[int, tuple[Any, Any, float]]:
    found = {}
    for results in train_jobs(engine, [Job(client, 1) for client in clients], {0: broadcast}, {}):
        for row, client in enumerate(results.clients):
            update, kept = take_row(results.update, row), take_row(results.client_states, row)
            found[int(client)] = (update, kept, float(results.losses[row]))
    return found


def dense_adjacency(graph: dict[str, Any], nodes: np.ndarray) -> np.ndarray:
    """Kipf and Welling's, of the subgraph with these nodes."""
    adjacency = np.zeros((60, 60))
    for one, other in graph["edges"].tolist():
        adjacency[one, other] = adjacency[other, one] = 1
    np.fill_diagonal(adjacency, 1)
    own = adjacency[np.ix_(nodes, nodes)]
    root = 1 / np.sqrt(own.sum(1))
    return root[:, None] * own * root


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def nodes_of(graph: dict[str, Any], client: int) -> np.ndarray:
    order = list(dict.fromkeys(graph["clients"].tolist()))
    return np.flatnonzero(graph["clients"] == order[client])


def labelled(federation: Federation, client: int, part: str, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of a client's nodes have a label in a part, and which."""
    y = federation.samples([client], part).columns["y"][0][:nodes]
    return np.flatnonzero(y >= 0), y[y >= 0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [ReferenceEngine, CohortEngine])
@pytest.mark.parametrize("normalize", [False, True])
def test_training_is_that_of_dense_matrices(graph, federation: Federation, kind: Any, normalize: bool) -> None:
    """Gradient descent on the labelled nodes of every client, written with plain matrices."""
    local = LocalTraining(epochs=None, steps=3, lr=0.2, weight_decay=0.01)
    engine = make_engine(kind, federation, FedAvg(), local, {"normalize": normalize})
    start = engine.initial_params()
    found = trained(engine, [0, 1, 2, 3], {"params": start})
    for client in range(4):
        nodes = nodes_of(graph, client)
        x, a = graph["features"][nodes].astype(float), dense_adjacency(graph, nodes)
        if normalize:
            x = x / x.sum(1, keepdims=True)
        places, y = labelled(federation, client, "train", len(nodes))
        w1, b1, w2, b2 = (
            start[name].numpy().copy()
            for name in ("first.linear.weight", "first.bias", "second.linear.weight", "second.bias")
        )
        losses = []
        for _ in range(3):
            before = a @ x @ w1.T + b1
            hidden = np.maximum(before, 0)
            chances = softmax(a @ hidden @ w2.T + b2)
            losses.append(-np.log(chances[places, y]).mean())
            error = np.zeros_like(chances)
            error[places] = chances[places] / len(places)
            error[places, y] -= 1 / len(places)
            back = (a @ error @ w2) * (before > 0)
            gradients = (back.T @ a @ x, back.sum(0), error.T @ a @ hidden, error.sum(0))
            w1, b1, w2, b2 = (w - 0.2 * (g + 0.01 * w) for w, g in zip((w1, b1, w2, b2), gradients, strict=True))
        update, _, loss = found[client]
        for name, new in (("first.linear.weight", w1), ("first.bias", b1), ("second.linear.weight", w2)):
            np.testing.assert_allclose(update["params"][name], new - start[name].numpy(), atol=1e-12)
        assert loss == pytest.approx(np.mean(losses), abs=1e-12)


LOCALS = {
    "steps": (LocalTraining(epochs=None, steps=4, lr=0.3, momentum=0.9, weight_decay=0.01), {"dropout": 0.5}),
    "adam": (LocalTraining(epochs=None, steps=3, optimizer="adam", lr=0.01, batch_size=4), {"normalize": True}),
}


@pytest.mark.parametrize("name", LOCALS)
@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_both_engines_agree(federation: Federation, graph_tasks: Federation, kind: str, name: str) -> None:
    local, model = LOCALS[name]
    data = federation if kind == "nodes" else graph_tasks
    clients = list(range(data.num_clients))
    reference = make_engine(ReferenceEngine, data, FedAvg(), local, model)
    cohort = make_engine(CohortEngine, data, FedAvg(), local, model, lanes=2)
    assert cohort.notes == []  # it trains many clients at once
    broadcast = {"params": reference.initial_params()}
    found, expected = (trained(engine, clients, broadcast) for engine in (cohort, reference))
    for client in clients:
        for parameter, change in expected[client][0]["params"].items():
            torch.testing.assert_close(found[client][0]["params"][parameter], change, rtol=0, atol=1e-10)
            assert change.abs().max() > 1e-6
        assert found[client][2] == pytest.approx(expected[client][2], abs=1e-10)
    for part in PARTS:
        scores = [engine.evaluate(broadcast["params"], np.array(clients), part) for engine in (cohort, reference)]
        for metric in ("loss", "accuracy"):
            np.testing.assert_allclose(scores[0].means(metric), scores[1].means(metric), atol=1e-10)


def test_dropout_differs_from_step_to_step_and_is_off_in_evaluation(federation: Federation) -> None:
    local = LocalTraining(epochs=None, steps=1, lr=0.1)
    dropping = make_engine(ReferenceEngine, federation, FedAvg(), local, {"dropout": 0.5})
    plain = make_engine(ReferenceEngine, federation, FedAvg(), local)
    broadcast = {"params": plain.initial_params()}
    assert trained(dropping, [0], broadcast)[0][2] != trained(plain, [0], broadcast)[0][2]
    scores = [engine.evaluate(broadcast["params"], np.arange(4), "test").means("loss") for engine in (dropping, plain)]
    np.testing.assert_array_equal(*scores)


def test_metrics_count_nodes(graph, federation: Federation) -> None:
    """Against scikit-learn on the nodes of all clients together, and of each."""
    spec = data_spec(federation)
    module = build_model("gcn", spec, {"hidden": 5}, seed=1)
    task = make_task(module, spec, metrics=("accuracy", "macro_f1", "micro_f1", "balanced_accuracy"))
    engine = ReferenceEngine(task, FedAvg(), LocalTraining(), federation, seed=0, dtype="float64", device="cpu")
    params = engine.initial_params()
    scores = engine.evaluate(params, np.arange(4), "test")
    right, chances = [], []
    for client in range(4):
        columns = federation.samples([client], "test").columns
        batch = task.batch({name: torch.from_numpy(values) for name, values in columns.items()})
        with torch.no_grad():
            outputs = task.predict(params, batch)[0].softmax(-1).numpy()
        places, y = labelled(federation, client, "test", len(nodes_of(graph, client)))
        right.append(y)
        chances.append(outputs[places])
        assert scores.counts[client] == len(places)
        assert scores.means("accuracy")[client] == pytest.approx(accuracy_score(y, outputs[places].argmax(1)))
    y, p = np.concatenate(right), np.concatenate(chances)
    guess = p.argmax(1)
    assert scores.samples.tolist() == [1, 1, 1, 1]
    assert scores.metrics["loss"].total == pytest.approx(log_loss(y, p, labels=range(CLASSES)))
    assert scores.metrics["accuracy"].total == pytest.approx(accuracy_score(y, guess))
    assert scores.metrics["macro_f1"].total == pytest.approx(f1_score(y, guess, average="macro", zero_division=0))
    assert scores.metrics["micro_f1"].total == pytest.approx(f1_score(y, guess, average="micro"))
    assert scores.metrics["balanced_accuracy"].total == pytest.approx(balanced_accuracy_score(y, guess))
    assert scores.classes.samples.tolist() == np.bincount(y, minlength=CLASSES).tolist()
    each = f1_score(y, guess, average=None, labels=range(CLASSES), zero_division=np.nan)
    np.testing.assert_allclose(scores.classes.values["f1"], each)


def test_loss_with_weights_is_torchs(federation: Federation) -> None:
    spec, weights = data_spec(federation), (1.0, 2.0, 0.5)
    task = make_task(build_model("gcn", spec, {}, seed=1), spec, class_weights=weights, label_smoothing=0.1)
    columns = federation.samples([0, 1], "train").columns
    batch = task.batch({name: torch.from_numpy(values) for name, values in columns.items()})
    params = dict(task.module.named_parameters())
    plain = torch.nn.CrossEntropyLoss(torch.tensor(weights), ignore_index=-1, label_smoothing=0.1)
    outputs = task.predict(params, batch)
    expected = plain(outputs.flatten(0, 1), batch["y"].flatten())
    torch.testing.assert_close(task.loss(params, batch), expected)
    # A graph that fills a batch up does not count.
    first = plain(outputs[0], batch["y"][0])
    torch.testing.assert_close(task.loss(params, {**batch, "mask": torch.tensor([1.0, 0.0])}), first)


def test_parts_of_a_client_have_the_same_graph(federation: Federation) -> None:
    samples = [federation.samples([2], part).columns for part in PARTS]
    for name in ("x", "edges"):
        assert all(np.array_equal(samples[0][name], other[name]) for other in samples)
    assert ((np.stack([one["y"][0] for one in samples]) >= 0).sum(0) <= 1).all()


def test_encoders_and_classifiers_stay_with_clients(graph_tasks: Federation) -> None:
    """FedPer on tasks of different features and classes: what is in between is shared, and engines agree."""
    algorithm = ALGORITHMS.get("fedbn")(local_layers=["encoder.*", "classifier.*"])
    local = LocalTraining(epochs=1, batch_size=32, lr=0.1)
    clients = np.arange(graph_tasks.num_clients)
    found = []
    for kind in (ReferenceEngine, CohortEngine):
        engine = make_engine(kind, graph_tasks, algorithm, local)
        broadcast = {"params": engine.initial_params()}
        results = trained(engine, clients.tolist(), broadcast)
        states = {client: kept for client, (_, kept, _) in results.items()}
        scores = engine.evaluate_personal(broadcast, states, clients, "test", round=1)
        found.append((results, scores))
    (reference, scores), (cohort, other_scores) = found
    for client in clients.tolist():
        update, kept, _ = reference[client]
        assert all(name.startswith(("first.", "second.")) for name in update["params"])
        assert {name.partition(".")[0] for name in kept["local"]} == {"encoder", "classifier"}
        for name, change in update["params"].items():
            torch.testing.assert_close(cohort[client][0]["params"][name], change, rtol=0, atol=1e-10)
        features = graph_tasks.attributes([client])["features"][0]
        start = broadcast["params"]["encoder.weight"]
        assert (kept["local"]["encoder.weight"][:, features:] == start[:, features:]).all()
    np.testing.assert_allclose(scores.means("loss"), other_scores.means("loss"), atol=1e-10)


def test_the_mean_over_nodes_leaves_out_places_without_a_node() -> None:
    """A graph means the same in a federation with more room, and whatever the order of its nodes."""
    random = np.random.default_rng(5)
    x, edges = random.normal(size=(4, 3)), [(0, 1), (1, 2), (2, 3), *((node, node) for node in range(4))]
    outputs = []
    for nodes, order in ((4, [0, 1, 2, 3]), (7, [2, 0, 3, 1])):
        spec = DataSpec(
            "classification", 2, (), inputs=(InputSpec("x", (nodes, 3)), InputSpec("edges", (9, 2), nodes + 1))
        )
        module = build_model("gcn", spec, {"hidden": 4}, seed=0).double().eval()
        room, ends = np.zeros((1, nodes, 3)), np.full((1, 9, 2), nodes)
        room[0, order] = x
        ends[0, :7] = np.array(order)[np.array(edges)]
        outputs.append(module(torch.from_numpy(room), torch.from_numpy(ends)))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


def test_what_does_not_fit_is_refused(federation: Federation) -> None:
    spec = data_spec(federation)
    assert default_model(spec) == "gcn"
    assert str(spec) == "graphs of up to 25 nodes of 7 features with nodes in 3 classes"
    with pytest.raises(BadInputError, match=r"needs graphs .* but this federation has features of shape"):
        build_model("gcn", DataSpec("classification", 3, (6,)), {}, seed=0)
    with pytest.raises(BadInputError, match=r"model.dropout must be at least 0 and below 1, not 1"):
        build_model("gcn", spec, {"dropout": 1.0}, seed=0)
    large = DataSpec(
        "node_classification", 2, (), inputs=(InputSpec("x", (20_000, 1)), InputSpec("edges", (9, 2), 20_001))
    )
    with pytest.raises(
        BadInputError, match="for graphs of up to 10,000 nodes, and this federation has graphs of up to"
    ):
        build_model("gcn", large, {}, seed=0)
    with pytest.raises(BadInputError, match="'auc' ranks samples, which are whole graphs here"):
        make_task(build_model("gcn", spec, {}, seed=0), spec, metrics=("auc",))
    with pytest.raises(BadInputError, match="needs features, but this federation has graphs of up to 25 nodes"):
        build_model("mlp", spec, {}, seed=0)


def test_a_run_from_python(federation: Federation, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings that problems of search have; the baseline counts nodes, too."""
    monkeypatch.chdir(tmp_path)
    result = fedarena.run(
        federation=federation,
        model={"name": "gcn", "dropout": 0.2},
        local={"steps": 2, "lr": 0.5, "weight_decay": 0.0005},
        task={"metrics": ["accuracy", "macro_f1"]},
        rounds=15,
        progress=False,
    )
    y = federation.samples(np.arange(4), "test").columns["y"]
    most = int(np.argmax(federation.label_counts))
    assert result.summary["baseline"]["accuracy"] == pytest.approx((y == most).sum() / (y >= 0).sum())
    assert 0.5 < result.summary["final"]["accuracy"] <= 1


def test_trials_as_lanes_are_runs_of_their_own(federation: Federation, tmp_path, monkeypatch) -> None:
    """Configurations that differ in everything a search varies train in one computation."""
    lanes = pytest.importorskip("fedarena.hpo.lanes")
    monkeypatch.chdir(tmp_path)
    base = {
        "federation": {"name": "store", "path": str(federation.path)},
        "model": {"name": "gcn", "hidden": 5},
        "task": {"metrics": ["accuracy", "macro_f1", "balanced_accuracy"]},
        "cohort": 4,
        "engine": {"name": "reference", "dtype": "float64", "device": "cpu"},
    }
    trials = [
        {"local.lr": 0.1, "local.steps": 1, "model.dropout": 0.0, "local.weight_decay": 0.0},
        {"local.lr": 0.4, "local.steps": 3, "model.dropout": 0.5, "local.weight_decay": 0.01},
    ]
    curves = lanes.train_trials(base, trials, rounds=3, device="cpu")
    for number, trial in enumerate(trials):
        result = fedarena.run(base, **trial, rounds=3, evaluation={"part": "validation", "every": 1}, progress=False)
        rows = [row for row in result.rounds.to_pylist() if row["round"] > 0]
        for metric in ("loss", "accuracy", "macro_f1", "balanced_accuracy"):
            found = curves.metrics[f"validation_{metric}"][number][-3:]
            np.testing.assert_allclose(found, [row[metric] for row in rows], atol=1e-10)
