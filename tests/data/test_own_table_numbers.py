"""Numbers in tables that look harmless and would have become something else without a word."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_tables import WHO, inputs, labels, made

from fedarena import from_table
from fedarena.core.errors import BadInputError


def test_numbers_some_of_which_are_nearly_the_same_are_not_told_of() -> None:
    drawn = np.random.default_rng(0).normal(size=30_000)
    assert len(np.unique(drawn.astype(np.float32))) < len(drawn)
    table = {"who": WHO * 7500, "x": drawn, "y": [0, 1, 0, 1] * 7500}
    assert not any("seven digits" in note for note in made(table).notes)


@pytest.mark.parametrize("values", [np.array([1j, 2, 3, 4]), pd.cut([1, 2, 3, 4], 2)], ids=["complex", "intervals"])
def test_what_is_neither_a_number_nor_a_word_is_refused(values: Any) -> None:
    table = {"who": WHO, "x": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    for column in table:
        with pytest.raises(BadInputError, match=rf"'{column}' holds .*, which (is|are) (neither|no names)"):
            made(pd.DataFrame({**table, column: values}))


@pytest.mark.parametrize("normalize", ["global", "per_client"])
@pytest.mark.parametrize("huge", [1e155, np.finfo(np.float64).max])
def test_a_huge_number_does_not_wipe_out_its_column(normalize: str, huge: float) -> None:
    table = {"who": WHO, "x": [1, 2, 3, huge], "y": [0, 1, 0, 1]}
    with pytest.raises(
        BadInputError, match=r"'x' holds 1.*e\+\d+ in row 4 \(client 'b'\), which is too large for a mean"
    ):
        made(table, normalize=normalize)


@pytest.mark.parametrize("first", [1_700_000_000, 2**24 - 1])
def test_numbers_that_become_the_same_are_told_of(first: int) -> None:
    table = {"who": WHO, "x": [first, first + 1, first + 2, first + 3], "y": [0, 1, 0, 1]}
    (told,) = (note for note in made(table).notes if "seven digits" in note)
    left = len(np.unique(inputs(made(table))))
    assert left < 4
    assert told.startswith(f"x has 4 different numbers in training samples, of which {left} are left")
    assert len(np.unique(inputs(made(table, normalize="global")))) == 4
    for harmless in ({"x": [0.1, 0.25, 3, 4]}, {"x": [2**24, 1, 2, 3]}, {"x": [first, first, None, first]}):
        assert not any("seven digits" in note for note in made({**table, **harmless}, missing="zero").notes)


def test_clients_whose_numbers_never_differ_take_the_deviation_of_all() -> None:
    table = {
        "who": ["a", "a", "b", "b", "b"],
        "x": [10_000.0, 50_000.0, 10_000.0, 30_000.0, 20_000.0],
        "z": [1.0, 900.0, 1.0, 1.0, 1.0],
        "part": ["train", "test", "train", "train", "train"],
        "y": [0, 1, 0, 1, 1],
    }
    own = from_table(table, client="who", label="y", part="part", normalize="per_client")
    deviation = np.std([10_000, 10_000, 30_000, 20_000])
    np.testing.assert_allclose(inputs(own)[:2, 0], [0, 40_000 / deviation], rtol=1e-6)
    assert own.notes[1:] == ("z is the same in all training samples: where it differs, it is not scaled.",)


@pytest.mark.parametrize(
    ("texts", "options", "numbers"),
    [
        (["1,234", "12,000.5", "1,000,000", "7"], {"thousands": ","}, [1234, 12_000.5, 1_000_000, 7]),
        (
            ["1.234", "12.000,5", "1.000.000", ",5"],
            {"decimal": ",", "thousands": "."},
            [1234, 12_000.5, 1_000_000, 0.5],
        ),
        ([",5", "-1,25e1", "3,", "4"], {"decimal": ","}, [0.5, -12.5, 3, 4]),
        (["1'234", "5", "6", "7"], {"thousands": "'"}, [1234, 5, 6, 7]),
    ],
)
def test_numbers_with_thousands_and_commas(texts: list[str], options: dict[str, str], numbers: list[float]) -> None:
    federation = made({"who": WHO, "x": texts, "y": [0, 1, 0, 1]}, **options)
    assert inputs(federation)[:, 0].tolist() == numbers


@pytest.mark.parametrize(
    ("texts", "options", "sentence"),
    [
        (
            ["1,234", "2,500", "1,000", "7"],
            {},
            r"'1,234' in row 1 .* which looks like thousands; say so",
        ),
        (["1,234", "2,5", "1,000", "7"], {}, r"say so \(decimal: ,\)"),
        (["1,5", "2.500", "1", "7"], {"decimal": ","}, r"'2.500' in row 2 .*, a point where decimal is a comma"),
        (["1,5", "x", "1", "7,5"], {"decimal": ","}, "'x' holds numbers, but 'x' in row 2"),
        (["1,23", "2,500", "1", "7"], {"thousands": ","}, "'x' holds numbers, but '1,23' in row 1"),
        (["1", "2", "1", "7"], {"thousands": "."}, "decimal and thousands cannot both be '.'"),
        (["1", "2", "1", "7"], {"thousands": "x"}, "thousands must be a comma, a point, a blank"),
    ],
)
def test_numbers_whose_commas_are_not_certain(texts: list[str], options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        made({"who": WHO, "x": texts, "y": [0, 1, 0, 1]}, **options)


def test_commas_in_names_stay_commas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who;x;y\n1,5;0,5;a,1\n1,5;1,5;2,5\n2,5;2;a,1\n")
    federation = made(tmp_path / "t.csv", decimal=",")
    assert federation.client_ids(federation.clients()) == ["1,5", "2,5"]
    assert federation.task.label_names == ("2,5", "a,1")
    assert inputs(federation)[:, 0].tolist() == [0.5, 1.5, 2]


@pytest.mark.parametrize("write", [int, str])
def test_whole_numbers_that_a_float_cannot_tell_apart_stay_apart(write: Any) -> None:
    large = [write(2**53 + number) for number in (0, 1, 2, 1)]
    federation = made({"who": WHO, "x": [1, 2, 3, 4], "y": large})
    assert federation.task.label_names == tuple(str(2**53 + number) for number in (0, 1, 2))
    assert labels(federation) == [0, 1, 2, 1]
    as_input = made({"who": WHO, "x": large, "y": [0, 1, 0, 1]}, categorical=["x"])
    assert inputs(as_input).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("normalize", ["none", "global"])
def test_whole_numbers_that_become_the_same_are_told_of(normalize: str) -> None:
    table = {"who": WHO, "x": [2**53, 2**53 + 1, 2**53 + 2, 5], "y": [0, 1, 0, 1]}
    assert any(
        "x holds 4 different whole numbers, of which 3 are left" in n for n in made(table, normalize=normalize).notes
    )
    for harmless in ([2**53, 2**53, 2**54, 5], [1, 2, 3, 4]):
        assert not any("whole numbers" in note for note in made({**table, "x": harmless}, normalize=normalize).notes)


def test_codes_are_not_the_numbers_they_read_as(tmp_path: Path) -> None:
    table = {"who": WHO, "x": ["01", "1", "1.0", "1"], "y": [0, 1, 0, 1]}
    for given in (table, {**table, "x": pd.Categorical(table["x"])}):
        assert made(given, categorical=["x"]).columns["x"].names == ("x=01", "x=1", "x=1.0")
    (tmp_path / "t.csv").write_text("who,x,y\na,10,0\nb,9.0,1\n")
    assert made(tmp_path / "t.csv", categorical=["x"]).columns["x"].names == ("x=9", "x=10")


@pytest.mark.parametrize(
    "words",
    [
        ["12%", "7 %", "3%", "100%"],
        ["$12", "$3.50", "$1,200", "€7"],
        ["1'000", "2'000", "3'500", "1'250"],
        ["\u22125", "\u22127", "\u22121", "\u22122.5"],
        ["2021/03/04", "2020/01/05", "1999/12/31", "2000/01/01"],
        ["4/3/21", "5/3/21", "6/3/21", "7/3/21"],
        ["12:30", "7:45", "23:59:59", "00:00"],
        ["1 234,50 €", ".5 %", "-12%", "+3,5%"],
        ["31.12.1999", "1.1.2000", "24.12.99", "2000.1.1"],
        ["'1.5'", "'2'", "'3'", "'-4'"],
        ['"1.5"', '"2"', '"12%"', '"-4"'],
    ],
)
def test_numbers_and_dates_in_disguise_are_told(words: list[str]) -> None:
    table = {"who": WHO, "x": words, "z": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    (told,) = (note for note in made(table).notes if "look like numbers, dates or times" in note)
    assert told.startswith("x holds texts such as ")
    assert "became 4 categories" in told
    assert not any("look like" in note for note in made(table, categorical=["x"]).notes)


@pytest.mark.parametrize(
    "words",
    [
        list("abcd"),
        ["a1", "b2", "c3", "4%"],
        ["10-20", "20-30", "30-40", "40+"],
        ["1.2.3", "1.10.0", "2.0.1", "0.1.2"],
        ["10.0.0.1", "10.0.0.2", "192.168.1.1", "127.0.0.1"],
        ["1, 2", "3, 4", "1, 2, 3", "4, 5"],
    ],
)
def test_words_are_no_numbers_in_disguise(words: list[str]) -> None:
    table = {"who": WHO, "x": words, "z": [1, 2, 3, 4], "y": [0, 1, 0, 1]}
    assert not any("look like" in note for note in made(table).notes)


@pytest.mark.parametrize(
    ("column", "mark"),
    [
        (np.array([1, -99.9, 2, 3], dtype=np.float32), -99.9),
        (np.array([1, -99.9, 2, 3], dtype=np.float16), -99.9),
        (np.array([1, -99.9, 2, 3], dtype=np.float64), "-99.90"),
        (np.array([1, 1e20, 2, 3]), 1e20),
        (np.array([1, 1e20, 2, 3]), "1E+20"),
        (np.array([1, 1e20, 2, 3]), 10**20),
        (np.array([1, 9.96921e36, 2, 3], dtype=np.float32), 9.96921e36),
        (np.array([1, -(2**63), 2, 3]), -(2**63)),
        (np.array([1, -(2**63), 2, 3]), -(2.0**63)),
        (np.array([1, 2**64 - 1, 2, 3], dtype=np.uint64), str(2**64 - 1)),
        ([Decimal(1), Decimal(2**60), Decimal(2), Decimal(3)], 2**60),
        ([Decimal("1.5"), Decimal("-99.9"), Decimal(2), Decimal(3)], -99.9),
        (["1", "1E+20", "2", "3"], 1e20),
        (["1", "1" + 20 * "0", "2", "3"], "1e20"),
        (["1", f"{-99.9:.18e}", "2", "3"], -99.9),
        (["1", str(-(2**63)), "2", "3"], -(2**63)),
    ],
)
def test_a_mark_of_missing_values_is_found_whatever_its_size_and_the_type_of_its_column(column: Any, mark: Any) -> None:
    table = {"who": WHO, "y": [0, 1, 0, 1], "n": column}
    found = made(table, na_values=mark, missing="zero")
    assert inputs(found)[1].tolist() == [0.0]
    assert inputs(found).astype(bool).sum() == 3
    assert any(note.endswith("became zero: n (1).") for note in found.notes)


@pytest.mark.parametrize("as_type", [int, Decimal, str])
def test_a_mark_of_missing_values_is_no_neighbour_of_it(as_type: type) -> None:
    codes = [as_type(2**60 + number) for number in range(4)]
    found = made(
        {"who": WHO, "y": [0, 1, 0, 1], "n": codes}, na_values=2**60 + 1, missing="drop", categorical=["n"], label="y"
    )
    assert found.columns["x"].names == tuple(f"n={2**60 + number}" for number in (0, 2, 3))


def test_tables_that_write_true_as_1_have_the_same_classes_and_inputs_as_others() -> None:
    sick, number = np.array([True, False, True, False]), np.array([1, 0, 1, 0])
    for others in (number, number.astype(float)):
        tables = {
            "north": pd.DataFrame({"smokes": sick, "y": sick}),
            "south": pd.DataFrame({"smokes": others, "y": others}),
        }
        found = made(tables, client=None)
        assert found.task.label_names == ("0", "1")
        assert labels(found) == number.tolist() * 2
        assert inputs(found)[:, 0].tolist() == number.tolist() * 2
        assert found.columns["x"].names == ("smokes",)


@pytest.mark.parametrize("values", [[True, 1, False, 0], ["True", "0", "false", "1"], ["true", "1", "1.0", "0"]])
def test_true_and_false_among_numbers_are_no_classes_and_no_categories(values: list[Any]) -> None:
    for task in ("auto", "classification"):
        with pytest.raises(BadInputError, match=r"'y' holds"):
            made({"who": WHO, "x": [1, 2, 3, 4], "y": values}, task=task)
    with pytest.raises(BadInputError, match=r"'x' holds .*name .* among"):
        made({"who": WHO, "x": values, "y": [0, 1, 0, 1]})
    assert len(made({"who": WHO, "x": values, "y": [0, 1, 0, 1]}, categorical=["x"]).columns["x"].names) > 2


def test_true_false_and_other_words_are_classes() -> None:
    found = made({"who": WHO, "x": [1, 2, 3, 4], "y": ["true", "false", "2", "2"]}, task="classification")
    assert found.task.label_names == ("2", "false", "true")
    assert made({"who": WHO, "x": [1, 2, 3, 4], "y": ["true", "false", "1", "unknown"]}).task.classes == 4
