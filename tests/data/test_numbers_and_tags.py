"""Federations whose samples have a number or several labels: diabetes, shapes_tags, and what the store allows."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, TaskSpec, describe, load_federation
from fedarena.data.sources.shapes import SHAPES
from fedarena.data.store.labels import count_labels


def test_diabetes_has_every_patient_once() -> None:
    federation = load_federation("diabetes")
    everybody = federation.samples(federation.clients("all"))
    x, y = everybody.columns["x"], everybody.columns["y"]
    source = load_diabetes()
    assert sorted(y.tolist()) == sorted(source.target.tolist())
    assert (np.square(x).sum(1).mean(), x.shape) == (pytest.approx(1), (442, 10))
    ours = x[np.argsort(y, kind="stable")]
    theirs = source.data[np.argsort(source.target, kind="stable")]
    np.testing.assert_allclose(ours[0], theirs[0] * np.sqrt(44.2), rtol=1e-5)
    assert federation.task.value_range == (source.target.min(), source.target.max())


@pytest.mark.parametrize("by", ["progression", "age"])
def test_clients_differ_in_what_they_are_divided_by(by: str) -> None:
    federation = load_federation("diabetes", {"by": by, "partition": {"name": "shards", "clients": 10}})
    means = []
    for column in ("y", "x"):
        values = [federation.samples([c]).columns[column] for c in federation.clients("all")]
        one = [v if column == "y" else v[:, 0] for v in values]
        means.append(np.std([v.mean() for v in one]) / np.std(np.concatenate(one)))
    progression, age = means
    assert (progression > age) == (by == "progression")


def test_numbers_are_described_by_bins() -> None:
    federation = load_federation("diabetes")
    found = describe(federation)
    assert found.labels.counts.sum() == 442
    assert len(found.labels.counts) == len(found.labels.names) == 10
    assert found.labels.names[0] == "25 to 57.1"
    y = federation.samples(federation.clients("all")).columns["y"]
    assert found.labels.counts.tolist() == np.histogram(y, 10, (25, 346))[0].tolist()


def test_numbers_without_a_range_are_not_told_apart() -> None:
    task = TaskSpec(kind="regression", classes=2)
    counts = count_labels(task, np.arange(12.0).reshape(6, 2), np.array([0, 4, 6]))
    assert counts.tolist() == [[8], [4]]


def test_pictures_show_what_they_are_tagged_with() -> None:
    options = {"clients": 5, "samples_per_client": 200, "size": 16, "most_shapes": 3, "noise": 0.0}
    federation = load_federation("shapes_tags", options)
    assert federation.task.label_names == tuple(SHAPES)[:8]
    samples = federation.samples(federation.clients("all"))
    x, y = samples.columns["x"], samples.columns["y"]
    tags = y.sum(1)
    assert set(tags) == {1, 2, 3}
    ink = [x[tags == number].mean() for number in (1, 2, 3)]
    assert ink[0] < ink[1] < ink[2]
    # a client has favourites
    shares = np.stack([federation.samples([c]).columns["y"].mean(0) for c in range(5)])
    assert shares.std(0).mean() > 0.05
    with pytest.raises(BadInputError, match="cannot have 3 of 2 shapes"):
        load_federation("shapes_tags", {"classes": 2})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "classification", "classes": 1}, "needs at least 2 classes, not 1"),
        ({"kind": "rating", "classes": 1}, "has 1 number to predict .* and a value_range"),
        ({"kind": "rating", "classes": 2, "value_range": (1, 5)}, "has 1 number to predict"),
        ({"kind": "regression", "classes": 1, "value_range": (5, 1)}, "value_range must rise"),
        ({"kind": "multi_label", "classes": 3, "value_range": (0, 1)}, "a multi_label task has none"),
        ({"kind": "next_token", "classes": 3, "inputs": {"item": 3}}, "text has no other inputs"),
        ({"kind": "regression", "classes": 1, "inputs": {"mask": 3}}, "other names than y, mask and key"),
    ],
)
def test_tasks_that_make_no_sense(fields: dict, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        TaskSpec(**fields)


def test_columns_must_fit_the_task() -> None:
    number, code = ColumnSpec(dtype="float32"), ColumnSpec(dtype="int32")
    with pytest.raises(BadInputError, match="needs the column 'item'"):
        TaskSpec(kind="regression", classes=1, inputs={"item": 3}).check_columns({"x": number, "y": number})
    with pytest.raises(BadInputError, match="'item' must hold integers, which are codes"):
        TaskSpec(kind="regression", classes=1, inputs={"item": 3}).check_columns({"item": number, "y": number})
    with pytest.raises(BadInputError, match=r"must have shape \[2\] in a regression"):
        TaskSpec(kind="regression", classes=2).check_columns({"x": number, "y": number})
    TaskSpec(kind="regression", classes=1, inputs={"item": 3, "age": None}).check_columns(
        {"item": code, "age": number, "y": number}
    )


def test_fingerprints_of_before_stay() -> None:
    """A task without the newer fields is written as it was before there were any."""
    written = TaskSpec(kind="classification", classes=3).model_dump(mode="json")
    assert written == {"kind": "classification", "classes": 3, "padding": None, "unknown": None, "label_names": None}
