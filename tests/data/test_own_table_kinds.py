"""Columns of unusual types: decimals, dictionaries, large attributes, names in two spellings."""

from __future__ import annotations

from decimal import Decimal
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
CLASSES = ["cat", "dog", "cat", "dog"]


def made(table: Any, **options: Any) -> Federation:
    given = {"client": "who", "label": "y", "normalize": "none", "order": "in_order", "train_fraction": 1.0}
    return from_table(table, **{**given, **options})


def test_decimals_are_the_numbers_that_they_read_as() -> None:
    column = pa.array([Decimal("-1.89"), Decimal("1.10"), Decimal("0.28"), Decimal("5.00")])
    assert column.cast(pa.float64())[0].as_py() != -1.89  # as Arrow computes them
    federation = made(pa.table({"who": WHO, "x": column, "y": CLASSES}), na_values=[-1.89], missing="drop")
    assert federation.num_samples == 3
    labels = made(pa.table({"who": WHO, "x": [1, 2, 3, 4], "y": column}), task="classification").task.label_names
    assert labels == ("-1.89", "0.28", "1.1", "5")


def test_an_object_of_json_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    lines = [f'{{"who": "{who}", "y": {number % 2}, "x": {number}}}' for number, who in enumerate(WHO)]
    lines[2] = '{"who": "b", "y": 0, "x": 2, "x": 7}'
    (tmp_path / "table.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadInputError, match=r"in line 3: an object says twice what its 'x' is"):
        made(tmp_path / "table.jsonl")


def test_categories_of_one_table_are_categories_of_all() -> None:
    categories = pd.DataFrame({"x": pd.Categorical([1, 2, 3, 1]), "y": CLASSES})
    for other in (
        pd.DataFrame({"x": [1, 2, 3, 4], "y": CLASSES}),
        pa.table({"x": pa.array([3, 4, 3, 3]).dictionary_encode(), "y": CLASSES}),
    ):
        federation = made({"north": categories, "south": other}, client=None)
        assert federation.columns["x"].names == ("x=1", "x=2", "x=3", "x=4")


def test_attributes_keep_all_their_digits() -> None:
    numbers = [2**60, 2**60, 2**60 + 1, 2**60 + 1]
    federation = made({"who": WHO, "x": [1, 2, 3, 4], "y": CLASSES, "nr": numbers}, attributes=["nr"])
    assert list(federation.attributes([0, 1])["nr"]) == [str(2**60), str(2**60 + 1)]


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize(
    ("who", "said"),
    [
        (["a", "a ", "b", "b"], "values that differ only in blanks at their ends are one: 'a'."),
        (["\u00e9a", "e\u0301a", "b", "b"], "differ only in capitals, blanks or how characters are encoded"),
        (["Ann", "ann", "b", "B"], "'Ann' and 'ann', like 1 more, differ only in capitals"),
        (["ann", "anne", "b", "bo"], None),
    ],
)
def test_names_in_two_spellings_are_told(kind: pa.DataType, who: list[str], said: str | None) -> None:
    table = pa.table({"who": pa.array(who).cast(kind), "x": np.arange(4.0), "y": CLASSES})
    told = [note for note in made(table).notes if note.startswith("Of who")]
    assert (told == []) if said is None else (len(told) == 1 and said in told[0])
