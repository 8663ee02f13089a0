"""Datasets of Hugging Face as federations: pictures, texts, numbers; splits as parts or groups; names of classes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from datasets import Array3D, ClassLabel, Dataset, DatasetDict, Features, Image, Value
from own_drawings import samples
from PIL import Image as Pictures

from fedarena.core.errors import BadInputError
from fedarena.data.huggingface import from_hf
from fedarena.data.own import huggingface_rows

CLASSES = ["zed", "ay", "bee"]  # not in the order of the alphabet


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "huggingface")


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (4, 5, 3)).astype(np.uint8)


def drawings(numbers: range, writers: str = "abcd") -> Any:
    columns = {
        "image": [Pictures.fromarray(pixels(number)) for number in numbers],
        "shows": [number % 3 for number in numbers],
        "writer": [writers[number % len(writers)] for number in numbers],
    }
    return Dataset.from_dict(
        columns, features=Features({"image": Image(), "shows": ClassLabel(names=CLASSES), "writer": Value("string")})
    )


def expected(numbers: Iterable[int], writers: str = "abcd") -> set[tuple[str, str, bytes]]:
    return {
        (writers[n % len(writers)], CLASSES[n % 3], np.ascontiguousarray(pixels(n).transpose(2, 0, 1)).tobytes())
        for n in numbers
    }


def test_pictures_keep_their_classes_and_pixels() -> None:
    federation = from_hf(drawings(range(24)), client="writer", label="shows")
    assert federation.task.label_names == tuple(CLASSES)
    assert federation.columns["x"].dtype == "uint8"
    assert samples(federation) == expected(range(24))


def test_a_selection_of_rows_is_respected() -> None:
    chosen = drawings(range(24)).shuffle(seed=0).select(range(9))
    federation = from_hf(chosen, client="writer", label="shows")
    assert federation.num_samples == 9
    assert samples(federation) < expected(range(24))


def test_pictures_without_a_label_are_left_out_and_no_others() -> None:
    rows = drawings(range(24)).map(lambda row, n: {"shows": -1 if n % 5 == 0 else row["shows"]}, with_indices=True)
    with pytest.raises(BadInputError, match=r"The dataset, row 1: the label .* is missing"):
        from_hf(rows, client="writer", label="shows")
    federation = from_hf(rows, client="writer", label="shows", missing="drop")
    assert samples(federation) == expected([n for n in range(24) if n % 5])


def test_splits_become_parts_or_groups() -> None:
    both = DatasetDict(train=drawings(range(24)), test=drawings(range(24, 36), "cdef"))
    federation = from_hf(both, client="writer", label="shows")
    assert samples(federation, "train") == expected(range(24))
    assert samples(federation, "test") == expected(range(24, 36), "cdef")
    assert sorted(federation.client_ids(federation.clients("test"))) == ["e", "f"]
    groups = from_hf(both, client="writer", label="shows", splits="groups")
    assert sorted(groups.client_ids(groups.clients("train"))) == [f"train/{writer}" for writer in "abcd"]
    assert sorted(groups.client_ids(groups.clients("test"))) == [f"test/{writer}" for writer in "cdef"]
    assert {row[1:] for row in samples(groups, "test")} == {row[1:] for row in expected(range(24, 36))}


def test_partitions_of_flower() -> None:
    partition = {"name": "pathological", "clients": 6, "classes_per_client": 1}
    federation = from_hf(drawings(range(24)), partition=partition, label="shows")
    assert federation.num_clients == 6
    for client in federation.clients():
        assert len(set(federation.samples([client]).columns["y"].tolist())) == 1
    grouped = from_hf(
        drawings(range(24)),
        client="writer",
        label="shows",
        partition={"name": "id_groups", "group_size": 3, "order": "sorted"},
    )
    assert grouped.counts(grouped.clients()).tolist() == [18, 6]


def test_files_of_pictures_may_lie_outside(tmp_path: Path) -> None:
    for number in range(6):
        Pictures.fromarray(pixels(number)).save(tmp_path / f"{number}.png")
    named = Dataset.from_dict(
        {"image": [str(tmp_path / f"{n}.png") for n in range(6)], "shows": ["x", "y"] * 3, "writer": list("aabbcc")}
    ).cast_column("image", Image())
    federation = from_hf(named, client="writer", label="shows")
    assert {row[2] for row in samples(federation)} == {row[2] for row in expected(range(6))}
    assert from_hf(named, client="writer", label="shows").path == federation.path
    Pictures.fromarray(pixels(99)).save(tmp_path / "0.png")
    assert from_hf(named, client="writer", label="shows").path != federation.path


def test_arrays_are_pictures_if_that_is_said() -> None:
    made = Dataset.from_dict(
        {"pixels": [pixels(n) for n in range(6)], "shows": [0, 1] * 3, "writer": list("aabbcc")},
        features=Features({"pixels": Array3D((4, 5, 3), "uint8"), "shows": Value("int64"), "writer": Value("string")}),
    )
    with pytest.raises(BadInputError, match=r"'pixels' of row 1 has the shape \[4, 5, 3\].*layout='HWC'"):
        from_hf(made, client="writer", label="shows", image="pixels")
    federation = from_hf(made, client="writer", label="shows", image="pixels", layout="HWC")
    assert {row[2] for row in samples(federation)} == {row[2] for row in expected(range(6))}


def sentences(labels: list[int]) -> Any:
    count = len(labels)
    return Dataset.from_dict(
        {"text": [f"so w{n}" for n in range(count)], "label": labels, "who": [f"p{n % 3}" for n in range(count)]},
        features=Features({"text": Value("string"), "label": ClassLabel(names=CLASSES), "who": Value("string")}),
    )


def test_texts_and_their_missing_labels() -> None:
    federation = from_hf(sentences([0, 1] * 6), client="who", label="label")
    assert federation.task.label_names == tuple(CLASSES)  # also the one that does not occur
    assert "so" in federation.task.token_names
    with pytest.raises(BadInputError, match=r"The dataset, row 3: the label .* is missing"):
        from_hf(sentences([0, 1, -1] * 4), client="who", label="label")
    fewer = from_hf(sentences([0, 1, 1, -1] * 3), client="who", label="label", missing="drop")
    assert fewer.num_samples == 9
    assert from_hf(sentences([-1] * 6), client="who", text="text").task.kind == "next_token"
    parts = DatasetDict(train=sentences([0, 1] * 3), test=sentences([1, 2] * 6))
    divided = from_hf(parts, client="who", label="label")
    assert divided.manifest.samples["train"] == {"train": 6, "validation": 0, "test": 12}
    assert "w5" in divided.task.token_names
    assert "w11" not in divided.task.token_names


def test_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_rows, "_ROWS_PER_PIECE", 5)
    table = {"a": list(range(12)), "b": [n / 2 for n in range(12)], "y": [0, 1] * 6, "who": list("abc") * 4}
    federation = from_hf(Dataset.from_dict(table), client="who", label="y")
    assert federation.columns["x"].shape == (2,)
    found = {tuple(row) for row in federation.samples(federation.clients()).columns["x"].tolist()}
    assert found == {(float(n), n / 2) for n in range(12)}
    lists = Dataset.from_dict({**table, "v": [[float(n), 1.0, 2.0] for n in range(12)]})
    assert from_hf(lists, client="who", label="y", features="v").columns["x"].shape == (3,)
    with pytest.raises(BadInputError, match="Column 'b' of the dataset has no number in row 8"):
        from_hf(Dataset.from_dict({**table, "b": [*table["b"][:7], None, *table["b"][8:]]}), client="who", label="y")
    with pytest.raises(BadInputError, match=r"row 9: the label .* is missing"):
        from_hf(Dataset.from_dict({**table, "y": [*table["y"][:8], None, *table["y"][9:]]}), client="who", label="y")
    uneven = Dataset.from_dict({**table, "v": [[1.0] * (1 + n % 2) for n in range(12)]})
    with pytest.raises(BadInputError, match="lists of unequal lengths"):
        from_hf(uneven, client="who", label="y", features="v")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Say which column of the dataset has the clients.*it has image, shows, writer"),
        ({"client": "writr"}, "did you mean 'writer'"),
        ({"client": "writer"}, "Say which column of the dataset has the labels: label=…, such as 'shows'"),
        ({"client": "writer", "label": "shows", "image": "image", "text": "writer"}, "both image and text are given"),
        ({"client": "writer", "label": "shows", "features": ["sise"]}, "features is 'sise'"),
        ({"partition": "iid", "label": "shows", "splits": "groups"}, "splits='groups' is about natural clients"),
        ({"client": "writer", "label": "shows", "splits": "all"}, "splits must be"),
        ({"client": "writer", "label": "shows", "attributes": ["writer"]}, "attributes are only read with texts"),
    ],
)
def test_wrong_options_get_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        from_hf(drawings(range(6)), **options)


def test_what_is_no_dataset() -> None:
    with pytest.raises(BadInputError, match=r"takes a Dataset or a DatasetDict .*, not a dict"):
        from_hf({"a": 1}, client="a")
    with pytest.raises(BadInputError, match="load it without streaming"):
        from_hf(drawings(range(6)).to_iterable_dataset(), client="writer", label="shows")
    with pytest.raises(BadInputError, match="'extra' is not a part; valid: train"):
        from_hf(DatasetDict(train=drawings(range(6)), extra=drawings(range(6))), client="writer", label="shows")
    with pytest.raises(BadInputError, match="splits of the DatasetDict say it"):
        from_hf(DatasetDict(train=drawings(range(6))), client="writer", label="shows", part="shows")
    several = Dataset.from_dict({"one": ["a", "b"], "two": ["a", "b"], "y": [0, 1], "who": ["p", "q"]})
    with pytest.raises(BadInputError, match=r"Say what samples consist of.*one, two, y, who"):
        from_hf(several, client="who", label="y")


def test_classes_may_be_called_like_a_missing_value() -> None:
    rows = Dataset.from_dict(
        {"text": ["a", "b"] * 2, "y": [0, 1] * 2, "who": list("aabb")},
        features=Features({"text": Value("string"), "y": ClassLabel(names=["NA", " x"]), "who": Value("string")}),
    )
    federation = from_hf(rows, client="who", text="text", label="y")
    assert federation.task.label_names == ("NA", " x")
    assert federation.num_samples == 4


def test_only_classes_that_a_dataset_names_stay_without_samples() -> None:
    rows = Dataset.from_dict({"x": [1.0, 2.0, 3.0, 4.0, 5.0], "y": ["u", "w", "w", "u", "v"], "who": list("aabbc")})
    options = {"client": "who", "features": "x", "label": "y", "minimum_samples": 2}
    assert from_hf(rows, **options).task.label_names == ("u", "w")
    named = rows.cast_column("y", ClassLabel(names=["v", "u", "w"]))
    assert from_hf(named, **options).task.label_names == ("v", "u", "w")


@pytest.mark.parametrize("splits", ["parts", "groups"])
def test_clients_that_are_classes_have_their_names(splits: str) -> None:
    rows = drawings(range(24)).cast_column("writer", ClassLabel(names=["d", "c", "b", "a"]))
    if splits == "groups":
        federation = from_hf(DatasetDict(train=rows), client="writer", label="shows", splits="groups")
        assert set(federation.client_ids(federation.clients())) == {"train/a", "train/b", "train/c", "train/d"}
    else:
        assert samples(from_hf(rows, client="writer", label="shows")) == expected(range(24))


@pytest.mark.parametrize("index", ["__index_level_0__", "Unnamed: 0", ""])
def test_the_index_of_a_pandas_table_is_no_input(index: str) -> None:
    columns = {"x": [1.0, 2.0, 3.0, 4.0], "who": list("aabb"), "y": list("uvuv")}
    rows = Dataset.from_pandas(pd.DataFrame(columns, index=[3, 1, 0, 2]))
    if index not in rows.column_names:
        rows = Dataset.from_dict({**columns, index: [3, 1, 0, 2]})
    with pytest.warns(UserWarning, match=f"Column '{index}' is the index of a pandas table and no input"):
        assert from_hf(rows, client="who", label="y").columns["x"].shape == (1,)
    named = from_hf(rows, client="who", label="y", features=["x", index])
    assert named.columns["x"].shape == (2,)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"x": ["1", "2", "3", "4"]}, "column 'x' holds string values instead of numbers"),
        ({"x": [["1"], ["2"], ["3"], ["4"]]}, r"column 'x' holds .*string.* values instead of numbers"),
        ({"x": [datetime(2020, 1, n) for n in (1, 2, 3, 4)]}, r"column 'x' holds timestamp.* instead of numbers"),
        ({"z": [1, 2, 3, 4], "x": [[1], [2], [3], [4]]}, "column 'x' holds lists, so it must be the only one"),
    ],
)
def test_features_that_are_no_numbers_are_refused(columns: dict[str, list[Any]], sentence: str) -> None:
    rows = Dataset.from_dict({**columns, "who": list("aabb"), "y": list("uvuv")})
    with pytest.raises(BadInputError, match=sentence):
        from_hf(rows, client="who", label="y", features=list(columns))


@pytest.mark.parametrize("column", [[1, 2, 3, 2**24 + 1], [[1], [2], [3], [2**24 + 1]]])
def test_whole_numbers_that_are_rounded_are_told(column: list[Any]) -> None:
    rows = Dataset.from_dict({"x": column, "who": list("aabb"), "y": list("uvuv")})
    with pytest.warns(UserWarning, match=r"Column 'x' holds whole numbers above 2\^24, which are rounded"):
        from_hf(rows, client="who", label="y", features="x")


@pytest.mark.parametrize("inputs", [{"said": ["a b", "c", "d e"] * 4}, {"size": [1.0, 2.0, 3.0] * 4}])
def test_corrected_names_of_classes_are_those_of_the_federation(inputs: dict[str, list[Any]]) -> None:
    rows = Dataset.from_dict({**inputs, "mood": [0, 1] * 6, "who": list("aabb") * 3})
    for names in (["good", "bad"], ["bad", "good"], ["bad", "good", "neutral"]):
        federation = from_hf(rows.cast_column("mood", ClassLabel(names=names)), client="who", label="mood")
        assert federation.task.label_names == tuple(names)
        assert federation.task.classes == len(names)


@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_numbers_that_differ_by_less_than_is_stored_are_told(shape: tuple[int, ...]) -> None:
    stamps = (1.7e9 + np.arange(40.0)).reshape(shape).tolist()
    rows = Dataset.from_dict({"x": stamps, "who": list("aabb") * 10, "y": list("uvuv") * 10})
    with pytest.warns(UserWarning, match=r"Column 'x' .* less than 32 bits can tell: 1700000001.0 becomes 1700000000"):
        from_hf(rows, client="who", label="y", features="x")


def test_numbers_that_rounding_does_not_harm_need_no_words(recwarn: pytest.WarningsRecorder) -> None:
    rows = Dataset.from_dict({"x": [0.1, 0.7, 1e9, 3.3], "who": list("aabb"), "y": list("uvuv")})
    from_hf(rows, client="who", label="y", features="x")
    assert not [one for one in recwarn if "Column" in str(one.message)]


@pytest.mark.parametrize("as_dict", [False, True])
def test_a_dataset_with_a_transform_is_refused(as_dict: bool) -> None:
    rows = Dataset.from_dict({"x": [0.1, 0.7, 1e9, 3.3], "who": list("aabb"), "y": list("uvuv")})
    changed = rows.with_transform(lambda batch: {"x": [-1.0] * len(batch["x"])})
    given = DatasetDict(train=rows, test=changed) if as_dict else changed
    with pytest.raises(BadInputError, match=r"has a transform .*apply it once with map"):
        from_hf(given, client="who", label="y", features="x")
    for form in ("torch", "numpy", "arrow", None):
        assert from_hf(rows.with_format(form), client="who", label="y", features="x").num_samples == 4
