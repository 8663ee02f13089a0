"""Numbers that rounding would make the same: labels are refused, inputs are told of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedarena
from fedarena import from_table
from fedarena.core.errors import BadInputError
from fedarena.core.rounding import changed_by_rounding
from fedarena.data import ColumnSpec, FederationWriter, TaskSpec

STAMPS = 1.7e9 + np.arange(40) + 0.5


@given(st.floats(1, 1e6), st.floats(-1e3, 1e3))
def test_numbers_that_differ_by_much_more_than_their_last_digit_are_fine(deviation: float, middle: float) -> None:
    drawn = np.random.default_rng(0).normal(middle, deviation, (50, 3))
    assert changed_by_rounding(drawn) is None
    assert changed_by_rounding(np.round(drawn)) is None


@pytest.mark.parametrize("values", [STAMPS, np.stack([np.arange(40.0), STAMPS], 1), np.arange(10**8, 10**8 + 40)])
def test_a_number_that_changes_is_named(values: np.ndarray) -> None:
    before, after = changed_by_rounding(values)
    assert before in values
    assert after == float(np.float32(before)) != before


@pytest.mark.parametrize("values", [[], [7.0], [1e9] * 3, [np.nan, 1.0, 2.0], [0.1, 0.1 + 1e-12, 5.0], [1e300, 1.0]])
def test_what_never_differs_or_is_missing_is_fine(values: list[float]) -> None:
    assert changed_by_rounding(values) is None


@pytest.mark.parametrize("labels", [{"y": STAMPS}, {"y": STAMPS, "z": STAMPS}, {"y": [[a, a + 1] for a in STAMPS]}])
def test_labels_of_tables_are_refused(labels: dict[str, Any]) -> None:
    table = {"who": list("ab") * 20, "x": range(40), **labels}
    with pytest.raises(BadInputError, match=r"The label 'y' holds numbers that differ by less .*: 1700000000\.5 would"):
        from_table(table, client="who", label=list(labels) if len(labels) > 1 else "y", task="regression")
    less = {name: (np.asarray(values) - 1.7e9).tolist() for name, values in labels.items()}
    from_table({**table, **less}, client="who", label=list(labels) if len(labels) > 1 else "y", task="regression")


def store(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    task = TaskSpec(kind="regression", classes=1, value_range=(float(y.min()), float(y.max())))
    columns = {"x": ColumnSpec(dtype="float64", shape=(1,)), "y": ColumnSpec(dtype="float64")}
    with FederationWriter(path, name="own", task=task, columns=columns) as writer:
        for client in range(4):
            rows = slice(client * 10, client * 10 + 10)
            part = {"x": x[rows, None], "y": y[rows]}
            writer.add_client(f"c{client}", train=part, test=part)


def test_labels_of_stores_are_refused_and_inputs_told(tmp_path: Path) -> None:
    settings = {"rounds": 1, "cohort": 2, "name": "run"}
    store(tmp_path / "labels", np.arange(40.0), STAMPS)
    with pytest.raises(
        BadInputError, match=r"has numbers in 'y' that differ by less .*; subtract what they have in co"
    ):
        fedarena.run({"federation": str(tmp_path / "labels"), **settings}, runs_folder=tmp_path, progress=False)
    store(tmp_path / "inputs", STAMPS, np.arange(40.0))
    with pytest.warns(UserWarning, match="has numbers in 'x' that differ by less than the seven digits"):
        fedarena.run({"federation": str(tmp_path / "inputs"), **settings}, runs_folder=tmp_path, progress=False)
    exact = {"engine.dtype": "float64", "name": "exact"}
    fedarena.run({"federation": str(tmp_path / "labels"), **settings, **exact}, runs_folder=tmp_path, progress=False)
