"""Tables that look harmless and would have become something else without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedarena import from_table
from fedarena.core.errors import BadInputError
from fedarena.data import Federation

WHO = list("aabb")
ONE_HOT = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]


def made(table: Any, **options: Any) -> Federation:
    given = {"client": "who", "label": "y", "normalize": "none", "order": "in_order", "train_fraction": 1.0}
    return from_table(table, **{**given, **options})


def labels(federation: Federation) -> list[Any]:
    return federation.samples(federation.clients()).columns["y"].tolist()


def inputs(federation: Federation) -> np.ndarray:
    return np.asarray(federation.samples(federation.clients()).columns["x"])


def test_lists_of_numbers_as_labels_are_what_the_task_says() -> None:
    table = {"who": WHO, "x": [1, 2, 3, 4], "y": ONE_HOT}
    with pytest.raises(BadInputError, match=r"'y' holds lists of 3 numbers that are 0 or 1; say whether each place"):
        made(table)
    classes = made(table, task="classification")
    assert (classes.task.kind, classes.task.label_names, labels(classes)) == (
        "classification",
        ("0", "1", "2"),
        [0, 1, 2, 1],
    )
    places = made(table, task="multi_label")
    assert (places.task.label_names, labels(places)) == (("y[0]", "y[1]", "y[2]"), ONE_HOT)
    numbers = made({**table, "y": [[0.5, 1.0], [2.0, 3.0], [0.0, 1.0], [1.0, 1.0]]})
    assert (numbers.task.kind, numbers.task.classes, labels(numbers)[0]) == ("regression", 2, [0.5, 1.0])


@pytest.mark.parametrize(
    ("y", "task", "sentence"),
    [
        ([[1, 2], [2, 3], [3, 4], [1, 3]], "auto", "'y' holds lists of 2 numbers; say whether"),
        ([[1, 1], [0, 1], [1, 0], [0, 0]], "classification", "have not one 1 each"),
        ([[0.5, 1.0], [1.0], [1.0], [2.0]], "auto", "lists of unequal lengths with fractions"),
        ([[1, 1], [2], [3], [1, 3]], "auto", "the same number twice"),
    ],
)
def test_lists_of_numbers_that_are_not_certain(y: list[Any], task: str, sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        made({"who": WHO, "x": [1, 2, 3, 4], "y": y}, task=task)
