"""Metrics against scikit-learn: per client, pooled, with equal scores and with classes that never occur."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedarena.core.errors import BadInputError
from fedarena.metrics import Mean, Metric, MetricInfo, make_metric, ranking
from fedarena.metrics.ranking import RankingMetric, rank
from fedarena.metrics.scores import Scores
from fedarena.metrics.totals import COUNT, RIGHT, SCORES, SampleSums, Totals
from fedarena.models.tasks.base import ranking_scores

CLASSES = 4
RANKED = ("average_precision", "micro_average_precision", "auc")


def collect(
    names: list[str], outputs: np.ndarray, y: np.ndarray, owners: np.ndarray, limit_bytes: int = 1 << 28, batch: int = 7
) -> Totals:
    """What an engine does: batches of samples that ignore where a client ends."""
    made = [make_metric(name, outputs.shape[-1]) for name in names]
    totals = Totals(made, limit_bytes)
    sums = SampleSums(owners, int(owners.max()) + 1)
    for start in range(0, len(y), batch):
        rows = slice(start, start + batch)
        seen = {"y": torch.from_numpy(y[rows]), COUNT: torch.ones(len(y[rows]))}
        out = torch.from_numpy(outputs[rows])
        measured = {COUNT: seen[COUNT].numpy()}
        for metric in made:
            if isinstance(metric, RankingMetric):
                measured[SCORES], measured[RIGHT] = (t.numpy() for t in ranking_scores(out, seen))
            else:
                measured[metric.name] = metric.state(out, seen).double().numpy()
        sums.add(measured)
    totals.add(sums.finish(np.arange(owners.max() + 1)))
    return totals


def some_samples(random: np.random.Generator, samples: int, labels: bool, ties: bool) -> tuple[np.ndarray, ...]:
    """Scores, what is right, and the client of every sample, sorted; the last class never occurs."""
    outputs = random.normal(size=(samples, CLASSES))
    if ties:
        outputs = np.round(outputs)
    if labels:
        y = (random.random((samples, CLASSES)) < 0.3).astype(np.int64)
        y[:, -1] = 0
    else:
        y = random.integers(CLASSES - 1, size=samples)
    return outputs, y, np.sort(random.integers(5, size=samples))


def as_labels(y: np.ndarray) -> np.ndarray:
    return y if y.ndim == 2 else np.eye(CLASSES, dtype=np.int64)[y]


def expected(name: str, outputs: np.ndarray, y: np.ndarray) -> float:
    """By scikit-learn, over the classes for which the metric is defined."""
    predicted = (outputs > 0).astype(np.int64) if y.ndim == 2 else outputs.argmax(1)
    ranked = outputs if y.ndim == 2 else torch.from_numpy(outputs).log_softmax(-1).numpy()
    hot = as_labels(y)
    some, mixed = hot.any(0), hot.any(0) & ~hot.all(0)
    if name == "accuracy":
        return sk.accuracy_score(y, predicted)
    if name == "macro_f1":
        return sk.f1_score(y, predicted, average="macro", zero_division=np.nan)
    if name == "micro_f1":
        return sk.f1_score(y, predicted, average="micro", zero_division=np.nan)
    if name.startswith(("macro_p", "macro_r", "micro_p", "micro_r", "f1_of")):
        return expected_of_predictions(name, predicted if y.ndim == 2 else as_labels(predicted), hot)
    if name == "balanced_accuracy":
        if y.ndim == 1:
            return sk.balanced_accuracy_score(y, predicted)
        return np.mean([sk.balanced_accuracy_score(y[:, i], predicted[:, i]) for i in range(CLASSES)])
    if name == "average_precision":
        return sk.average_precision_score(hot[:, some], ranked[:, some], average="macro") if some.any() else np.nan
    if name == "micro_average_precision":
        return sk.average_precision_score(hot, ranked, average="micro") if some.any() else np.nan
    assert name == "auc"
    return (
        np.mean([sk.roc_auc_score(hot[:, i], ranked[:, i]) for i in np.flatnonzero(mixed)]) if mixed.any() else np.nan
    )


def expected_of_predictions(name: str, predicted: np.ndarray, hot: np.ndarray) -> float:
    """Classes that neither occur nor are predicted are left out, and of recall also those that do not occur.

    What is 0 divided by 0 otherwise is 0, as scikit-learn has it.
    """
    if name.startswith("f1"):
        precision, recall = (expected_of_predictions(f"macro_{of}", predicted, hot) for of in ("precision", "recall"))
        return 2 * precision * recall / (precision + recall) if precision + recall != 0 else 0.0
    average, _, what = name.partition("_")
    score = sk.precision_score if what == "precision" else sk.recall_score
    known = hot.any(0) if what == "recall" else hot.any(0) | predicted.any(0)
    if not known.any():
        return np.nan
    if average == "micro":
        return score(hot.ravel(), predicted.ravel(), zero_division=0)
    return np.mean([score(hot[:, i], predicted[:, i], zero_division=0) for i in np.flatnonzero(known)])


OF_PREDICTIONS = ("macro_precision", "macro_recall", "f1_of_averages", "micro_precision", "micro_recall")


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", [False, True], ids=["classes", "labels"])
@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "micro_f1", *OF_PREDICTIONS, "balanced_accuracy", *RANKED])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.booleans())
def test_against_scikit_learn(name: str, labels: bool, seed: int, samples: int, ties: bool) -> None:
    outputs, y, owners = some_samples(np.random.default_rng(seed), samples, labels, ties)
    counts, found = collect([name], outputs, y, owners).finish(int(owners.max()) + 1)
    np.testing.assert_allclose(found[name].total, expected(name, outputs, y), atol=1e-12, equal_nan=True)
    for value, client in zip(found[name].values, np.unique(owners), strict=True):
        own = owners == client
        np.testing.assert_allclose(value, expected(name, outputs[own], y[own]), atol=1e-12, equal_nan=True)
    assert counts.sum() == samples


@pytest.mark.parametrize("k", [1, 2, 3, 9])
def test_top_k(k: int) -> None:
    outputs, y, owners = some_samples(np.random.default_rng(0), 50, labels=False, ties=False)
    name = f"top_{k}_accuracy"
    found = collect([name], outputs, y, owners).finish(5)[1][name]
    wanted = sk.top_k_accuracy_score(y, outputs, k=min(k, CLASSES - 1), labels=range(CLASSES)) if k < CLASSES else 1.0
    assert found.total == pytest.approx(wanted)
    assert found.metric.info.label == f"top-{k} accuracy"


@pytest.mark.parametrize("numbers", [1, 3])
def test_numbers_against_scikit_learn(numbers: int) -> None:
    random = np.random.default_rng(numbers)
    y = 50 + random.normal(size=(60, numbers))
    outputs = y + random.normal(size=y.shape)
    owners = np.sort(random.integers(5, size=60))
    oracles: dict[str, Any] = {
        "mse": sk.mean_squared_error,
        "rmse": lambda a, b: np.sqrt(sk.mean_squared_error(a, b)),
        "mae": sk.mean_absolute_error,
        "r2": sk.r2_score,
    }
    _, found = collect(list(oracles), outputs, y, owners).finish(5)
    for name, oracle in oracles.items():
        assert found[name].total == pytest.approx(oracle(y, outputs))
        each = [oracle(y[owners == c], outputs[owners == c]) for c in range(5)]
        assert found[name].values == pytest.approx(each)


def test_a_single_number_has_no_variance_to_explain() -> None:
    y, outputs = np.array([[2.0], [7.0], [7.0], [1.0], [3.0]]), np.zeros((5, 1))
    _, found = collect(["r2"], outputs, y, np.array([0, 1, 1, 2, 2])).finish(3)
    assert np.isnan(found["r2"].values).tolist() == [True, True, False]
    assert found["r2"].total == pytest.approx(sk.r2_score(y, outputs))


@pytest.mark.parametrize("labels", [False, True], ids=["classes", "labels"])
def test_neither_order_nor_merging_nor_a_file_changes_a_bit(labels: bool) -> None:
    """All in one go; and in three parts that are merged in another order, with scores that go to a file."""
    names = ["accuracy", "macro_f1", "micro_f1", *OF_PREDICTIONS, "balanced_accuracy", *RANKED]
    outputs, y, owners = some_samples(np.random.default_rng(1), 300, labels, ties=True)
    whole = collect(names, outputs, y, owners, batch=300).finish(5)[1]
    merged = Totals([make_metric(name, CLASSES) for name in names], limit_bytes=500)
    for clients in ([3, 4], [0], [1, 2]):
        part = Totals(merged.metrics, limit_bytes=400)
        for client in clients:
            rows = np.flatnonzero(owners == client)[::-1]
            alone = collect(names, outputs[rows], y[rows], np.zeros(len(rows), dtype=np.int64), 300, batch=5)
            alone._blocks[0].positions[0] = client
            part.merge(alone)
        merged.merge(part)
    found = merged.finish(5)[1]
    for name in names:
        assert found[name].total == whole[name].total
        assert (found[name].values == whole[name].values).all()
        assert found[name].of_classes.keys() == whole[name].of_classes.keys()
        for column, values in found[name].of_classes.items():
            assert np.array_equal(values, whole[name].of_classes[column], equal_nan=True)


@pytest.mark.parametrize("together", [False, True])
def test_both_ways_to_count_agree(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, y, _ = some_samples(np.random.default_rng(2), 400, labels=True, ties=True)
    scores = Scores()
    for start in range(0, 400, 90):
        scores.add(outputs[start : start + 90], y[start : start + 90] > 0)
    looked_up = rank(scores, together)
    monkeypatch.setattr(ranking, "_MANY", 0)
    by_sorting = rank(scores, together)
    for name, values in vars(looked_up).items():
        assert np.array_equal(values, getattr(by_sorting, name)), name


def test_scores_beyond_the_limit_are_in_a_file() -> None:
    scores = Scores(limit_bytes=100)
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    for start in range(0, 50, 7):
        scores.add(rows[start : start + 7], rows[start : start + 7] > 0)
    assert scores._files
    assert sum(chunk.nbytes for chunk in scores._chunks) <= 100
    assert np.array_equal(np.concatenate(list(scores.chunks())), rows)
    assert scores.samples == 50


def test_thousands_of_labels_need_little_memory() -> None:
    """1,600 labels and 5,000 samples: the ranks are right, and what is kept in memory is bounded."""
    random = np.random.default_rng(0)
    scores = Scores(limit_bytes=1 << 22)
    kept, right_of = [], []
    for _ in range(10):
        chunk = random.normal(size=(500, 1600)).astype(np.float16).astype(np.float32)
        right = random.random(chunk.shape) < 0.005
        scores.add(chunk, right)
        kept.append(chunk[:, :3])
        right_of.append(right[:, :3])
        assert sum(part.nbytes for part in scores._chunks) <= 1 << 22
    metric = make_metric("average_precision", 1600)
    ranks = rank(scores, all_classes_together=False)
    assert 0 < metric.of(ranks) < 0.05
    first, hot = np.concatenate(kept), np.concatenate(right_of)
    for label in range(3):
        chosen = ranks.labels == label
        precision = ranks.right_from[chosen] / ranks.all_from[chosen]
        ours = (precision * ranks.right[chosen]).sum() / ranks.right[chosen].sum()
        assert ours == pytest.approx(sk.average_precision_score(hot[:, label], first[:, label]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acuracy", "no metric called 'acuracy'; did you mean 'accuracy'"),
        ("top_0_accuracy", "no metric called 'top_0_accuracy'; did you mean 'top_5_accuracy'"),
        ("fractions:Fraction", "not a metric: a subclass of fedarena.metrics.Metric"),
    ],
)
def test_unknown_metrics(name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        make_metric(name)


class Sureness(Mean):
    """The score of the best class."""

    info = MetricInfo("sureness", "sureness")

    def each(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return outputs.softmax(-1).amax(-1)


class Dotted(Sureness):
    """A name that would look like a part of another metric."""

    info = MetricInfo("a.b", "a b")


def test_own_metrics() -> None:
    made = make_metric(f"{__name__}:Sureness", 3)
    assert isinstance(made, Metric)
    assert made.is_mean
    with pytest.raises(BadInputError, match="letters, digits and _ only"):
        make_metric(f"{__name__}:Dotted")
    outputs = torch.randn(4, 6, 3)
    scored = torch.rand(4, 6) < 0.5
    outputs[0, ~scored[0]] = torch.nan
    state = made.state(outputs, {"scored": scored})
    assert torch.isfinite(state).all()
    torch.testing.assert_close(state[0], outputs[0][scored[0]].softmax(-1).amax(-1).sum())


def test_scores_that_are_not_numbers_have_no_order() -> None:
    """One of a single client: its metrics and those of all have no value, those of the others stay what they are."""
    outputs, y, owners = some_samples(np.random.default_rng(3), 60, labels=True, ties=False)
    _, before = collect(list(RANKED), outputs, y, owners).finish(5)
    broken = outputs.copy()
    broken[np.flatnonzero(owners == 2)[0], 1] = np.nan
    totals = collect(list(RANKED), broken, y, owners)
    _, after = totals.finish(5)
    classes = totals.classes(after)
    assert classes is not None
    others = [client for client in range(5) if client != 2]
    for name in RANKED:
        assert np.isnan(after[name].total)
        assert np.isnan(after[name].values[2])
        assert np.array_equal(after[name].values[others], before[name].values[others], equal_nan=True)
    for name, values in classes.values.items():
        whole = before[name].of_classes[name]
        assert np.isnan(values[1])
        assert not np.isnan(whole[1])
        kept = [0, 2, 3]
        assert np.array_equal(values[kept], whole[kept], equal_nan=True)
    rare = make_metric("tail_average_precision", CLASSES)
    for counts, is_broken in (([9, 1, 8, 7], True), ([1, 9, 8, 7], False)):
        rare.know_classes(counts)
        scores = Scores()
        scores.add(broken, y > 0)
        assert np.isnan(rare.of(rank(scores, False))) == is_broken
