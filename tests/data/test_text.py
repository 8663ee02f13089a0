"""Texts to classify: tasks whose inputs are tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedarena.core.errors import BadInputError
from fedarena.data import Federation, FederationWriter
from fedarena.data.store.schema import ColumnSpec, TaskSpec
from fedarena.runs.baseline import baseline_of
from fedarena.runs.building import build_task
from fedarena.runs.config import resolve

TASK = TaskSpec(kind="classification", classes=2, tokens=5, padding=0, unknown=1, token_names=("", "?", "a", "b", "c"))
COLUMNS = {"x": ColumnSpec(dtype="uint16", shape=(3,)), "y": ColumnSpec(dtype="int64")}


def write(path: Path, x: list[list[int]], y: list[int]) -> Federation:
    with FederationWriter(path, name="texts", task=TASK, columns=COLUMNS) as writer:
        writer.add_client("ann", train={"x": np.array(x, dtype=np.uint16), "y": np.array(y)})
    return Federation.open(path)


def test_a_vocabulary_is_kept(tmp_path: Path) -> None:
    federation = write(tmp_path / "texts", [[0, 0, 4], [2, 1, 3]], [1, 1])
    assert federation.task == TASK
    assert federation.task.vocabulary == 5


def test_padding_is_no_label_and_labels_are_no_padding(tmp_path: Path) -> None:
    """Token 0 is padding, but label 0 counts."""
    federation = write(tmp_path / "texts", [[0, 0, 4], [2, 1, 3], [2, 2, 2]], [0, 0, 1])
    assert federation.label_counts.tolist() == [2, 1]
    task = build_task(resolve({"model": "bag_of_words", "task": "classification"}), federation)
    found, told = baseline_of(task, federation, federation.clients(), "train")
    assert not told
    assert found["accuracy"] == pytest.approx(2 / 3)


def test_tokens_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="Column 'x' holds 5, but only 0 to 4 are valid tokens"):
        write(tmp_path / "texts", [[0, 0, 5]], [0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("task", "complaint"),
    [
        ({"kind": "classification", "padding": 0}, "a classification task without text does not have"),
        ({"kind": "classification", "tokens": 5, "padding": 5}, "padding must be between 0 and 4, not 5"),
        ({"kind": "next_token", "tokens": 5}, "tokens of a next_token task are its classes"),
        ({"kind": "classification", "tokens": 5, "token_names": ("a",)}, "1 names for 5 tokens"),
    ],
)
def test_tasks_that_make_no_sense(task: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        TaskSpec(classes=2, **task)


@pytest.mark.parametrize("column", [ColumnSpec(dtype="float32", shape=(3,)), ColumnSpec(dtype="uint8", shape=(3, 3))])
def test_texts_are_sequences_of_integers(tmp_path: Path, column: ColumnSpec) -> None:
    with pytest.raises(BadInputError, match=r"must hold integers of shape \[length\] in a federation of text"):
        FederationWriter(tmp_path / "texts", name="texts", task=TASK, columns={**COLUMNS, "x": column})


def test_tasks_without_text_say_nothing_of_it() -> None:
    """Or the stores of before would have other fingerprints."""
    assert set(TaskSpec(kind="classification", classes=2).model_dump(mode="json")) == {
        "kind",
        "classes",
        "padding",
        "unknown",
        "label_names",
    }
