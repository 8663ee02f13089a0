"""Tasks: their losses against torch's, on both engines, and runs of every kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec, load_federation
from fedarena.metrics import Mean, MetricInfo
from fedarena.models import DataSpec, InputSpec, build_model, make_task
from fedarena.models.tasks.classification import Classification
from fedarena.models.tasks.regression import Regression
from fedarena.runs.building import prepare
from fedarena.runs.config import parse_overrides, resolve, resolve_settings
from fedarena.runs.observer import Observer
from fedarena.runs.run import resume_run, start_run
from fedarena.runs.suite import read_suite
from fedarena.runs.suite_plan import begin_suite, plan_suite
from fedarena.runs.suite_running import run_one_by_one
from fedarena.runs.summary import metrics_of_run, strata
from fedarena.train import Algorithm, Job, LocalTraining, train_jobs
from fedarena.train.cohort import CohortEngine
from fedarena.train.personal import score_each, score_stacked
from fedarena.train.reference import ReferenceEngine

SIZES = [7, 1, 4, 12, 3]
LOCAL = LocalTraining(epochs=2, batch_size=4, lr=0.1)
CLASSES = 3
FEATURES = DataSpec("classification", CLASSES, (5,))
TAGS = DataSpec("multi_label", 4, (5,))
NUMBERS = DataSpec("regression", 2, (5,))
RATINGS = DataSpec("rating", 1, (), inputs=(InputSpec("user", (), 6), InputSpec("item", (), 9)), value_range=(1.0, 5.0))


class Clients:
    """Clients with samples of a form, all for training."""

    def __init__(self, spec: DataSpec):
        random = np.random.default_rng(0)
        self.columns: dict[int, dict[str, np.ndarray]] = {}
        for client, size in enumerate(SIZES):
            columns = {part.name: random.integers(part.values, size=size) for part in spec.inputs}
            if not spec.inputs:
                columns["x"] = random.normal(size=(size, *spec.input_shape))
            columns["y"] = {
                "classification": lambda size=size: random.integers(max(spec.classes, 2), size=size),
                "multi_label": lambda size=size: random.integers(2, size=(size, spec.classes)),
                "regression": lambda size=size: random.normal(size=(size, spec.classes)),
                "rating": lambda size=size: random.uniform(1, 5, size=size),
            }[spec.kind]()
            self.columns[client] = columns

    def counts(self, clients: Any, part: str) -> np.ndarray:
        return np.array([SIZES[c] for c in clients], dtype=np.int64)

    def samples(self, clients: Any, part: str) -> Any:
        chosen = [self.columns[int(c)] for c in clients]
        joined = {name: np.concatenate([c[name] for c in chosen]) for name in chosen[0]}
        return SimpleNamespace(columns=joined, offsets=np.cumsum([0, *self.counts(clients, part)]))


def a_task(spec: DataSpec, name: str = "auto", **options: Any) -> Any:
    model = {"rating": "matrix_factorization"}.get(spec.kind, "logistic_regression")
    model_spec = DataSpec("classification", 1, (5,)) if name == "binary" else spec
    made = lambda module: make_task(module, spec, name, **options)  # noqa: E731
    return made(build_model(model, model_spec, {}, 0, made).double())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 0.0)])
def test_class_weights_and_smoothing_are_torchs(weights: tuple[float, ...] | None, smoothing: float) -> None:
    task = a_task(FEATURES, class_weights=weights, label_smoothing=smoothing)
    batch = task.batch({"x": torch.randn(6, 5, dtype=torch.float64), "y": torch.tensor([0, 1, 2, 2, 1, 0])})
    params = dict(task.module.named_parameters())
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    oracle = nn.CrossEntropyLoss(weight=given, label_smoothing=smoothing)
    expected = oracle(task.predict(params, batch), batch["y"])
    torch.testing.assert_close(task.loss(params, batch), expected)
    mask = torch.tensor([1.0, 1, 0, 0, 1, 1], dtype=torch.float64)
    kept = {name: values[mask.bool()] for name, values in batch.items()}
    masked = task.loss(params, {**batch, "mask": mask})
    torch.testing.assert_close(masked, oracle(task.predict(params, kept), kept["y"]))
    states = task.measure(params, batch)["loss"].detach().double().numpy()
    assert task.metrics[0].value(states.sum(0), np.float64(6)) == pytest.approx(expected.item())


def test_losses_of_labels_and_numbers_are_torchs() -> None:
    for spec, oracle in ((TAGS, F.binary_cross_entropy_with_logits), (NUMBERS, F.mse_loss)):
        task, clients = a_task(spec), Clients(spec)
        columns = clients.samples([0, 3], "train").columns
        batch = task.batch({name: torch.from_numpy(values) for name, values in columns.items()})
        params = dict(task.module.named_parameters())
        expected = oracle(task.predict(params, batch), torch.from_numpy(columns["y"]).double())
        torch.testing.assert_close(task.loss(params, batch), expected)


CASES: dict[str, tuple[DataSpec, dict[str, Any]]] = {
    "weights": (FEATURES, {"class_weights": (0.5, 2.0, 1.0), "label_smoothing": 0.1}),
    "labels": (TAGS, {}),
    "binary": (DataSpec("classification", 2, (5,)), {"name": "binary"}),
    "numbers": (NUMBERS, {}),
    "ratings": (RATINGS, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_both_engines_agree(case: str) -> None:
    spec, task_options = CASES[case]
    everybody = np.arange(len(SIZES))
    found = []
    kinds: list[tuple[Any, dict[str, Any]]] = [(ReferenceEngine, {}), (CohortEngine, {"lanes": 2})]
    if torch.cuda.is_available():
        kinds.append((CohortEngine, {"lanes": 2, "device": "cuda"}))
    for engine, more in kinds:
        algorithm = Algorithm()
        algorithm.prepare(len(SIZES), LOCAL)
        task = a_task(spec, **task_options)
        options = {"device": "cpu", **more}
        made = engine(task, algorithm, LOCAL, Clients(spec), seed=1, dtype="float64", **options)
        assert not made.notes
        broadcast = {"params": made.initial_params()}
        rows = {}
        for results in train_jobs(made, [Job(int(c), 1) for c in everybody], {0: broadcast}, {}):
            for row, client in enumerate(results.clients):
                update = torch.cat([t[row].flatten() for t in results.update["params"].values()])
                rows[int(client)] = (update.detach().cpu(), results.losses[row])
        found.append((rows, made.evaluate(broadcast["params"], everybody, "train")))
    reference, scores = found[0]
    for cohort, other in found[1:]:
        for client in everybody.tolist():
            torch.testing.assert_close(cohort[client][0], reference[client][0], rtol=0, atol=1e-10)
            assert cohort[client][1] == pytest.approx(reference[client][1], abs=1e-10)
            assert cohort[client][0].abs().max() > 1e-3
        for name, one in scores.metrics.items():
            assert one.total == pytest.approx(other.metrics[name].total, nan_ok=True)


@pytest.mark.parametrize("case", ["labels", "numbers", "weights"])
def test_padding_does_not_count_even_if_it_is_undefined(case: str) -> None:
    """The first row, which fills up where a client has no sample, belongs to a client whose model is undefined."""
    spec, options = CASES[case]
    task = a_task(spec, **options)
    samples = Clients(spec).samples(np.arange(len(SIZES)), "train")
    models = {name: p.detach().expand(len(SIZES), *p.shape).clone() for name, p in task.module.named_parameters()}
    samples.columns["x"][0] = np.nan
    for score in (score_each, score_stacked):
        states = score(task, models, samples, task.metrics)
        assert states.counts.tolist() == SIZES
        for name in ("loss", *states.states):
            assert np.isfinite(states.states[name][1:]).all(), name
            assert name not in ("loss",) or not np.isfinite(states.states[name][0]).all()
    if states.ranked is not None:
        assert np.bincount(states.ranked.owners).tolist() == SIZES


class Huber(Regression):
    """Squared for small errors, absolute for large ones."""

    usual_metrics = ("mae",)
    baseline_rule = None

    def losses(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.huber_loss(outputs, batch["y"], reduction="none").mean(-1)


class Careless(Huber):
    """Takes the mean over all samples of a batch."""

    def loss(self, params: Any, batch: Any) -> torch.Tensor:
        return self.losses(self.predict(params, batch), batch).mean()


class Bias(Mean):
    """Whether predictions are too large."""

    predicts = ("numbers",)
    info = MetricInfo("bias", "bias")

    def each(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs - batch["y"]).mean(-1)


def config(**settings: Any) -> Any:
    return resolve({"federation": "diabetes", "rounds": 2, "cohort": 5, "evaluation": {"every": 1}, **settings})


def test_own_tasks_and_metrics(tmp_path: Path) -> None:
    found = start_run(config(task={"name": Huber, "metrics": ["mae", Bias], "lead": "mae"}), tmp_path)
    assert [info["name"] for info in found.summary["metrics"]] == ["loss", "mae", "bias"]
    assert found.config["task"]["metrics"] == ["mae", f"{__name__}:Bias"]
    assert found.summary["baseline"] is None
    assert found.summary["best"]["mae"] == min(found.rounds["mae"].to_pylist())
    assert [metric.name for metric in metrics_of_run(found)] == ["loss", "mae", "bias"]


@pytest.mark.parametrize("engine", ["cohort", "reference"])
def test_a_loss_written_without_a_thought_of_padding_is_right(tmp_path: Path, engine) -> None:
    options = {"engine": {"name": engine, "dtype": "float64"}, "local": {"batch_size": 4}}
    careful, careless = (
        start_run(config(task=task, name=task.__name__, **options), tmp_path) for task in (Huber, Careless)
    )
    for name in ("loss", "mae", "train_loss"):
        np.testing.assert_allclose(careless.rounds[name].to_pylist()[1:], careful.rounds[name].to_pylist()[1:], 1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["task=regresion"], "no task called 'regresion'; did you mean 'regression'"),
        (["task.metrics=[rmze]"], "no metric called 'rmze'; did you mean 'rmse'"),
        (
            ["task.metrics=[accuracy]"],
            "'accuracy' is not for a task that predicts numbers; possible: mae, mse, r2, rmse",
        ),
        (["task.lead=mse"], "task.lead is 'mse', which is not measured; did you mean 'rmse'"),
        (["task.metrics=[mae, mae]"], "names a metric twice"),
        (["task=classification"], "The task Classification is not for features of shape"),
        (["task=classification", "task.label_smoothing=2"], "label_smoothing must be from 0 to 1"),
        (["task.smoothing=2"], "has no option 'smoothing'"),
        (["task=binary"], "The task binary is for 2 classes"),
        (["task=pathlib:PurePath"], "must be a subclass of .*Task"),
        (["model=matrix_factorization"], "needs two inputs that are codes.* try model=linear"),
    ],
)
def test_what_does_not_fit_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        prepare(resolve_settings({"federation": "diabetes", "cohort": 5}, parse_overrides(settings)), Observer())


def test_a_model_with_other_outputs_is_refused() -> None:
    module = build_model("linear", NUMBERS, {}, 0)
    with pytest.raises(BadInputError, match=r"its outputs have the shape \[2, 2\], but \[2, 3\] is needed"):
        build_model("linear", NUMBERS, {}, 0, lambda _: make_task(module, DataSpec("regression", 3, (5,))))


def test_weights_must_fit() -> None:
    for weights, message in (((1.0,), "1 numbers for 3 classes"), ((0, 0, 0), "not all 0"), ((1, -1, 1), "negative")):
        with pytest.raises(BadInputError, match=message):
            Classification(nn.Linear(5, 3), FEATURES, class_weights=weights)


def test_configurations_of_before_have_no_task(tmp_path: Path) -> None:
    found = start_run(resolve({"federation": "digits", "rounds": 1, "cohort": 2, "model": "mlp"}), tmp_path)
    settings = yaml.safe_load((found.path / "config.yaml").read_text())
    assert settings.pop("task")["name"] == "classification"
    assert resolve(settings).task == {"name": "auto"}
    baseline = found.summary["baseline"]
    federation = load_federation("digits")
    labels = federation.samples(federation.clients("all"), "test").columns["y"]
    assert baseline["metric"] == found.summary["primary_metric"] == "accuracy"
    assert baseline["accuracy"] == (labels == federation.label_counts.argmax()).mean()
    assert baseline["rule"] == f"always the most frequent label, {baseline['label']!r}"


def test_numbers_from_the_federation_to_the_summary(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"federation": "diabetes", "rounds": 6, "cohort": 8, "evaluation": {"every": 3}}
    found = start_run(resolve(settings), tmp_path)
    summary, rounds = found.summary, found.rounds.to_pydict()
    assert summary["primary_metric"] == "rmse"
    assert [info["name"] for info in summary["metrics"]] == ["loss", "rmse", "mae", "r2"]
    assert summary["best"]["rmse"] == min(value for value in rounds["rmse"] if value is not None)
    federation = load_federation("diabetes")
    y = {part: federation.samples(federation.clients("all"), part).columns["y"] for part in ("train", "test")}
    trivial = np.sqrt(((y["test"] - y["train"].mean(dtype=np.float64)) ** 2).mean())
    assert summary["baseline"] == {
        "rmse": pytest.approx(trivial),
        "metric": "rmse",
        "rule": "always the mean of the training samples",
    }
    assert summary["final"]["rmse"] < trivial
    clients = pq.read_table(found.path / "clients.parquet").to_pandas()
    last = clients[clients["round"] == 6]
    assert {"rmse.squared_error", "r2.squared_error", "r2.right", "r2.squared_right"} <= set(last.columns)
    assert np.sqrt(last["rmse.squared_error"].sum() / last["predictions"].sum()) == summary["final"]["rmse"]
    spread = last["r2.squared_right"].sum() - last["r2.right"].sum() ** 2 / last["predictions"].sum()
    assert 1 - last["r2.squared_error"].sum() / spread == pytest.approx(summary["final"]["r2"])


def test_groups_of_clients_are_scored_from_what_was_kept(tmp_path: Path) -> None:
    import pyarrow as pa

    found = start_run(config(), tmp_path)
    ids = found.clients.filter(pa.compute.equal(found.clients["round"], 2))["client"].to_pylist()
    attributes = pa.table({"client": ids, "kind": ["a" if i % 3 else "b" for i in range(len(ids))]})
    rows = strata(found.clients, attributes, metrics=metrics_of_run(found))["kind"]
    assert strata(found.clients, attributes) == {"kind": rows}
    frame = found.clients.to_pandas()
    frame = frame[frame["round"] == 2].reset_index(drop=True)
    for row in rows:
        own = frame[[kind == row["value"] for kind in attributes["kind"].to_pylist()]]
        count = own["predictions"].sum()
        assert row["rmse"] == pytest.approx(np.sqrt(own["rmse.squared_error"].sum() / count))
        spread = own["r2.squared_right"].sum() - own["r2.right"].sum() ** 2 / count
        assert row["r2"] == pytest.approx(1 - own["r2.squared_error"].sum() / spread)
        assert row["r2_by_client"] == pytest.approx(own["r2"].mean())
        assert row["mae"] == pytest.approx((own["mae"] * own["predictions"]).sum() / count)


def test_labels_from_the_federation_to_the_summary(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "federation": {"name": "shapes_tags", "clients": 12, "samples_per_client": 20},
        "model": {"name": "cnn", "channels": [4, 8], "hidden": 16},
        "algorithm": "ditto",
        "rounds": 2,
        "cohort": 5,
        "evaluation": {"every": 1, "training_set": True},
    }
    found = start_run(resolve(settings), tmp_path)
    final = found.summary["final"]
    assert found.summary["primary_metric"] == "average_precision"
    for name in ("average_precision", "micro_average_precision", "macro_f1", "micro_f1"):
        for column in (name, f"{name}_by_client", f"{name}_p10", f"personal_{name}"):
            assert 0 <= final[column] <= 1
        assert found.rounds[f"training_set_{name}"][-1].as_py() is not None
    assert 0 < found.summary["baseline"]["average_precision"] < 1


@pytest.mark.parametrize("task", ["click", {"name": "classification", "metrics": ["auc"]}])
def test_a_leading_metric_without_a_value_is_told(task: Any, tmp_path: Path) -> None:
    """Somebody's rare disease, which nobody has among those on whom the model is tested."""
    columns = {"x": ColumnSpec(dtype="float32", shape=(2,)), "y": ColumnSpec(dtype="int64")}
    rare = TaskSpec(kind="classification", classes=2)
    with FederationWriter(tmp_path / "rare", name="rare", task=rare, columns=columns) as writer:
        numbers = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
        for client in "ab":
            train, test = ({"x": numbers, "y": np.array([1, *[0] * 5]) * ill} for ill in (1, 0))
            writer.add_client(client, train=train, test=test)
    settings = {"federation": tmp_path / "rare", "task": task}
    told = "AUC, which the run is judged by, has no value on the 12 test samples"
    assert any(told in warning for warning in prepare(resolve_settings(None, settings), Observer()).warnings)
    settings["evaluation.part"] = "train"
    assert not any("no value" in warning for warning in prepare(resolve_settings(None, settings), Observer()).warnings)


def test_a_resumed_run_of_numbers_is_the_same(tmp_path: Path) -> None:
    class Stopping(Observer):
        def finished_round(self, outcome: Any) -> None:
            if outcome.snapshot.round == 1:
                raise KeyboardInterrupt

    whole = start_run(config(name="whole", rounds=3), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        start_run(config(name="cut", rounds=3), tmp_path, Stopping())
    resumed = resume_run(tmp_path / "cut")
    assert resumed.rounds.equals(whole.rounds)
    assert resumed.clients.equals(whole.clients)
    assert resumed.summary["final"] == whole.summary["final"]


def write_store(
    path: Path, task: TaskSpec, columns: dict[str, ColumnSpec], clients: list[dict[str, Any]]
) -> Federation:
    with FederationWriter(path, name="own", task=task, columns=columns) as writer:
        for number, samples in enumerate(clients):
            writer.add_client(f"client {number}", train=samples, test=samples)
    return Federation.open(path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("engine", ["cohort", "reference"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8"])
def test_labels_may_be_of_any_integer_type(dtype: str, engine: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    clients = [
        {"x": random.normal(size=(9, 4)).astype(np.float32), "y": random.integers(3, size=9).astype(dtype)}
        for _ in range(4)
    ]
    columns = {"x": ColumnSpec(dtype="float32", shape=(4,)), "y": ColumnSpec(dtype=dtype)}
    write_store(tmp_path / "store", TaskSpec(kind="classification", classes=3), columns, clients)
    federation = {"name": "store", "path": str(tmp_path / "store")}
    found = start_run(
        resolve({"federation": federation, "rounds": 1, "cohort": 2, "engine": engine, "algorithm": "ditto"}), tmp_path
    )
    assert found.status == "finished"


def test_ratings_of_items_by_users(tmp_path: Path) -> None:
    """What users and items have in common is learned; two inputs go into the model."""
    random = np.random.default_rng(0)
    users, items = 12, 15
    taste, kind = random.normal(size=(users, 2)), random.normal(size=(items, 2))
    rating = np.clip(np.rint(3 + taste @ kind.T), 1, 5)
    clients = []
    for user in range(users):
        item = random.permutation(items)
        clients.append({"user": np.full(items, user), "item": item, "y": rating[user, item].astype(np.float32)})
    task = TaskSpec(kind="rating", classes=1, inputs={"user": users, "item": items}, value_range=(1, 5))
    columns = {
        "user": ColumnSpec(dtype="int64"),
        "item": ColumnSpec(dtype="int64"),
        "y": ColumnSpec(dtype="float32"),
    }
    federation = write_store(tmp_path / "store", task, columns, clients)
    assert federation.label_counts.sum() == users * items
    settings: dict[str, Any] = {
        "federation": {"name": "store", "path": str(tmp_path / "store")},
        "rounds": 60,
        "cohort": 12,
        "local": {"lr": 0.1, "epochs": 2, "batch_size": 5},
        "evaluation": {"every": 60},
    }
    found = start_run(resolve(settings), tmp_path)
    assert found.config["model"]["name"] == "matrix_factorization"
    assert found.summary["primary_metric"] == "rmse"
    assert found.summary["final"]["rmse"] < 0.8 * found.summary["baseline"]["rmse"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([9.0], dtype=np.float32)}, "holds 9.0, but only 1 to 5 are valid ratings"),
        ({"y": np.array([np.nan], dtype=np.float32)}, "holds nan in train sample 0, which is no number"),
        ({"item": np.array([4])}, "holds 4, but only 0 to 3 are valid codes"),
    ],
)
def test_ratings_and_codes_are_checked(changes: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    task = TaskSpec(kind="rating", classes=1, inputs={"item": 4}, value_range=(1, 5))
    columns = {"item": ColumnSpec(dtype="int64"), "y": ColumnSpec(dtype="float32")}
    sample = {"item": np.array([1]), "y": np.array([2.0], dtype=np.float32)} | changes
    with pytest.raises(BadInputError, match=message):
        write_store(tmp_path / "store", task, columns, [sample])


def test_two_labels_as_one_score(tmp_path: Path) -> None:
    federation = {"name": "synthetic", "classes": 2, "clients": 20}
    settings = {"federation": federation, "rounds": 3, "cohort": 5, "task": {"name": "binary"}}
    found = start_run(resolve(settings), tmp_path)
    assert found.summary["primary_metric"] == "accuracy"
    opened = load_federation("synthetic", {"classes": 2, "clients": 20})
    labels = opened.samples(opened.clients("all"), "test").columns["y"]
    assert found.summary["baseline"]["accuracy"] == pytest.approx((labels == opened.label_counts.argmax()).mean())
    assert {"auc", "average_precision"} <= set(found.summary["final"])


def test_a_suite_that_names_no_task_goes_on(tmp_path: Path) -> None:
    """Its runs say which task, with all options, an automatic choice came to; other options are another suite."""
    plan = {"name": "own", "base": {"federation": "diabetes", "rounds": 1, "cohort": 3}, "seeds": [0]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(plan))
    for _ in range(2):
        planned = plan_suite(read_suite(str(tmp_path / "own.yaml"), {}), tmp_path)
        assert not run_one_by_one(begin_suite(planned, Observer()), Observer(), lambda *_: None)
    plan["base"]["task"] = {"metrics": ["mae"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(plan))
    with pytest.raises(BadInputError, match=r"task.metrics = None instead of \['mae'\]"):
        plan_suite(read_suite(str(tmp_path / "own.yaml"), {}), tmp_path)
