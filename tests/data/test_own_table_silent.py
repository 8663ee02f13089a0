"""Tables that look harmless and would have become something else without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from own_tables import WHO, inputs, labels, made
from typer.testing import CliRunner

from fedarena import from_table
from fedarena.cli import main
from fedarena.core.errors import BadInputError

ONE_HOT = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]


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


def test_the_index_of_a_data_frame_is_no_input(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": WHO, "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]}, index=[3, 1, 0, 2])
    frame.to_parquet(tmp_path / "t.parquet")
    for table in (tmp_path / "t.parquet", pa.Table.from_pandas(frame)):
        federation = made(table)
        assert federation.columns["x"].names == ("x",)
        assert federation.notes[0] == "__index_level_0__ is left out: it is the index of a data frame."
    assert made(tmp_path / "t.parquet", features=["__index_level_0__"]).columns["x"].names == ("__index_level_0__",)
    frame.to_csv(tmp_path / "t.csv")
    for table in (tmp_path / "t.csv", pd.read_csv(tmp_path / "t.csv")):
        with pytest.raises(BadInputError, match=r"A column has no name \('(Unnamed: 0)?'\)"):
            made(table)
    assert made(tmp_path / "t.csv", drop=[""]).columns["x"].names == ("x",)
    words = ["import", "t.csv", "--client", "who", "--label", "y", "--drop", "", "-o", "s"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        result = CliRunner().invoke(main, ["data", *words])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('a,2,"no\nb,3,yes\n', "ends inside quotation marks"),
        ('a,2,no\nb,3,"yes\n', "ends inside quotation marks"),
        ('a,2,no\nb,3,"yes', r"ends inside quotation marks: the value 'yes' of row 2"),
        ('a,2,"no\nb,3,"yes\nb,1,no\n', r"a value of column 'y' in row 1 begins with a quotation mark and goes on"),
    ],
)
@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_stray_quotation_mark_swallows_no_rows(tmp_path: Path, text: str, sentence: str, delimiter: str) -> None:
    (tmp_path / "t.csv").write_text(("who,x,y\n" + text).replace(",", delimiter))
    with pytest.raises(BadInputError, match=sentence):
        made(tmp_path / "t.csv")


def test_values_in_quotes_may_have_lines_if_somebody_says_so(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('who,x,note,y\na,1,"well,\nno",0\nb,2,"""",1\n')
    with pytest.raises(BadInputError, match=r"say that it may \(multiline\)"):
        made(tmp_path / "t.csv", drop=["note"])
    assert made(tmp_path / "t.csv", drop=["note"], multiline=True).num_samples == 2
    (tmp_path / "quoted.csv").write_text('"who","x","y"\n"a","1","0"\n"b","2","1"')
    assert made(tmp_path / "quoted.csv").num_samples == 2


@pytest.mark.parametrize("nothing", ["NA", "nan", " ", "?", -9])
def test_missing_ids_are_no_clients(nothing: Any) -> None:
    ids = [1, 1, 2, nothing] if nothing == -9 else ["a", "a", "b", nothing]
    table = {"who": ids, "site": ["n", "n", "?", "s"], "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    options = {"na_values": ["?", -9], "attributes": ["site"]}
    with pytest.raises(BadInputError, match="'who' has no value in row 4"):
        made(table, **options)
    federation = made(table, missing="drop", **options)
    assert len(federation.client_ids(federation.clients())) == 2
    assert federation.attributes(federation.clients())["site"] == ["n", ""]


def test_classes_are_those_of_samples_that_are_left() -> None:
    table = {"who": WHO, "x": [1, 2, None, 4], "y": ["a", "c", "b", "c"]}
    federation = made(table, missing="drop")
    assert (federation.task.label_names, labels(federation)) == (("a", "c"), [0, 1, 1])
    tags = made({**table, "y": ["a", "c|a", "b", "c"]}, missing="drop", label_separator="|")
    assert (tags.task.label_names, labels(tags)) == (("a", "c"), [[1, 0], [1, 1], [0, 1]])
    with pytest.raises(BadInputError, match="'y' is c in every sample that is left"):
        made({**table, "y": ["c", "c", "b", "c"]}, missing="drop")
    apart = {**table, "x": [1, 2, 3, 4], "part": ["train", "train", "test", "train"]}
    assert from_table(apart, client="who", label="y", part="part").notes[-1] == "No training sample has the label b."


def test_ids_are_the_same_from_all_files(tmp_path: Path) -> None:
    frame = pd.DataFrame({"who": [1.0, 1.0, 2.0, np.nan], "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for name in ("t.csv", "t.parquet"):
        assert made(tmp_path / name, missing="drop").client_ids([0, 1]) == ["1", "2"]
    with pytest.raises(BadInputError, match=r"client: column 'who' holds both '1' and '1.0'; write the same number"):
        made({"who": ["1", "1.0", "2", "2"], "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
    versions = made({"who": ["1.0", "1.5", "2.0", "2.0"], "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]})
    assert versions.client_ids([0, 1, 2]) == ["1.0", "1.5", "2.0"]


RECORDS = {"who": ["ann", "ann", "bob", "bob"], "x": [1.5, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]}


def test_columns_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(RECORDS)
    for kind in (pd.Series, lambda values: pa.chunked_array([values[:2], values[2:]]), pa.array):
        assert made({name: kind(values) for name, values in RECORDS.items()}).fingerprint == plain.fingerprint
    masked = np.ma.masked_array([1.5, 2.0, 999.0, 4.0], mask=[False, False, True, False])
    assert inputs(made({**RECORDS, "x": masked}, missing="zero"))[:, 0].tolist() == [1.5, 2, 0, 4]
    text = "who,x,y\rann,1.5,0\rann,2,1\rbob,3,0\rbob,4,1\r"
    (tmp_path / "table.csv").write_bytes(text.encode())
    monkeypatch.setenv("HOME", str(tmp_path))
    from_old_mac = made("~/table.csv", name="table")
    np.testing.assert_array_equal(inputs(from_old_mac), inputs(plain))
    given = {"train_fraction": np.float32(0.5), "split_seed": np.int64(3), "na_values": [np.int64(9)]}
    assert (
        made(RECORDS, **given).fingerprint == made(RECORDS, train_fraction=0.5, split_seed=3, na_values=9).fingerprint
    )


def test_ids_of_several_tables_keep_all_digits() -> None:
    small = {"who": pa.array([1, 2], pa.int32()), "x": [1, 2], "y": [0, 1]}
    large = {"who": pa.array([2**53 + 1, 2**53], pa.int64()), "x": [1, 2], "y": [0, 1]}
    federation = made({"a": pa.table(small), "b": pa.table(large)})
    assert federation.client_ids([0, 1, 2, 3]) == ["1", "2", str(2**53 + 1), str(2**53)]
    with_gap = pa.table({**small, "who": [1.0, None]})
    assert made({"a": with_gap, "b": pa.table(large)}, missing="drop").client_ids([0, 1, 2])[1:] == [
        str(2**53 + 1),
        str(2**53),
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train_fraction": float("nan")}, "train_fraction must be a number from 0, not nan"),
        ({"client": None, "partition": 5}, "partition must be a name, or a mapping with a name and options, not 5"),
        ({"label": "who"}, "label names 'who', which client names, too"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        made(RECORDS, **options)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("t.jsonl", '{"who": "\\ud800", "y": 1}', "'who' holds .*, which is no text"),
        ("t.csv", "who,x,y\nann,1,0\nbob,2\n", "has 2 values in row 2, where there are 3 columns: 'bob,2'"),
        ("t.csv", "who,x,y\nann,1,0\nbob,2,1,7\n", "has 4 values in row 2, where there are 3 columns: 'bob,2,1,7'"),
        ("t.csv", "\n\nwho,x,y\nann,1,0\n", "begins with an empty line"),
    ],
)
def test_files_that_are_not_as_they_should_be(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInputError, match=sentence):
        made(tmp_path / name)


@pytest.mark.parametrize(
    ("who", "y", "said"),
    [
        (["a", "a ", "b", "b"], ["cat", "dog", "cat", "dog"], "Of who, values that differ only in blanks at"),
        (WHO, ["cat", "cat ", "dog", "\tdog"], "Of y, values that differ only in blanks at their ends are one: 'cat'."),
        (WHO, ["cat", "cat", "dog ", "dog "], None),
    ],
)
def test_names_that_differ_in_blanks_alone_are_the_same_and_that_is_said(who, y, said: str | None) -> None:
    federation = made({"who": who, "x": [1, 2, 3, 4], "y": y})
    assert federation.num_clients == 2
    assert federation.task.label_names == ("cat", "dog")
    told = [note for note in federation.notes if "blanks" in note]
    assert (told == []) if said is None else told[0].startswith(said)


ARFF = r"""@relation r
@attribute who string
@attribute colour {'dark red',z,'it\'s'}
@attribute y {0,1}
@data
ann,'dark red',0
ann,"dark red",1
ann, 'z' ,0
bob,z,1
bob,'it\'s',0
bob,"it's",1
bob,'it''s',0
bob,"say, ""it''s\"",1
"""


def test_both_kinds_of_quotation_marks_of_arff_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.arff").write_text(ARFF)
    found = made(tmp_path / "t.arff")
    assert found.columns["x"].names == ("colour=dark red", "colour=it's", "colour=say, \"it''s\"", "colour=z")
    assert inputs(found).argmax(axis=1).tolist() == [0, 0, 3, 3, 1, 1, 1, 2]
    assert labels(found) == [0, 1] * 4


def test_unquoted_apostrophes_of_arff_are_letters(tmp_path: Path) -> None:
    rows = ["ann,'80s,0", "ann,O'Brien,1", 'ann,"x, y",0', "bob,'90s,1"]
    (tmp_path / "t.arff").write_text(ARFF.partition("ann")[0] + "\n".join(rows))
    assert made(tmp_path / "t.arff").columns["x"].names == (
        "colour='80s",
        "colour='90s",
        "colour=O'Brien",
        "colour=x, y",
    )


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.0], [2.0], [3.0], [4.0]], requires_grad=True),
        torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16(),
        torch.tensor([1.0, 2.0, 3.0, 4.0]).half(),
        torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()),
    ],
)
def test_tensors_of_any_kind_are_columns(tensor: torch.Tensor) -> None:
    assert inputs(made({"who": WHO, "x": tensor, "y": torch.tensor([0, 1, 0, 1])}))[:, 0].tolist() == [1, 2, 3, 4]


def test_files_in_encodings_with_a_mark_that_end_inside_quotation_marks_are_refused(tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf16", "utf-16-be", "utf32"):
        (tmp_path / "t.csv").write_bytes('who,x,y\na,1,no\na,2,yes\nb,3,no\nb,4,"ye'.encode(encoding))
        with pytest.raises(BadInputError, match="ends inside quotation marks: the value 'ye' of row 4"):
            made(tmp_path / "t.csv", encoding=encoding)


class OfPolars:
    """A column as Polars gives it: NumPy makes floats of it, Arrow what it is."""

    def __init__(self, values: list[Any]):
        self._values = pa.chunked_array([values])

    def __len__(self) -> int:
        return len(self._values)

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self._values.__arrow_c_stream__(schema)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values.to_numpy(), dtype=dtype)


@pytest.mark.parametrize("made_of", [lambda ids: pd.array(ids, dtype="Int64"), OfPolars])
def test_columns_with_gaps_keep_all_digits(made_of: Any) -> None:
    ids = [2**60 + 1, 2**60 + 2, None, 2**60 + 1]
    found = made({"who": made_of(ids), "x": [1, 2, 3, 4], "y": [0, 1, 1, 1]}, missing="drop")
    assert found.client_ids(found.clients()) == [str(2**60 + 1), str(2**60 + 2)]


def test_categories_of_pandas_are_categories_outside_of_frames_too() -> None:
    table = {"who": WHO, "x": pd.Categorical([3, 1, 3, 1]), "y": [0, 1, 1, 0]}
    assert made(table).columns["x"].names == made(pd.DataFrame(table)).columns["x"].names == ("x=1", "x=3")


def test_numbers_that_mean_a_missing_value_are_no_labels_among_several_either() -> None:
    table = {"who": WHO, "x": [1, 2, 3, 4], "y": ["sea|sun", "-9", "sun", "-9.0"]}
    found = made(table, label_separator="|", na_values=[-9], missing="drop")
    assert (found.task.label_names, labels(found)) == (("sea", "sun"), [[1, 1], [0, 1]])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[0.5, 2.0]] * 4),
        pa.array([[1, 2]] * 4, pa.list_(pa.int8(), 2)),
        pa.array([["1", "2.5"]] * 4, pa.large_list(pa.string())),
    ],
)
def test_lists_of_several_tables_are_joined(values: pa.Array) -> None:
    x = [[1, 2], [3, 4], [2**60 + 1, 6], [7, 8]]
    one = pa.table({"who": WHO, "x": x, "y": [0, 1, 0, 1]})
    found = inputs(made({"one": one, "other": pa.table({"who": list("ccdd"), "x": values, "y": [0, 1, 0, 1]})}))
    assert found.tolist() == np.array([*x, *values.to_pylist()], dtype=np.float64).astype(np.float32).tolist()


def test_lists_of_several_tables_that_have_nothing_in_common_are_refused() -> None:
    one = pa.table({"who": WHO, "x": [[1, 2]] * 4, "y": [0, 1, 0, 1]})
    categories = pa.array([["1", "2"]] * 4, pa.list_(pa.dictionary(pa.int8(), pa.string())))
    for x, sentence in (
        ([[]] * 4, "lists of unequal lengths"),
        ([[{"a": 1}]] * 4, "in another"),
        (categories, "in another"),
    ):
        with pytest.raises(BadInputError, match=sentence):
            made({"one": one, "other": pa.table({"who": WHO, "x": x, "y": [0, 1, 0, 1]})})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([0] * 4, pa.timestamp("us")), pa.array([0] * 4, pa.timestamp("ns"))),
        (pa.array([0] * 4, pa.date32()), ["1970-01-01"] * 4),
        ([[1, 2]] * 4, [1] * 4),
        ([{"a": 1}] * 4, ["a"] * 4),
    ],
)
def test_columns_that_are_two_things_in_two_tables_can_only_be_left_out(first: Any, second: Any) -> None:
    several = {
        name: pa.table({"who": WHO, "x": [1, 2, 3, 4], "y": [0, 1, 1, 0], "odd": odd})
        for name, odd in (("one", first), ("two", second))
    }
    for used in ({}, {"client": "odd"}, {"label": "odd"}, {"attributes": ["odd"]}):
        with pytest.raises(BadInputError, match=r"'odd' holds values of the type .* and of the type .* in another"):
            made(several, **used)
    assert made(several, drop=["odd"]).columns["x"].names == ("x",)
