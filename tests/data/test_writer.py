"""What the writer refuses, what it leaves behind, and how much memory it takes."""

from __future__ import annotations

import errno
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_oracle import PlainFederation

from fedarena.core.errors import BadInputError, DamagedFileError, RunFailedError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.data.store import writer as writer_module

TASK = TaskSpec(kind="classification", classes=3)
COLUMNS = {"x": ColumnSpec(dtype="float32", shape=(2,)), "y": ColumnSpec(dtype="int64")}


def samples(count: int = 2, **other: Any) -> dict[str, Any]:
    return {"x": np.zeros((count, 2), dtype=np.float32), "y": np.zeros(count, dtype=np.int64), **other}


def writer_at(path: Path, **options: Any) -> FederationWriter:
    return FederationWriter(path, **{"name": "test", "task": TASK, "columns": COLUMNS, **options})


def write_clients(path: Path, ids: list[str], then: Callable[[], None] = lambda: None) -> None:
    with writer_at(path) as writer:
        for id in ids:
            writer.add_client(id, train=samples())
        then()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"train": {"x": np.zeros((2, 2), np.float32)}}, ["'train'", "'a'", "x, y"]),
        ({"train": samples(z=np.zeros(2))}, ["x, y, z", "x, y"]),
        ({"test": samples(y=np.zeros(3, np.int64))}, ["'test'", "unequal", "3"]),
        ({"train": samples(x=np.zeros((2, 2)))}, ["'x'", "float64", "float32"]),
        ({"train": samples(x=np.zeros((2, 3), np.float32))}, ["'x'", "[2, 3]", "[samples, 2]"]),
        ({"train": samples(y=np.int64(0))}, ["'y'", "[samples]"]),
        ({"train": samples(y=np.array([0, 3]))}, ["'y'", "3", "0 to 2"]),
        ({"test": samples(y=np.array([-1, 0]))}, ["'y'", "-1", "0 to 2"]),
        ({"group": "trian"}, ["group", "'trian'", "validation"]),
        ({"attributes": {"age": 3}}, ["'a'", "age", "none"]),
    ],
)
def test_bad_clients_get_a_sentence_and_change_nothing(tmp_path: Path, arguments: Any, words: list[str]) -> None:
    path = tmp_path / "store"
    with writer_at(path) as writer:
        writer.add_client("before", train=samples(1))
        with pytest.raises(BadInputError) as caught:
            writer.add_client("a", **arguments)
        writer.add_client("after", train=samples(3))
    for word in words:
        assert word in str(caught.value)
    federation = Federation.open(path)
    assert federation.client_ids(federation.clients("all")) == ["before", "after"]
    assert federation.label_counts.tolist() == [4, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"counts": np.array([[2, 0, 0]])}, ["each of 2 clients", "[1, 3]"]),
        ({"counts": np.array([[3, 0, 0], [-1, 0, 0]])}, ["-1"]),
        ({"counts": np.array([[2, 0, 0], [1, 0, 0]])}, ["3 samples", "2"]),
        ({"groups": ["train"]}, ["1 entries", "2 clients"]),
        ({"ids": ["a", 7]}, ["client id", "string", "7"]),
        ({"ids": ["a", "\ud800"]}, ["client id", "Unicode"]),
        ({"attributes": {"age": [1, 2]}}, ["age, city", "age"]),
        ({"attributes": {"age": [1], "city": ["x", "y"]}}, ["'age'", "1 values", "2 clients"]),
        ({"attributes": {"age": [1.5, 2], "city": ["x", "y"]}}, ["'age'", "int64", "1.5"]),
        ({"attributes": {"age": [1, 2], "city": ["x", 5]}}, ["'city'", "string", "5"]),
    ],
)
def test_bad_bulk_input_gets_a_sentence(tmp_path: Path, arguments: dict[str, Any], words: list[str]) -> None:
    good = {
        "ids": ["a", "b"],
        "counts": np.array([[1, 0, 0], [1, 0, 0]]),
        "columns": samples(2),
        "attributes": {"age": [1, 2], "city": ["x", "y"]},
    }
    with writer_at(tmp_path / "store", attributes={"age": "int64", "city": "string"}) as writer:
        with pytest.raises(BadInputError) as caught:
            writer.add_clients(**{**good, **arguments})
        writer.add_clients(**good)
    for word in words:
        assert word in str(caught.value)
    assert Federation.open(tmp_path / "store").num_clients == 2


@pytest.mark.parametrize(
    ("task", "columns", "words"),
    [
        (TASK, {"x": COLUMNS["x"]}, ["classification", "'y'"]),
        (TASK, {**COLUMNS, "y": ColumnSpec(dtype="float32")}, ["'y'", "integers", "float32"]),
        (TASK, {**COLUMNS, "y": ColumnSpec(dtype="int8", shape=(3,))}, ["'y'", "[]", "[3]"]),
        (TaskSpec(kind="multi_label", classes=3), COLUMNS, ["'y'", "[3]"]),
        (TaskSpec(kind="next_token", classes=3), COLUMNS, ["next_token", "'tokens'"]),
        (
            TaskSpec(kind="next_token", classes=3),
            {"tokens": ColumnSpec(dtype="uint8", shape=(1,))},
            ["[length + 1]", "[1]"],
        ),
    ],
)
def test_columns_must_fit_the_task(tmp_path: Path, task: TaskSpec, columns: Any, words: list[str]) -> None:
    with pytest.raises(BadInputError) as caught:
        writer_at(tmp_path / "store", task=task, columns=columns)
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"kind": "classification", "classes": 1}, "a classification task needs at least 2 classes, not 1"),
        ({"kind": "clasification", "classes": 2}, "kind: input should be 'classification', 'next_token', "),
        ({"kind": "regression"}, "classes is missing"),
        ({"kind": "next_token", "classes": 5, "padding": 5}, "padding must be between 0 and 4, not 5"),
        ({"kind": "classification", "classes": 5, "padding": 0}, "padding is a token, which a classification task "),
        ({"kind": "classification", "classes": 2, "label_names": ("one",)}, "label_names has 1 names for 2 classes"),
        ({"kind": "regression", "classes": 1, "range": (0, 1)}, "no option 'range'; did you mean 'value_range'?"),
        ({"kind": "regression", "classes": 1, "value_range": (1, 0)}, "value_range must rise, not go from 1.0 to 0.0"),
        (
            {"kind": "rating", "classes": 1, "inputs": {"y": 3}, "value_range": (0, 1)},
            "inputs must be columns of other",
        ),
    ],
)
def test_tasks_that_make_no_sense_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError) as caught:
        TaskSpec(**arguments)
    assert str(caught.value).startswith("TaskSpec: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_task_that_makes_no_sense_in_a_manifest_is_damage(store: Path) -> None:
    manifest = store / "federation.json"
    manifest.write_text(manifest.read_text().replace('"classes": 4', '"classes": 1'))
    with pytest.raises(DamagedFileError, match=r"federation.json is damaged at 'task': .*at least 2 classes, not 1"):
        Federation.open(store)


def test_attributes_of_a_type_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="Attribute 'age' cannot be of type 'int'; valid: string, int64, float64"):
        writer_at(tmp_path / "store", attributes={"age": "int"})


@pytest.mark.parametrize("dtype", ["bool", "complex64", "object", "str"])
def test_types_that_cannot_be_stored_are_refused(dtype: str) -> None:
    with pytest.raises(BadInputError, match="cannot be stored"):
        ColumnSpec(dtype=dtype)


@pytest.mark.parametrize("distance", [1, 2, 5])
def test_a_client_that_was_added_twice_is_named(tmp_path: Path, distance: int) -> None:
    ids = [f"client-{number}" for number in range(distance)] + ["client-0"]
    with pytest.raises(BadInputError, match="'client-0' was added twice"):
        write_clients(tmp_path / "store", ids)
    assert list(tmp_path.iterdir()) == []


def test_equal_hashes_of_different_ids_are_no_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "hash", lambda id: 7, raising=False)
    write_clients(tmp_path / "store", ["a", "b", "c"])
    assert Federation.open(tmp_path / "store").client_ids([0, 1, 2]) == ["a", "b", "c"]


def test_a_federation_needs_a_client(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no clients"), writer_at(tmp_path / "store"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_clients(tmp_path / "store", ["a"], then=fail)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_under_the_final_name_before_the_end(tmp_path: Path) -> None:
    with writer_at(tmp_path / "store", rows_per_batch=1) as writer:
        for number in range(5):
            writer.add_client(str(number), train=samples())
            assert not (tmp_path / "store").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_existing_folders_are_not_touched(tmp_path: Path, store: Path) -> None:
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    with pytest.raises(BadInputError, match="already exists"):
        writer_at(store)
    with pytest.raises(BadInputError, match="somebody else"):
        write_clients(tmp_path / "late", ["a"], then=(tmp_path / "late").mkdir)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before
    assert list((tmp_path / "late").iterdir()) == []


def test_leftovers_of_a_dead_writer_do_no_harm(tmp_path: Path, plain: PlainFederation) -> None:
    leftover = tmp_path / ".store.0123456789abcdef.tmp"
    leftover.mkdir()
    (leftover / "samples.arrow").write_bytes(b"ARROW1 and no more")
    plain.write(tmp_path / "store")
    Federation.open(tmp_path / "store").verify()
    assert (leftover / "samples.arrow").read_bytes() == b"ARROW1 and no more"


def test_a_full_disk_is_reported_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def run_out_of_space_and_ignore_it(writer: FederationWriter) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("fedarena.data.store.table._ChecksummedFile.write", full)
            with pytest.raises(RunFailedError, match="No space left"):
                writer.add_client("b", train=samples(4))

    def write() -> None:
        with writer_at(tmp_path / "store", rows_per_batch=2) as writer:
            writer.add_client("a", train=samples(1))
            run_out_of_space_and_ignore_it(writer)
            writer.add_client("c", train=samples(1))

    with pytest.raises(RunFailedError, match="because writing failed before"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunFailedError, match="Cannot write the federation"):
        writer_at(tmp_path / "file" / "store")


def test_arrays_may_be_reused_by_the_caller(tmp_path: Path) -> None:
    reused = samples(2)
    with writer_at(tmp_path / "store") as writer:
        for number in range(3):
            reused["x"][:] = number
            writer.add_client(str(number), train=reused)
    found = Federation.open(tmp_path / "store").samples([0, 1, 2]).columns["x"]
    assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="float64", shape=(1000,)), "y": ColumnSpec(dtype="int64")}
    part = {"x": np.ones((100, 1000)), "y": np.zeros(100, dtype=np.int64)}  # 0.8 MB
    with writer_at(tmp_path / "store", columns=columns, rows_per_batch=100) as writer:
        tracemalloc.start()
        for number in range(50):
            writer.add_client(str(number), train=part)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert Federation.open(tmp_path / "store").num_samples == 5000  # 40 MB
    assert peak_bytes < 8e6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_no_number_is_refused_by_client_and_sample(tmp_path: Path, value: float, dtype: str) -> None:
    columns = {**COLUMNS, "x": ColumnSpec(dtype=dtype, shape=(2,))}
    x = np.zeros((7, 2), dtype=dtype)
    x[5, 1] = value
    with writer_at(tmp_path / "store", columns=columns) as writer:
        with pytest.raises(BadInputError) as caught:
            writer.add_clients(
                ["ann", "nobody", "bob"],
                counts=np.array([[2, 0, 1], [0, 0, 0], [1, 0, 3]]),
                columns={"x": x, "y": np.zeros(7, np.int64)},
            )
        writer.add_client("cy", train={"x": x[:2], "y": np.zeros(2, np.int64)})
    assert f"Column 'x' of client 'bob' holds {value} in test sample 1 at [1], which is no number" in str(caught.value)
    assert Federation.open(tmp_path / "store").num_clients == 1


def test_numbers_that_have_names_are_refused_by_name(tmp_path: Path) -> None:
    columns = {**COLUMNS, "x": ColumnSpec(dtype="float32", shape=(2,), names=("age", "weight"))}
    with writer_at(tmp_path / "store", columns=columns) as writer:
        with pytest.raises(BadInputError, match="'ann' holds nan in validation sample 0 as 'weight', which"):
            writer.add_client("ann", validation=samples(1, x=np.array([[1, np.nan]], np.float32)))
        writer.add_client("bob", train=samples(1))
    assert Federation.open(tmp_path / "store").columns["x"].names == ("age", "weight")


def test_names_and_notes_are_part_of_a_store_only_where_there_are_some(tmp_path: Path) -> None:
    write_clients(tmp_path / "plain", ["a"])
    described = (tmp_path / "plain" / "federation.json").read_text()
    assert '"names"' not in described
    assert '"notes"' not in described
    with writer_at(tmp_path / "noted", notes=["Numbers are standardized."]) as writer:
        writer.add_client("a", train=samples())
    plain, noted = Federation.open(tmp_path / "plain"), Federation.open(tmp_path / "noted")
    assert (plain.notes, noted.notes) == ((), ("Numbers are standardized.",))
    assert plain.fingerprint != noted.fingerprint
    with pytest.raises(BadInputError, match="2 names for numbers of shape"):
        ColumnSpec(dtype="float32", shape=(3,), names=("a", "b"))
