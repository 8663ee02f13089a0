"""Laws of tables: the same store from every kind of file, and nothing about training samples is learned from others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedarena import from_table
from fedarena.data import Federation

# Numbers so small that their deviation blows others up beyond 32 bits are refused, which is not what is tested here.
not_tiny = st.floats(-1e6, 1e6).map(lambda number: number if abs(number) > 1e-20 else 0.0)
numbers = st.one_of(st.none(), not_tiny, st.integers(-1000, 1000))
words = st.sampled_from(["red", "green", "blue sky", "ünder", 'quo"te', "com,ma", "new\nline", None])
labels = st.sampled_from([["no", "yes"], [-1, 1], [0, 1, 5], [True, False], [1.5, 2.25], ["10 mg", "x", "y"]])


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    rows = draw(st.integers(4, 12))
    values = draw(labels)

    def column(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=rows, max_size=rows))

    first = column(numbers)
    return {
        "who": ["ann", *column(st.sampled_from(["ann", "bob", "7"]))[1:]],
        "height": [1.5, *first[1:]],
        "steps": [3, *column(st.integers(-5, 5))[1:]],
        "colour": ["red", *column(words)[1:]],
        "smokes": column(st.booleans()),
        "label": [*values[:2], *column(st.sampled_from(values))[2:]],
        "part": ["train", *column(st.sampled_from(["train", "validation", "test"]))[1:]],
    }


OPTIONS = {"client": "who", "label": "label", "part": "part", "missing": "mean", "name": "law", "indicators": True}


def in_every_form(table: dict[str, list[Any]], folder: Path) -> dict[str, Any]:
    frame, arrow = pd.DataFrame(table), pa.table(table)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.tsv.gz", index=False, sep="\t")
    pa.parquet.write_table(arrow, folder / "t.parquet")
    pa.feather.write_feather(arrow, folder / "t.arrow")
    (folder / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "t.json").write_text(json.dumps(rows))
    files = {path.name: path for path in folder.iterdir()}
    return {**files, "frame": frame, "arrow": arrow, "records": rows, "columns": table, "reader": arrow.to_reader()}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables())
def test_every_form_gives_the_same_store(tmp_path: Path, table: dict[str, list[Any]]) -> None:
    forms = in_every_form(table, tmp_path / "forms")
    found = {form: from_table(content, **OPTIONS).fingerprint for form, content in forms.items()}
    assert len(set(found.values())) == 1, found


def training(federation: Federation) -> list[bytes]:
    """The inputs of everybody's training samples."""
    inputs = [name for name in federation.columns if name != "y"]
    samples = [federation.samples([place], "train").columns for place in range(federation.num_clients)]
    return [mine[name].tobytes() for mine in samples for name in inputs]


@pytest.mark.parametrize("normalize", ["global", "per_client", "none"])
@pytest.mark.parametrize("missing", ["mean", "median", "zero"])
@settings(max_examples=10, deadline=None)
@given(categories=st.sampled_from(["one_hot", "embedded"]), table=tables(), other=tables())
def test_other_samples_never_change_training_samples(
    normalize: str, missing: str, categories: str, table: dict[str, list[Any]], other: dict[str, list[Any]]
) -> None:
    """Whatever stands in rows that are not trained on."""
    changed = {name: list(values) for name, values in table.items()}
    for row, part in enumerate(table["part"]):
        if part != "train" and row < len(other["part"]):
            for name in ("height", "steps", "colour", "smokes"):
                changed[name][row] = other[name][row]
    options = {**OPTIONS, "normalize": normalize, "missing": missing, "categories": categories}
    first, second = from_table(table, **options), from_table(changed, **options)
    assert training(first) == training(second)
    assert first.columns == second.columns
    assert [n for n in first.notes if "normalized" in n] == [n for n in second.notes if "normalized" in n]


@settings(max_examples=25, deadline=None)
@given(table=tables())
def test_training_samples_are_standardized_and_labels_come_back(table: dict[str, list[Any]]) -> None:
    federation = from_table(table, **OPTIONS)
    names = federation.columns["x"].names
    train_clients = federation.clients("train")
    steps = federation.samples(train_clients, "train").columns["x"][:, names.index("steps")].astype(np.float64)
    assert abs(steps.mean()) < 1e-5
    assert steps.std() == pytest.approx(1, abs=1e-5) or not steps.any()
    ids = federation.client_ids(federation.clients())
    written: dict[str, list[Any]] = {who: [] for who in ids}
    for part in ("train", "validation", "test"):
        for who, label, in_part in zip(table["who"], table["label"], table["part"], strict=True):
            if in_part == part:
                written[who].append(label)
    for place, who in enumerate(ids):
        y = federation.samples([place]).columns["y"]
        if federation.task.kind == "regression":
            assert y.tolist() == written[who]
        else:
            names = federation.task.label_names
            assert [names[label] for label in y] == [
                str(label).lower() if isinstance(label, bool) else str(label) for label in written[who]
            ]
