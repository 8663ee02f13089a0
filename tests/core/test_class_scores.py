"""Scores of every class, metrics of frequent and rare classes, and what runs keep of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from scipy.stats import spearmanr
from sklearn import metrics as sk
from test_metric_values import collect
from typer.testing import CliRunner

from fedarena import api
from fedarena.cli import main
from fedarena.core.errors import BadInputError
from fedarena.display import class_frequency_figure, class_loss_figure, write_report
from fedarena.display.report.classes.section import shown_classes
from fedarena.display.report.classes.table import ClassScoresOf, ClassTable
from fedarena.display.terminal import class_tables_of
from fedarena.metrics import make_metric
from fedarena.metrics.class_strata import STRATA, class_strata
from fedarena.metrics.classes import class_columns, rank_correlation, summarize_classes
from fedarena.metrics.info import MetricInfo
from fedarena.metrics.ranking import ranking_scores
from fedarena.metrics.totals import COUNT, RIGHT, SCORES, SampleSums, Totals
from fedarena.models import DataSpec
from fedarena.models.tasks.multi_label import Binary, MultiLabel
from fedarena.runs.callbacks import Stop
from fedarena.storage.checkpoint import read_state, state_bytes, state_path

CLASSES = 7
COUNTS = (50, 5, 400, 7, 0, 90, 5)
FLAIR = ["average_precision", "micro_average_precision", "macro_precision", "macro_recall", "f1_of_averages"]
FLAIR += ["micro_precision", "micro_recall", "micro_f1"]
RUN: dict[str, Any] = {
    "federation": {"name": "shapes_tags", "clients": 12},
    "model": "logistic_regression",
    "rounds": 4,
    "cohort": 4,
    "local": {"steps": 3, "lr": 0.5},
    "evaluation": {"every": 2},
    "task": {"metrics": [*FLAIR, "tail_average_precision"]},
    "engine": "reference",
}


def some_labels(samples: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, labels and owners; label 4 never occurs, and label 3 is never predicted."""
    random = np.random.default_rng(seed)
    outputs = np.round(random.normal(size=(samples, CLASSES)), 1)
    y = (random.random((samples, CLASSES)) < [0.4, 0.1, 0.8, 0.1, 0, 0.3, 0.05]).astype(np.int64)
    outputs[:, 3] = -np.abs(outputs[:, 3]) - 0.1
    return outputs, y, np.sort(random.integers(6, size=samples))


@pytest.mark.parametrize("metrics", [["average_precision", "auc", "macro_f1"], ["balanced_accuracy"], ["auc"]])
def test_every_class_against_scikit_learn(metrics: list[str]) -> None:
    outputs, y, owners = some_labels()
    totals = collect(metrics, outputs, y, owners)
    _, found = totals.finish(6)
    classes = totals.classes(found)
    assert classes is not None
    assert list(classes.values) == class_columns([make_metric(name, CLASSES) for name in metrics])
    assert classes.samples.tolist() == y.sum(0).tolist()
    assert classes.clients.tolist() == [len(set(owners[y[:, label] > 0])) for label in range(CLASSES)]
    predicted = (outputs > 0).astype(int)
    for label in range(CLASSES):
        right, scores, said = y[:, label], outputs[:, label], predicted[:, label]
        wanted = {
            "average_precision": sk.average_precision_score(right, scores) if right.any() else np.nan,
            "auc": sk.roc_auc_score(right, scores) if right.any() else np.nan,
            "precision": sk.precision_score(right, said, zero_division=0),
            "recall": sk.recall_score(right, said, zero_division=np.nan),
            "f1": sk.f1_score(right, said, zero_division=np.nan),
        }
        for name, values in classes.values.items():
            np.testing.assert_allclose(values[label], wanted[name], atol=1e-12, equal_nan=True)
    if "precision" in classes.values:
        assert classes.values["precision"][3] == 0  # it occurs, and is never predicted


def test_one_class_of_several() -> None:
    random = np.random.default_rng(3)
    outputs, y = random.normal(size=(60, 4)), random.integers(3, size=60)
    totals = collect(["macro_recall"], outputs, y, np.sort(random.integers(5, size=60)))
    classes = totals.classes(totals.finish(5)[1])
    assert classes is not None
    assert classes.samples.tolist() == np.bincount(y, minlength=4).tolist()
    wanted = sk.recall_score(y, outputs.argmax(1), average=None, labels=range(4), zero_division=np.nan)
    np.testing.assert_allclose(classes.values["recall"], wanted, equal_nan=True)


def test_counts_of_classes_are_merged() -> None:
    outputs, y, owners = some_labels()
    whole = collect(["average_precision"], outputs, y, owners)
    merged = Totals(whole.metrics)
    for client in (4, 0, 5, 2, 1, 3):
        rows = owners == client
        alone = collect(["average_precision"], outputs[rows], y[rows], np.zeros(int(rows.sum()), dtype=np.int64))
        alone._blocks[0].positions[0] = client
        merged.merge(alone)
    ours, wanted = (totals.classes(totals.finish(6)[1]) for totals in (merged, whole))
    assert ours is not None
    assert wanted is not None
    assert ours.clients.tolist() == wanted.clients.tolist()
    assert ours.samples.tolist() == wanted.samples.tolist()
    assert np.array_equal(*(c.values["average_precision"] for c in (ours, wanted)), equal_nan=True)


def test_metrics_of_the_same_states_share_them() -> None:
    outputs, y, _ = some_labels()
    task = MultiLabel(torch.nn.Linear(2, CLASSES), DataSpec("multi_label", CLASSES, (2,)), metrics=(*FLAIR, "macro_f1"))
    measured = task.assess(torch.from_numpy(outputs), {"y": torch.from_numpy(y).double()})
    assert len(measured) == 6  # loss, count, scores, what is right, and confusions of every class and of all
    every, together = (measured[name] for name in list(measured) if name.startswith("confusions"))
    assert torch.equal(every.sum(-1), together)


def test_thirds_of_classes() -> None:
    assert class_strata(COUNTS).tolist() == [0, 1, 0, 1, 2, 0, 2]  # as many have 1 and 6: the first comes first
    assert class_strata([1, 2]).tolist() == [1, 0]


@pytest.mark.parametrize("stratum", STRATA)
def test_metrics_of_a_third(stratum: str) -> None:
    outputs, y, owners = some_labels()
    spec = DataSpec("multi_label", CLASSES, (2,), class_counts=COUNTS)
    names = (f"{stratum}_average_precision", f"{stratum}_recall")
    task = MultiLabel(torch.nn.Linear(2, CLASSES), spec, metrics=names)
    totals = Totals(task.metrics[1:])
    seen = {"y": torch.from_numpy(y), COUNT: torch.ones(len(y))}
    sums = SampleSums(owners, 6)
    states = {metric.state_name: metric.state(torch.from_numpy(outputs), seen).numpy() for metric in task.metrics[2:]}
    ranked = dict(
        zip((SCORES, RIGHT), (t.numpy() for t in ranking_scores(torch.from_numpy(outputs), seen)), strict=True)
    )
    sums.add({COUNT: np.ones(len(y)), **states, **ranked})
    totals.add(sums.finish(np.arange(6)))
    _, found = totals.finish(6)
    of_third = np.flatnonzero(class_strata(COUNTS) == STRATA.index(stratum))

    def wanted(rows: np.ndarray) -> tuple[float, float]:
        occurring = [label for label in of_third if y[rows, label].any()]
        if not occurring:
            return np.nan, np.nan
        precision = [sk.average_precision_score(y[rows, label], outputs[rows, label]) for label in occurring]
        recall = [sk.recall_score(y[rows, label], outputs[rows, label] > 0) for label in occurring]
        return float(np.mean(precision)), float(np.mean(recall))

    for name, value in zip(names, wanted(np.full(len(y), True)), strict=True):
        assert found[name].total == pytest.approx(value)
    for client in range(6):
        for name, value in zip(names, wanted(owners == client), strict=True):
            assert found[name].values[client] == pytest.approx(value, nan_ok=True)


def test_thirds_that_nobody_can_know() -> None:
    with pytest.raises(BadInputError, match="needs to know how many training samples have each class"):
        MultiLabel(torch.nn.Linear(2, 4), DataSpec("multi_label", 4, (2,)), metrics=("tail_recall",))
    two = DataSpec("classification", 2, (2,), class_counts=(5, 7))
    with pytest.raises(BadInputError, match="tail_recall is for 3 classes or more; here, 1 are predicted"):
        Binary(torch.nn.Linear(2, 1), Binary.model_spec(two), metrics=("tail_recall",))


def test_fairness_in_numbers() -> None:
    frequency = np.array([90, 10, 50, 40, 5, 30])
    scores = np.array([0.9, 0.2, 0.8, 0.5, np.nan, 0.5])
    told = summarize_classes(frequency, list("abcdef"), {"f1": scores})["f1"]
    assert told["classes"] == 5
    assert [told[stratum] for stratum in STRATA] == pytest.approx([0.85, 0.5, 0.2])
    assert told["gap"] == pytest.approx(0.65)
    assert told["tail_share"] == pytest.approx(0.2 / 0.85)
    assert (told["worst"], told["worst_class"]) == (0.2, "b")
    known = np.isfinite(scores)
    assert told["rank_correlation"] == pytest.approx(spearmanr(frequency[known], scores[known]).statistic)
    assert told["spread"] == pytest.approx(scores[known].std())
    nothing = summarize_classes(frequency, list("abcdef"), {"f1": np.full(6, np.nan)})["f1"]
    assert {key: value for key, value in nothing.items() if value is not None} == {"classes": 0}
    assert rank_correlation(frequency, np.ones(6)) is None


@pytest.mark.parametrize("frequency", [[50, 50, 50, 50], [90, 50, 50, 10]], ids=str)
def test_pages_tell_the_same_of_classes_that_are_equally_frequent(frequency: list[int]) -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    evaluated = [7, 7, 5, 3]
    of_method = ClassScoresOf("a", False, scores[None])
    metric = MetricInfo("f1", "F1")
    counted, names, thirds = np.array(frequency), list("abcd"), ["head"] * 4
    table = ClassTable(metric, names, thirds, counted, frequency, evaluated, evaluated, 22, 9, {"a": of_method})
    assert table.correlation("a") == summarize_classes(counted, list("abcd"), {"f1": scores})["f1"]["rank_correlation"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classes")


@pytest.fixture(scope="module")
def tags(folder: Path) -> api.Result:
    """A run with personal models."""
    more = {"algorithm": "ditto", "evaluation.predictions": True, "name": "tags"}
    return api.run({**RUN, **more}, runs_folder=folder, progress=False)


def test_a_run_tells_of_every_class(tags: api.Result) -> None:
    table = tags.by_class()
    assert set(tags.classes["round"].to_pylist()) == {0, 2, 4}
    assert set(table["round"].to_pylist()) == {4}
    trained = table["train_samples"].to_pylist()
    assert trained == sorted(trained, reverse=True)
    assert table["stratum"].to_pylist() == ["head"] * 3 + ["middle"] * 3 + ["tail"] * 2
    answers = tags.predictions
    scores, right = (np.array(answers[name].to_pylist()) for name in ("scores", "label"))
    owners = np.array(answers["client"].to_pylist())
    for row in table.to_pylist():
        own = right[:, row["index"]]
        assert row["average_precision"] == pytest.approx(sk.average_precision_score(own, scores[:, row["index"]]))
        assert row["recall"] == pytest.approx(sk.recall_score(own, scores[:, row["index"]] > 0))
        assert row["samples"] == own.sum()
        assert row["clients"] == len(set(owners[own > 0]))
    assert len(set(table["class"].to_pylist())) == 8
    final = tags.summary["final"]
    told = tags.summary["classes"]["average_precision"]
    assert np.mean(table["average_precision"].to_pylist()) == pytest.approx(final["average_precision"])
    assert told["tail"] == pytest.approx(final["tail_average_precision"])
    assert told["head"] - told["tail"] == pytest.approx(told["gap"])
    personal = np.mean(table["personal_average_precision"].to_pylist())
    assert personal == pytest.approx(final["personal_average_precision"])
    assert personal != final["average_precision"]
    assert "personal_average_precision" in tags.summary["classes"]
    assert tags.by_class(round=0)["round"].to_pylist() == [0] * 8
    with pytest.raises(BadInputError, match="not evaluated any class in round 1"):
        tags.by_class(round=1)


def test_both_engines_agree(tags: api.Result, folder: Path) -> None:
    more = {"algorithm": "ditto", "engine": "cohort", "name": "at once"}
    other = api.run({**RUN, **more}, runs_folder=folder, progress=False)
    for name in tags.classes.column_names:
        ours, theirs = (run.classes[name].to_pylist() for run in (tags, other))
        assert ours == (theirs if isinstance(ours[0], str) else pytest.approx(theirs, abs=1e-6))


def test_pieces_and_more_rounds_give_the_same_classes(tags: api.Result, folder: Path) -> None:
    """In pieces; and with an evaluation in between, of a last round, that is taken back."""
    more = {"algorithm": "ditto", "evaluation.predictions": True}
    with api.open({**RUN, **more, "name": "pieces"}, runs_folder=folder) as run:
        run.advance(3)
    api.open(folder / "pieces").advance().close()
    api.run({**RUN, **more, "rounds": 3, "name": "longer"}, runs_folder=folder, progress=False)
    api.resume(folder / "longer", rounds=4, progress=False)
    for name in ("pieces", "longer"):
        assert (folder / name / "classes.parquet").read_bytes() == (tags.path / "classes.parquet").read_bytes()


def test_a_round_that_turned_out_to_be_the_last(folder: Path) -> None:
    """It is evaluated although that was not due, and so are its classes."""

    def stop(run: api.Run, row: dict[str, Any]) -> Stop | None:
        return Stop("enough", for_good=True) if row["round"] == 3 else None

    run = api.run({**RUN, "name": "stopped"}, runs_folder=folder, callbacks=[stop], progress=False)
    assert set(run.classes["round"].to_pylist()) == {0, 2, 3}


def test_a_run_of_a_version_without_classes_does_not_go_on(folder: Path) -> None:
    run = api.open({**RUN, "name": "old"}, runs_folder=folder).advance(2)
    state = read_state(run.folder)
    run._let_go()
    tables = {name: table for name, table in state.tables.items() if name != "classes"}
    state_path(run.folder).write_bytes(state_bytes(state.model_copy(update={"tables": tables})))
    (run.folder / "checkpoint" / "classes.arrows").unlink()
    assert len(api.load(run.folder).classes) == 0
    with pytest.raises(BadInputError, match="table of classes has other columns"):
        api.open(run.folder)


def test_a_run_without_such_metrics_has_no_table(folder: Path) -> None:
    settings = {**RUN, "rounds": 1, "name": "plain", "task": {"metrics": ["micro_f1", "micro_average_precision"]}}
    plain = api.run(settings, runs_folder=folder, progress=False)
    assert not (plain.path / "classes.parquet").exists()
    assert "classes" not in plain.summary
    for look in (plain.by_class, api.compare([plain]).by_class):
        with pytest.raises(BadInputError, match=r"none of .* metrics is a mean over classes"):
            look()
    shown = CliRunner().invoke(main, ["classes", str(plain.path)])
    assert shown.exit_code == 2


def test_methods_beside_each_other(tags: api.Result, folder: Path, tmp_path: Path) -> None:
    """In Python, on the screen, in the report; personal models are a line of their own."""
    other = api.run({**RUN, "seed": 1, "name": "avg"}, runs_folder=folder, progress=False)
    both = api.compare([tags, other])
    table = both.by_class("recall")
    assert table.column_names[5:] == ["ditto", "ditto, personal", "fedavg"]
    assert table["ditto"].to_pylist() == tags.by_class()["recall"].to_pylist()
    with pytest.raises(BadInputError, match="no 'reca' of classes; did you mean 'recall'"):
        both.by_class("reca")
    shown = CliRunner().invoke(
        main, ["classes", str(tags.path), str(other.path), "--metric", "f1"], env={"COLUMNS": "120"}
    )
    assert shown.exit_code == 0
    assert "F1 of every class" in shown.output
    assert all(name in shown.output for name in (*tags.by_class()["class"].to_pylist(), "tail: mean of 2", "training"))
    page = both.write_report(tmp_path / "report.html").read_text()
    assert 'id="classes"' in page
    assert "Average precision by how many clients have a class" in page
    loss = class_loss_figure(both)
    assert len(loss.data) == 3
    assert any((line.y == 100).all() for line in loss.data)
    dots = class_frequency_figure(both, "average_precision").data[0]
    share = {row["class"]: 100 * row["samples"] / len(tags.predictions) for row in tags.by_class().to_pylist()}
    assert dict(zip(dots.text, dots.x, strict=True)) == pytest.approx(share)
    only = class_loss_figure([other])
    assert only is None


def test_names_of_classes_are_text(tags: api.Result, tmp_path: Path) -> None:
    """Whatever a federation calls its classes, no page or screen takes it for its own language."""
    names = [f"<i>[red]{name}$x$" for name in tags.classes["class"].to_pylist()]
    place = tags.classes.column_names.index("class")
    odd = replace(tags, classes=tags.classes.set_column(place, "class", pa.array(names)))
    page = write_report([odd], tmp_path / "report.html").read_text()
    assert "<i>[red]" not in page
    assert "&lt;i&gt;[red]" in page
    with (screen := Console(width=120)).capture() as shown:
        for table in class_tables_of([odd], 120):
            screen.print(table)
    assert all(name in shown.get() for name in names)


def test_many_classes_are_shown_by_their_ends() -> None:
    assert shown_classes(5, 6) == [0, 1, 2, 3, 4]
    assert shown_classes(100, 6) == [0, 1, 2, 97, 98, 99]
