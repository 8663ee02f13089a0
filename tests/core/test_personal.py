"""Scoring clients with their own models, against one client at a time in the plainest way."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import StopAfter, config, content, interrupt
from torch import nn

from fedarena.algorithms import Ditto, FedAvg
from fedarena.core import streams
from fedarena.models import MODELS, DataSpec, build_model, make_task
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.train import CohortEngine, LocalTraining, ReferenceEngine, personal
from fedarena.train.batches import batch_indices
from fedarena.train.optimizers import optimizer_init, optimizer_step
from fedarena.train.personal import personal_notes
from fedarena.train.personal_data import PersonalData

FEATURES = DataSpec("classification", 3, (6,))
IMAGES = DataSpec("classification", 4, (1, 8, 8))
TEXT = DataSpec("next_token", 12, (9,), padding=0, unknown=1)
FAMILIES = {
    "mlp": (FEATURES, {"hidden": (5,)}),
    "leaf_cnn": (IMAGES, {"hidden": 5}),
    "lstm": (TEXT, {"embedding": 3, "hidden": 4}),
}
# Samples of every client: newcomers (4, 7, 9) have no training samples, some clients no validation samples.
COUNTS = {
    "train": [3, 1, 25, 7, 0, 40, 9, 0, 16, 0, 2],
    "validation": [2, 0, 5, 0, 0, 1, 4, 0, 0, 0, 3],
    "test": [7, 1, 30, 2, 9, 150, 1, 1, 12, 2, 5],
}
EVERYBODY = np.arange(len(COUNTS["test"]))
NEWCOMERS = [4, 7, 9]
LOCAL = LocalTraining(epochs=1, batch_size=8, lr=0.1)
ENGINES = {
    "reference": (ReferenceEngine, {}),
    "cohort": (CohortEngine, {"lanes": 4, "workers": 2}),
    "one lane": (CohortEngine, {"lanes": 1}),
}
each_engine = pytest.mark.parametrize(("kind", "options"), ENGINES.values(), ids=ENGINES)


class ClientsWithParts:
    """Client data with random samples of every part."""

    def __init__(self, spec: DataSpec):
        random = np.random.default_rng(0)
        self.columns: dict[tuple[int, str], dict[str, np.ndarray]] = {}
        for part, counts in COUNTS.items():
            for client, count in enumerate(counts):
                if spec.kind == "next_token":
                    tokens = random.integers(1, spec.classes, size=(count, spec.input_shape[0] + 1))
                    tokens[:, 6:] *= random.integers(0, 2, size=(count, 1))  # some sequences end early
                    self.columns[client, part] = {"tokens": tokens.astype(np.uint8)}
                else:
                    x, y = random.normal(size=(count, *spec.input_shape)), random.integers(spec.classes, size=count)
                    self.columns[client, part] = {"x": x, "y": y}

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([COUNTS[part][c] for c in clients], dtype=np.int64)

    def samples(self, clients: Any, part: str) -> Any:
        chosen = [self.columns[int(c), part] for c in clients]
        joined = {name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]}
        return SimpleNamespace(columns=joined, offsets=np.cumsum([0, *self.counts(clients, part)]))


def make_engine(kind: Any, model: str, algorithm: Any, **options: Any):
    spec, model_options = FAMILIES[model]
    task = make_task(build_model(model, spec, model_options, seed=0), spec)
    algorithm.prepare(len(EVERYBODY), LOCAL)
    return kind(task, algorithm, LOCAL, ClientsWithParts(spec), seed=3, dtype="float64", **options)


def other_models(params: dict[str, torch.Tensor], number: int) -> list[dict[str, torch.Tensor]]:
    """Models that differ from this one."""
    generator = torch.Generator().manual_seed(1)
    noise = lambda p: torch.randn(p.shape, generator=generator, dtype=p.dtype)  # noqa: E731
    return [{name: p + 0.5 * noise(p) for name, p in params.items()} for _ in range(number)]


def measure(task: Any, params: dict[str, torch.Tensor], columns: dict[str, np.ndarray]) -> dict[str, float]:
    """Sums over some samples of one client."""
    task.module.eval()
    batch = task.batch({name: torch.from_numpy(values) for name, values in columns.items()})
    with torch.no_grad():
        return {name: float(values.double().sum()) for name, values in task.measure(params, batch).items()}


def assert_scores(scores: Any, expected: dict[int, dict[str, float]], samples: dict[int, int]) -> None:
    assert scores.clients.tolist() == list(expected)
    assert scores.samples.tolist() == [samples[i] for i in expected]
    for position, sums in enumerate(expected.values()):
        assert scores.counts[position] == sums["count"]
        for metric in ("loss", "accuracy"):
            np.testing.assert_allclose(scores.means(metric)[position], sums[metric] / sums["count"], rtol=0, atol=1e-10)


@pytest.mark.sampled(5)
@each_engine
@pytest.mark.parametrize("model", FAMILIES)
def test_every_client_is_scored_with_its_own_model(model: str, kind: Any, options: dict[str, Any]) -> None:
    engine = make_engine(kind, model, Ditto(), **options)
    params = engine.initial_params()
    own = dict(enumerate(other_models(params, 8)))  # the last clients never took part
    memories = {client: {"personal": model} for client, model in own.items()}
    scores = engine.evaluate_personal({"params": params}, memories, EVERYBODY, "test", 5)
    columns = engine.data.columns
    expected = {int(i): measure(engine.task, own.get(int(i), params), columns[int(i), "test"]) for i in EVERYBODY}
    assert_scores(scores, expected, dict(enumerate(COUNTS["test"])))
    assert engine.task.module.training is False  # as the plain loop left it


class Several(FedAvg):
    """Clients choose among the models of the broadcast."""

    def broadcast(self, state):
        return {"params": state["params"], **{f"other {k}": state["params"] for k in range(5)}}

    def personal_models(self, client):
        return [client.broadcast["params"], *(client.broadcast[f"other {k}"] for k in range(5))]


def halves(data: Any, client: int, part: str) -> tuple[list[int], list[int]]:
    """Which samples a newcomer adapts to and which are scored: those of the smallest keys, half of them."""
    count = COUNTS[part][client]
    by_key = sorted(range(count), key=lambda place: int(streams.bits(0, "adapting samples", client, place)))
    adapting = set(by_key[: count // 2])
    return sorted(adapting), [place for place in range(count) if place not in adapting]


def take(columns: dict[str, np.ndarray], rows: list[int]) -> dict[str, np.ndarray]:
    return {name: values[rows] for name, values in columns.items()}


@each_engine
@pytest.mark.parametrize("part", ["test", "validation", "train"])
def test_the_best_of_several_is_chosen_on_other_samples(part: str, kind: Any, options: dict[str, Any]) -> None:
    engine = make_engine(kind, "mlp", Several(), **options)
    params = engine.initial_params()
    models = [params, *other_models(params, 5)]
    broadcast = {"params": params} | {f"other {k}": model for k, model in enumerate(models[1:])}
    clients = EVERYBODY[engine.data.counts(EVERYBODY, part) > 0][::-1]  # in any order
    columns, expected, samples, chosen = engine.data.columns, {}, {}, []
    for client in clients.tolist():
        scored, choosing = columns[client, part], columns[client, "validation"]
        if part == "validation" or not COUNTS["validation"][client]:
            choosing = columns[client, "train"]
        if client in NEWCOMERS:
            adapting, rest = halves(engine.data, client, part)
            scored, choosing = take(scored, rest), take(scored, adapting)
        elif part == "train" and not COUNTS["validation"][client]:
            choosing = take(choosing, [])
        losses = [measure(engine.task, model, choosing)["loss"] for model in models]
        chosen.append(losses.index(min(losses)))
        expected[client] = measure(engine.task, models[chosen[-1]], scored)
        samples[client] = len(scored["y"])
    assert_scores(engine.evaluate_personal(broadcast, {}, clients, part, 1), expected, samples)
    assert len(set(chosen)) > 2


@pytest.mark.sampled(2)
@each_engine
def test_a_model_whose_loss_is_not_a_number_is_not_chosen(kind: Any, options: dict[str, Any]) -> None:
    class BrokenAtFirst(FedAvg):
        def personal_models(self, client):
            return [{name: p * torch.nan for name, p in client.broadcast["params"].items()}, client.broadcast["params"]]

    engine = make_engine(kind, "mlp", BrokenAtFirst(), **options)
    params = engine.initial_params()
    trained = [c for c in EVERYBODY.tolist() if c not in NEWCOMERS]
    scores = engine.evaluate_personal({"params": params}, {}, np.array(trained), "test", 1)
    expected = {c: measure(engine.task, params, engine.data.columns[c, "test"]) for c in trained}
    assert_scores(scores, expected, dict(enumerate(COUNTS["test"])))


class Tuned(Ditto):
    """Clients fine-tune their own models."""

    fine_tuning = LocalTraining(epochs=None, steps=6, batch_size=4, lr=0.2, momentum=0.5)


@each_engine
def test_models_are_fine_tuned_on_training_samples_or_half_of_a_newcomers(kind: Any, options: dict[str, Any]) -> None:
    engine = make_engine(kind, "mlp", Tuned(), **options)
    params, tuning = engine.initial_params(), Tuned.fine_tuning
    own = dict(enumerate(other_models(params, 6)))
    memories = {client: {"personal": model} for client, model in own.items()}
    scores = engine.evaluate_personal({"params": params}, memories, EVERYBODY, "test", 5)
    expected, samples = {}, {}
    for client in EVERYBODY.tolist():
        training, scored = engine.data.columns[client, "train"], engine.data.columns[client, "test"]
        if client in NEWCOMERS:
            adapting, rest = halves(engine.data, client, "test")
            training, scored = take(scored, adapting), take(scored, rest)
        model = own.get(client, params)
        state = optimizer_init(tuning, model)
        seed = streams.torch_seed(3, "fine-tuning")
        batches = batch_indices(len(training["y"]), tuning, seed, 5, client) if len(training["y"]) else []
        for number, rows in enumerate(batches, start=1):
            batch = {name: torch.from_numpy(values) for name, values in take(training, rows.tolist()).items()}
            leaves = {name: p.detach().requires_grad_() for name, p in model.items()}
            gradients = torch.autograd.grad(engine.task.loss(leaves, engine.task.batch(batch)), list(leaves.values()))
            model, state = optimizer_step(tuning, model, dict(zip(leaves, gradients, strict=True)), state, number)
        expected[client] = measure(engine.task, model, scored)
        samples[client] = len(scored["y"])
    assert_scores(scores, expected, samples)
    assert samples[7] == 1  # whose only sample is scored


def test_a_model_that_cannot_be_vectorized_is_scored_one_client_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else 2 * x

    monkeypatch.setitem(MODELS._parts, "odd", lambda spec: nn.Sequential(nn.Linear(6, 5), Branching(), nn.Linear(5, 3)))
    monkeypatch.setitem(FAMILIES, "odd", (FEATURES, {}))
    reference, cohort = (make_engine(kind, "odd", Ditto()) for kind in (ReferenceEngine, CohortEngine))
    assert len(cohort.notes) == 1
    params = reference.initial_params()
    memories = {c: {"personal": model} for c, model in enumerate(other_models(params, 11))}
    one, other = (
        engine.evaluate_personal({"params": params}, memories, EVERYBODY, "test", 1) for engine in (reference, cohort)
    )
    assert (one.means("loss") == other.means("loss")).all()


def test_a_newcomers_samples_are_divided_and_all_others_are_as_they_were() -> None:
    plain = ClientsWithParts(FEATURES)
    data = PersonalData(plain, "test", adapting=True)
    for clients in (EVERYBODY, EVERYBODY[::-1], np.array(NEWCOMERS), np.array([2, 4, 0]), np.array([1])):
        for part in ("train", "test", "validation"):
            block = data.samples(clients, part)
            assert np.diff(block.offsets).tolist() == data.counts(clients, part).tolist()
            for position, client in enumerate(clients.tolist()):
                rows = slice(block.offsets[position], block.offsets[position + 1])
                expected = plain.columns[client, part]["x"]
                if client in NEWCOMERS and part != "validation":
                    adapting, rest = halves(plain, client, "test")
                    expected = plain.columns[client, "test"]["x"][adapting if part == "train" else rest]
                assert (block.columns["x"][rows] == expected).all()
    assert data.counts(np.array(NEWCOMERS), "train").tolist() == [4, 0, 1]
    assert data.counts(np.array(NEWCOMERS), "test").tolist() == [5, 1, 1]
    nothing_to_adapt = PersonalData(plain, "test", adapting=False)
    assert nothing_to_adapt.counts(EVERYBODY, "test").tolist() == COUNTS["test"]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_chunks_hold_every_client_once_and_few_samples(at_once: int) -> None:
    samples = np.array(COUNTS["test"])
    chunks = personal._chunks(samples, at_once, most_samples=40)
    assert sorted(np.concatenate(chunks).tolist()) == EVERYBODY.tolist()
    assert all(len(chunk) == 1 or (len(chunk) <= at_once and samples[chunk].sum() <= 40) for chunk in chunks)
    assert np.concatenate([samples[chunk] for chunk in chunks]).tolist() == sorted(samples.tolist(), reverse=True)
    assert len(chunks) == {1: 11, 3: 5, 100: 3}[at_once]


def test_chunks_have_fewer_samples_if_these_are_large() -> None:
    small, large = (DataSpec("multi_label", 2, (3, side, side)) for side in (32, 256))
    tasks = [make_task(build_model("logistic_regression", spec, {}, seed=0), spec) for spec in (small, large)]
    assert [personal._samples_in_memory(task) for task in tasks] == [1 << 15, (1 << 30) // (3 * 256 * 256 + 2)]


def test_notes_say_what_is_done_with_newcomers() -> None:
    engine = make_engine(ReferenceEngine, "mlp", Ditto())
    params, data = engine.initial_params(), engine.data
    about = lambda algorithm, clients=EVERYBODY: personal_notes(algorithm, params, data, clients, "test")  # noqa: E731
    assert about(FedAvg()) == []
    assert about(Ditto(), np.array([0, 1])) == []
    assert "3 of 11 evaluated clients have no training samples and never take part" in about(Ditto())[0]
    assert "half of their test samples adapt their personal models" in about(Tuned())[0]


def personal_config(split: str, algorithm: Any, **more: Any):
    federation = {"name": "digits", "partition": {"name": "dirichlet", "clients": 20}, "split": split}
    return config(federation=federation, algorithm=algorithm, rounds=6, **{"evaluation.every": 3}, **more)


class Warnings(Observer):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warned(self, message: str) -> None:
        self.messages.append(message)


def test_a_run_records_both_models(tmp_path) -> None:
    observer = Warnings()
    algorithm = {"name": "reptile", "fine_tune_steps": 5}
    run = start_run(personal_config("by_client", algorithm), tmp_path, observer)
    assert any("half of their test samples" in message for message in observer.messages)
    assert "half of their test samples" in (run.path / "log.txt").read_text()
    rounds, clients = run.rounds.to_pandas(), run.clients.to_pandas()
    last, of_last = rounds.iloc[-1], clients[clients["round"] == 6]
    expected = (of_last["samples"] + 1) // 2  # half, rounded up, is scored
    assert of_last["personal_samples"].tolist() == expected.tolist()
    assert last["personal_samples"] == expected.sum() < last["eval_samples"]
    weighted = (of_last["personal_accuracy"] * of_last["personal_samples"]).sum() / expected.sum()
    assert last["personal_accuracy"] == pytest.approx(weighted)
    assert last["personal_accuracy_by_client"] == pytest.approx(of_last["personal_accuracy"].mean())
    assert rounds["personal_accuracy"].isna().tolist() == rounds["accuracy"].isna().tolist()
    final = json.loads((run.path / "summary.json").read_text())["final"]
    assert final["personal_accuracy"] == last["personal_accuracy"]
    assert final["personal_loss_p90"] == last["personal_loss_p90"]


def test_runs_without_personal_models_have_no_such_columns(tmp_path) -> None:
    run = start_run(personal_config("within_client", "fedavg"), tmp_path)
    names = [*run.rounds.column_names, *run.clients.column_names, *run.summary["final"]]
    assert not [name for name in names if name.startswith("personal")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("algorithm", ["ditto", "local_only", "reptile", "fedkd"])
def test_an_interrupted_run_ends_the_same(algorithm: str, tmp_path) -> None:
    options = {"name": algorithm} | ({"fine_tune_steps": 3} if algorithm == "reptile" else {})
    whole = start_run(personal_config("within_client", options), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start_run(personal_config("within_client", options), tmp_path / "parts", StopAfter(4, interrupt))
    resumed = resume_run(tmp_path / "parts" / "small")
    assert content(resumed.path) == content(whole.path)
    assert whole.rounds.to_pandas()["personal_loss"].dropna().nunique() == 3
