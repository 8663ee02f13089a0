"""Tables that are not as they should be, and options that cannot be meant: one sentence each, nothing left behind."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedarena import from_table
from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data.registry import cache_folder

TABLE: dict[str, list[Any]] = {
    "who": ["ann", "ann", "bob", "bob"],
    "n": [1.0, 2.0, 3.0, 4.0],
    "c": ["u", "v", "u", "v"],
    "y": [0, 1, 0, 1],
}


def refusal(table: Any, **options: Any) -> BadInputError:
    cache_folder().mkdir(exist_ok=True)
    before = set(cache_folder().iterdir())
    with pytest.raises(BadInputError) as raised:
        from_table(table, **{"client": "who", "label": "y", **options})
    assert set(cache_folder().iterdir()) == before
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"n": [1.0, np.nan, 3.0, None]},
            "'n' has no value in row 2 (client 'ann'), nor in 1 other rows; say what is ",
        ),
        ({"y": [0.5, np.inf, 1.5, 2.5]}, "'y' holds inf in row 2 (client 'ann'), which is no number to learn from"),
        ({"n": [1.0, 2.0, -np.inf, 4.0]}, "'n' holds -inf in row 3 (client 'bob'), which is no number to learn from"),
        (
            {"n": ["1", "2", "x", "4"]},
            "'n' holds numbers, but 'x' in row 3 (client 'bob'); name 'x' among na_values if",
        ),
        ({"n": [1, 2, "?", 4]}, "'n' holds numbers, but '?' in row 3 (client 'bob'); name '?' among na_values"),
        (
            {"n": [1e200, 2, 3, 4], "c": [1, 1, 1, 1e308]},
            "'n' holds a number in row 1 (client 'ann') that is too large",
        ),
        (
            {"n": ["1,5", "2", "3,25", "4,0"]},
            "'n' holds numbers with a comma, such as '1,5' in row 1 (client 'ann'); say",
        ),
        (
            {"n": ["2020-01-31"] * 4},
            "'n' holds dates, such as '2020-01-31' in row 1 (client 'ann'); make numbers of the",
        ),
        ({"n": ["31.1.2020", None, "1/2/2021", None]}, "'n' holds dates, such as '31.1.2020' in row 1 (client 'ann')"),
        ({"n": [date(2020, 1, 1)] * 4}, "'n' holds dates or times, which are neither numbers nor words; make numbers"),
        ({"n": [object(), 1, 2, 3]}, "'n' holds <object object at "),
        ({"n": [1, [2], "x", {}]}, "'n' holds [2], which is neither a number nor a word"),
        ({"n": 3}, "Column 'n' must be a list of values, not 3"),
        ({"n": [{"a": 1}] * 4}, "'n' holds values of the type struct<a: int64>, which are neither"),
        ({"n": [[1], [1, 2], [1], [1]]}, "'n' holds lists of unequal lengths; leave it out with drop"),
        (
            {"y": ["0", "1", "?", "1"]},
            "'y' holds numbers, but '?' in row 3 (client 'bob'); name '?' among na_values if it",
        ),
        ({"y": [0, None, 1, 1]}, "'y' has no value in row 2 (client 'ann'); say what is done about missing values "),
        ({"y": [1, 1, 1, 1]}, "The label 'y' is 1 in every sample, so there is nothing to learn"),
        (
            {"who": ["ann", None, "bob", "bob"]},
            "'who' has no value in row 2; say what is done about missing values (mi",
        ),
        ({"who": [[1]] * 4}, "client: column 'who' holds values of the type list<item: int64>, which are no names"),
        ({"n": [1.0, 2.0, 3.0]}, "The columns of the table have unequal lengths"),
    ],
)
def test_contents(changes: dict[str, list[Any]], sentence: str) -> None:
    options = {"normalize": "none"} if 1e308 in changes.get("c", ()) else {}
    assert sentence in str(refusal({**TABLE, **changes}, **options))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"client": "whom"}, "client: the table has no column 'whom'; did you mean 'who'?"),
        (
            {"client": None},
            "Say which column names the client of a sample (client), or how to make clients (partition); ",
        ),
        ({"label": "why"}, "label: the table has no column 'why'; "),
        ({"label": []}, "label must name the column that is to be predicted"),
        ({"label": 3}, "label must be the name of a column, or a list of names, not 3"),
        ({"label": ["y", "y"]}, "label names 'y' twice"),
        ({"label": ["y", "c"]}, "'c' holds words, but several label columns hold numbers, or 0 and 1"),
        ({"label": "c", "task": "regression"}, "'c' holds words such as 'u', no numbers"),
        ({"task": "multi_label"}, "'y' holds one label in every row; say what separates several with label_separator"),
        ({"task": "ranking"}, "task cannot be 'ranking'; valid: auto, classification, multi_label, regression"),
        (
            {"label_separator": "|", "task": "regression"},
            "which makes it a task of the kind multi_label, not regression",
        ),
        ({"missing": "means"}, "missing cannot be 'means'; did you mean 'mean'?"),
        ({"missing": {"n": "nothing"}}, "missing of 'n' cannot be 'nothing'"),
        ({"missing": {"m": "mean"}}, "missing: the table has no column 'm'"),
        ({"na_values": {"m": "?"}}, "na_values: the table has no column 'm'"),
        ({"na_values": [None]}, "na_values are texts or numbers, not None"),
        ({"normalize": "local"}, "normalize cannot be 'local'; did you mean 'global'?"),
        ({"split": "by_person"}, "split cannot be 'by_person'"),
        ({"train_fraction": 1.5}, "train_fraction must be above 0, validation_fraction at least 0, and both together"),
        ({"train_fraction": "0.5"}, "train_fraction must be a number from 0, not '0.5'"),
        ({"split_seed": 0.5}, "split_seed must be a whole number from 0, not 0.5"),
        ({"order": "random"}, "order cannot be 'random'"),
        ({"part": "c"}, "part: column 'c' says 'u' in row 1 (client 'ann'); valid: test, train, validation"),
        ({"part": "c", "split": "by_client"}, "split is 'by_client', but the column that part names divides the table"),
        ({"group": "y", "split_seed": 0}, "split_seed is 0, but the column that group names divides the table"),
        ({"features": ["n", "who"]}, "features names 'who', which is no input, because client names it"),
        ({"categorical": ["y"]}, "categorical names 'y', which is no input, because label names it"),
        ({"categorical": ["n"], "features": ["c"]}, "categorical names 'n', which is no input"),
        ({"drop": ["n", "c"]}, "There is no column left that could be an input"),
        ({"drop": ["m"]}, "drop: the table has no column 'm'"),
        ({"attributes": ["c"]}, "attributes: column 'c' says different things about client 'ann'; an attribute is the"),
        (
            {"partition": "iid"},
            "client names a column that says whose a sample is; partition is for tables without one",
        ),
        ({"client": None, "partition": "idd"}, "There is no partitioner called 'idd'; did you mean 'iid'?"),
        ({"client": 5}, "client must be the name of a column, not 5"),
    ],
)
def test_options(options: dict[str, Any], sentence: str) -> None:
    assert sentence in str(refusal(TABLE, **options))


def test_divisions_that_leave_nothing_or_contradict_themselves() -> None:
    assert "No sample is for training" in str(refusal({**TABLE, "part": ["test"] * 4}, part="part"))
    groups = {**TABLE, "group": ["train", "test", "train", "train"]}
    assert "group: column 'group' puts client 'ann' into the groups train and test; a client belongs to one" in str(
        refusal(groups, group="group")
    )
    assert "group: column 'group' says nothing in row 2" in str(
        refusal({**TABLE, "group": ["train", None, "train", "train"]}, group="group")
    )
    gaps = {**TABLE, "n": [None, None, None, 1.0], "part": ["train", "train", "train", "test"]}
    assert "'n' has no value in any training sample, so that there is no mean" in str(
        refusal(gaps, part="part", missing="mean")
    )
    everywhere = {**TABLE, "n": [None] * 4}
    assert "Every row lacks a value" in str(refusal(everywhere, missing="drop"))
    names = {"who": ["a", "b"] * 600, "name": [f"n{n}" for n in range(1200)], "y": [0, 1] * 600}
    assert "'name' holds 1,200 different words, too many for categories; leave it out with drop" in str(refusal(names))
    assert from_table(names, client="who", label="y", categorical=["name"]).columns["x"].shape == (960,)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", b"who,n,y\nann,1,0\nbob,2\n", r"t.csv has 2 values in row 2, where there are 3 columns: 'bob,2'"),
        ("t.csv", b"who,n,n\nann,1,0\n", r"The table has two columns called 'n'"),
        ("t.csv", b"", r"t.csv is empty"),
        ("t.csv", b"who,n,y\n", r"The table has no rows"),
        ("t.csv", b"1,2,3\n4,5,6\n", r"t.csv begins with numbers \('1, 2, 3'\) and not with the names of its columns"),
        ("t.csv", "who,n,y\nJosé,1,0\n".encode("latin1"), r"t.csv is not text in utf8; say which encoding it has"),
        ("t.parquet", b"PAR1 but not really", r"t.parquet cannot be read: "),
        ("t.arrow", b"nothing", r"t.arrow cannot be read: "),
        (
            "t.jsonl",
            b'{"who": "ann"}\n{"who": ',
            r"t.jsonl is not valid JSON in line 2, where there must be an object in every line, ",
        ),
        ("t.jsonl", b"[1, 2]", r"t.jsonl must hold an object for every sample; number 1 is 1"),
        ("t.jsonl", b"\xff{}", r"t.jsonl is not UTF-8: invalid start byte"),
        ("t.xlsx", b"PK", r"t.xlsx is no table that can be read here; tables end in .csv, "),
        ("t.dat", b"who n y\nann 1\n", r"t.dat has 2 values in row 1, where there are 3 columns"),
        ("t.arff", b"@relation r\n@attribute who string\n", r"t.arff is an ARFF file without a line @data"),
        (
            "t.arff",
            b"@relation r\n@attribute who string\n@data\na,b\n",
            r"t.arff has 2 values in row 1, where 1 columns",
        ),
        ("t.csv.gz", b"who,n,y\nann,1,0\n", r"t.csv.gz cannot be read: "),
    ],
)
def test_files(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    error = refusal(tmp_path / name)
    assert re.search(sentence, str(error)), str(error)


def test_files_that_are_not_there_or_do_not_fit(tmp_path: Path) -> None:
    assert f"There is no file {tmp_path}/nowhere.csv" in str(refusal(tmp_path / "nowhere.csv"))
    assert f"{tmp_path} has no tables: files that end in .csv" in str(refusal(tmp_path))
    (tmp_path / "a.csv").write_text("n,y\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("m,y\n1,0\n")
    assert "a has no column 'm', which b has" in str(refusal(tmp_path, client=None))
    (tmp_path / "b.csv").write_text("n,y\n1,0\n?,0\n")
    sentence = "'n' holds numbers, but '?' in row 2 of b (client 'b'); name '?' among na_values"
    assert sentence in str(refusal(tmp_path, client=None))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.csv").write_text("n,y\n1,0\n")
    twice = [tmp_path / "a.csv", tmp_path / "deeper" / "a.csv"]
    assert "Two of the files are called a; give them other names" in str(refusal(twice, client=None))
    assert "a.csv has 2 columns, but columns names 1" in str(refusal(tmp_path / "a.csv", columns=["n"]))
    assert "decimal must be a point or a comma, not ';'" in str(refusal(tmp_path / "a.csv", decimal=";"))
    assert "There is no encoding 'utf9'" in str(refusal(tmp_path / "a.csv", encoding="utf9"))
    assert "delimiter must be one character, not '::'" in str(refusal(tmp_path / "a.csv", delimiter="::"))
    assert isinstance(refusal(_damaged(tmp_path)), DamagedFileError)
    assert "A table is a file, a folder or a list of files" in str(refusal(7))


def _damaged(folder: Path) -> Path:
    pd.DataFrame(TABLE).to_parquet(folder / "t.parquet")
    content = (folder / "t.parquet").read_bytes()
    (folder / "t.parquet").write_bytes(content[: len(content) // 2])
    return folder / "t.parquet"


def test_texts_are_no_categories() -> None:
    said = [f"well, {number} times no" for number in range(12)]
    table = {"who": ["ann", "bob"] * 6, "said": said, "y": [0, 1, 1] * 4}
    with pytest.raises(BadInputError, match=r"'said' holds texts, such as 'well, 0 .* from_texts"):
        from_table(table, client="who", label="y")
    assert from_table(table, client="who", label="y", categorical=["said"]).num_clients == 2


def test_numbers_to_predict_that_are_too_large_are_named() -> None:
    table = {"who": ["a", "a", "b", "b"], "x": [1, 2, 3, 4], "y": [0.5, 1.5, 1e39, 2.5]}
    with pytest.raises(BadInputError, match=r"The label 'y' holds 1e\+39, which is too large for 32 bits"):
        from_table(table, client="who", label="y")


def test_a_single_column_is_no_table() -> None:
    assert "A Series is one column, and a table has" in str(refusal(pd.Series(TABLE["n"], name="n")))
