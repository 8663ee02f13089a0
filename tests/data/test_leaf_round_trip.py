"""Federations written as LEAF's JSON and read back: nothing is lost, and LEAF's own readers understand them."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_oracle import PlainClient, PlainFederation, plain_federations

from fedarena import from_table
from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec, load_federation
from fedarena.data.leaf.writing import export_leaf
from fedarena.data.store.schema import DTYPES, GROUPS, PARTS
from fedarena.data.text.characters import Sequences, Windows, cut


def export(federation: Federation, folder: Path, users_per_file: int = 100) -> Path:
    export_leaf(federation, folder, users_per_file, lambda fraction, text: None)
    return folder


def imported(folder: Path, **options: Any) -> Federation:
    return load_federation("leaf", {"folder": str(folder), **options})


def content(federation: Federation) -> list[Any]:
    """Everything about every client, samples to the last bit."""
    clients = federation.clients()
    groups = {client: group for group in GROUPS for client in federation.clients(group).tolist()}
    attributes = federation.attributes(clients)
    return [
        (
            id,
            groups[client],
            {name: values[client] for name, values in attributes.items()},
            {
                (part, name): (values.dtype.str, values.shape, values.tobytes())
                for part in PARTS
                for name, values in federation.samples([client], part).columns.items()
            },
        )
        for client, id in enumerate(federation.client_ids(clients))
    ]


@st.composite
def text_federations(draw: st.DrawFn) -> PlainFederation:
    """Next-token and classification tasks over characters, words, names that repeat, or no names."""
    size = draw(st.integers(3, 6))
    names = draw(
        st.one_of(
            st.none(),
            st.lists(st.text(max_size=3), min_size=size, max_size=size).map(tuple),
            st.lists(st.characters(exclude_categories=["Cs"]), min_size=size, max_size=size, unique=True).map(
                lambda letters: ("<padding>", "<unknown>", *letters[2:])
            ),
        )
    )
    special = {"padding": draw(st.sampled_from([None, 0])), "unknown": draw(st.sampled_from([None, 1]))}
    length, dtype = draw(st.integers(2, 5)), draw(st.sampled_from(["uint8", "int32", "uint64"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        task = TaskSpec(kind="next_token", classes=size, label_names=names, **special)
        columns = {"tokens": ColumnSpec(dtype=dtype, shape=(length,)), "x": ColumnSpec(dtype="float16")}
    else:
        labels = draw(st.sampled_from([None, names and names[:3], ("a", "b", "c")]))
        task = TaskSpec(kind="classification", classes=3, label_names=labels, tokens=size, token_names=names, **special)
        columns = {"x": ColumnSpec(dtype=dtype, shape=(length,)), "y": ColumnSpec(dtype="int16")}
    limits = {"tokens": size, "x": 2 if task.kind == "next_token" else size, "y": 3}
    clients = [
        PlainClient(
            id=f"client {number}",
            group=draw(st.sampled_from(GROUPS)),
            parts={
                part: {
                    name: random.integers(0, limits[name], size=(count, *spec.shape)).astype(spec.dtype)
                    for name, spec in columns.items()
                }
                for part, count in zip(PARTS, draw(st.tuples(*[st.integers(0, 3)] * 3)), strict=True)
            },
            attributes={},
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    return PlainFederation(task, columns, {}, clients)


@settings(max_examples=20, deadline=None)
@given(plain=st.one_of(plain_federations(), text_federations()), users_per_file=st.integers(1, 3))
def test_what_is_exported_comes_back(plain: PlainFederation, users_per_file: int) -> None:
    if not any(len(rows[plain.task.label_column]) for client in plain.clients for rows in client.parts.values()):
        return  # there is nothing to read
    with tempfile.TemporaryDirectory() as folder:
        plain.write(Path(folder) / "store")
        federation = Federation.open(Path(folder) / "store")
        back = imported(export(federation, Path(folder) / "leaf", users_per_file))
        assert content(back) == content(federation)
        assert (back.task, back.columns) == (federation.task, federation.columns)
        assert back.manifest.attributes == federation.manifest.attributes
        assert back.label_counts.tolist() == federation.label_counts.tolist()
        shutil.rmtree(back.path)


def read_like_leaf(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What LEAF's models get: users and hierarchies of train, and samples of both folders."""
    users: dict[str, Any] = {}
    data: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for name, samples in data.items():
        for path in sorted((folder / name).iterdir()):
            file = json.loads(path.read_text())
            assert file["num_samples"] == [len(file["user_data"][user]["y"]) for user in file["users"]]
            samples |= file["user_data"]
            if name == "train":
                users |= dict(zip(file["users"], file.get("hierarchies", [[]] * len(file["users"])), strict=True))
    return users, data["train"], data["test"]


def one_client(task: TaskSpec, columns: dict[str, ColumnSpec], rows: dict[str, np.ndarray]) -> PlainFederation:
    empty = {name: values[:0] for name, values in rows.items()}
    client = PlainClient("ann", "train", {"train": rows, "validation": empty, "test": empty}, {"play": "Lear"})
    return PlainFederation(task, columns, {"play": "string"}, [client])


def test_the_largest_and_smallest_numbers_of_every_type(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="float32"), "y": ColumnSpec(dtype="int64")}
    rows = {"x": np.float32([0.1, -0.0]), "y": np.array([0, 1])}
    for dtype in sorted(DTYPES):
        limits = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        columns[f"of {dtype}"] = ColumnSpec(dtype=dtype)
        rows[f"of {dtype}"] = np.array([limits.min, limits.max], dtype=dtype)
    one_client(TaskSpec(kind="classification", classes=2), columns, rows).write(tmp_path / "store")
    federation = Federation.open(tmp_path / "store")
    assert content(imported(export(federation, tmp_path / "leaf"))) == content(federation)


def test_a_table_of_categories_alone_comes_back(tmp_path: Path) -> None:
    table = {"who": list("aabb") * 3, "colour": list("rgb") * 4, "y": [0, 1] * 6}
    federation = from_table(table, client="who", label="y", categories="embedded")
    assert "x" not in federation.columns
    folder = export(federation, tmp_path / "leaf")
    assert content(imported(folder)) == content(federation)
    file = next((folder / "train").iterdir())
    file.write_text(file.read_text().replace('"y": [', '"z": ['))
    with pytest.raises(BadInputError, match="must have a list y"):
        imported(folder)


def test_pictures_are_fractions_and_the_first_text_is_the_hierarchy(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="uint8", shape=(1, 16, 16)), "y": ColumnSpec(dtype="int64")}
    rows = {"x": np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), "y": np.array([1])}
    one_client(TaskSpec(kind="classification", classes=2), columns, rows).write(tmp_path / "store")
    users, train, test = read_like_leaf(export(Federation.open(tmp_path / "store"), tmp_path / "leaf"))
    assert users == {"ann": ["Lear"]}
    assert train == {"ann": {"x": [[value / 255 for value in range(256)]], "y": [1]}}
    assert test == {}
    x = imported(tmp_path / "leaf").samples([0]).columns["x"]
    np.testing.assert_array_equal(x.ravel(), np.arange(256))


def test_characters_are_strings_and_words_are_lists(tmp_path: Path) -> None:
    columns = {"tokens": ColumnSpec(dtype="uint8", shape=(4,))}
    rows = {"tokens": np.array([[2, 3, 1, 2], [3, 2, 0, 0]], dtype=np.uint8)}
    for letters, expected in (
        (("<pad>", "<unk>", "a", "b"), {"x": ["ab\ufffd", "ba\u2400"], "y": ["a", "\u2400"]}),
        (
            ("<pad>", "<unk>", "to", "be"),
            {"x": [["to", "be", "<unk>"], ["be", "to", "<pad>"]], "y": ["to", "<pad>"]},
        ),
    ):
        folder = tmp_path / letters[2]
        task = TaskSpec(kind="next_token", classes=4, padding=0, unknown=1, label_names=letters)
        one_client(task, columns, rows).write(folder / "store")
        federation = Federation.open(folder / "store")
        assert read_like_leaf(export(federation, folder / "leaf"))[1] == {"ann": expected}
        assert content(imported(folder / "leaf")) == content(federation)


@pytest.mark.parametrize("form", [Windows(4), Sequences(4)], ids=["windows", "sequences"])
def test_text_that_is_divided_anew_does_not_leak(tmp_path: Path, form: Windows | Sequences) -> None:
    """A text of different characters, so that what two parts share can be seen."""
    text = np.arange(2, 62, dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(text, 5)
    columns = {"x": windows[:, :4], "y": windows[:, 4].astype(np.int64)}
    rows = columns if isinstance(form, Windows) else {"tokens": cut(text, 4)}
    one_client(form.task, form.columns, rows).write(tmp_path / "store")
    folder = export(Federation.open(tmp_path / "store"), tmp_path / "leaf")
    again = imported(folder, split="within_client", train_fraction=0.5, validation_fraction=0.25)
    seen = [
        {int(token) for values in again.samples([0], part).columns.values() for token in values.ravel()} - {0}
        for part in PARTS
    ]
    assert all(seen)
    assert sum(map(len, seen)) == len(set.union(*seen))
    with pytest.raises(BadInputError, match="overlap with their neighbours, so that text for testing"):
        imported(folder, iid_users=2)


@pytest.mark.parametrize(
    "option",
    [{"kind": "features"}, {"shape": [64]}, {"classes": 10}, {"length": 3}, {"vocabulary": 9}, {"tokenizer": "words"}],
    ids=lambda option: next(iter(option)),
)
def test_what_exported_files_say_cannot_be_chosen(tmp_path: Path, option: dict[str, Any]) -> None:
    columns = {"x": ColumnSpec(dtype="int8", shape=(1,)), "y": ColumnSpec(dtype="int64")}
    rows = {"x": np.array([[3]], dtype=np.int8), "y": np.array([0])}
    one_client(TaskSpec(kind="classification", classes=2), columns, rows).write(tmp_path / "store")
    folder = export(Federation.open(tmp_path / "store"), tmp_path / "leaf")
    with pytest.raises(BadInputError, match=f"federation.{next(iter(option))} cannot be chosen: the files in"):
        imported(folder, **option)


def test_who_is_tested_on_is_not_in_train(tmp_path: Path) -> None:
    """Not even with what they have to adapt a model with."""
    columns = {"x": ColumnSpec(dtype="int8", shape=(1,)), "y": ColumnSpec(dtype="int64")}
    rows = {"x": np.array([[3]], dtype=np.int8), "y": np.array([0])}
    plain = one_client(TaskSpec(kind="classification", classes=2), columns, rows)
    plain.clients.append(PlainClient("bob", "test", {**plain.clients[0].parts, "test": rows}, {"play": "Hamlet"}))
    plain.write(tmp_path / "store")
    federation = Federation.open(tmp_path / "store")
    users, train, test = read_like_leaf(export(federation, tmp_path / "leaf"))
    assert (list(users), list(train), list(test)) == (["ann"], ["ann"], ["bob"])
    assert content(imported(tmp_path / "leaf")) == content(federation)


def test_refusals_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FederationWriter, "_check_finite", lambda *_: None)  # as stores were once written
    columns = {"x": ColumnSpec(dtype="float32", shape=(1,)), "y": ColumnSpec(dtype="int64")}
    rows = {"x": np.array([[np.nan]], dtype=np.float32), "y": np.array([0])}
    one_client(TaskSpec(kind="classification", classes=2), columns, rows).write(tmp_path / "store")
    federation = Federation.open(tmp_path / "store")
    with pytest.raises(BadInputError, match=r"of client 'ann' a value is not finite, which JSON cannot write"):
        export(federation, tmp_path / "leaf")
    with pytest.raises(BadInputError, match=r"store exists; choose another folder"):
        export(federation, tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        export_leaf(load_federation("digits"), tmp_path / "leaf", 5, _interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def _interrupt(fraction: float, text: str) -> None:
    if fraction > 0.5:
        raise KeyboardInterrupt


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    federation = load_federation("digits", {"partition": {"name": "iid", "clients": 4}})
    folder = export(federation, tmp_path / "leaf", users_per_file=2)
    assert sorted(path.name for path in folder.rglob("*.json")) == [
        "all_data_0_test.json",
        "all_data_0_train.json",
        "all_data_1_test.json",
        "all_data_1_train.json",
    ]
    (folder / "test" / "all_data_1_test.json").unlink()
    with pytest.raises(
        BadInputError, match=r"test samples of train clients, where 360 were written; a file is missing"
    ):
        imported(folder)
    (folder / "train" / "all_data_1_train.json").unlink()
    with pytest.raises(BadInputError, match=r"2 of 4 clients are in none of the files"):
        imported(folder)
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace('"clients": 4,', f'"clients": {10**12},'))
    with pytest.raises(BadInputError, match=r"of 1,000,000,000,000 clients are in none of the files"):
        imported(folder)


def test_files_of_two_federations_are_not_mixed(tmp_path: Path) -> None:
    for clients in (2, 3):
        federation = load_federation("digits", {"partition": {"name": "iid", "clients": clients}})
        export(federation, tmp_path / f"{clients}")
    (tmp_path / "3" / "test" / "all_data_0_test.json").rename(tmp_path / "2" / "test" / "all_data_1_test.json")
    with pytest.raises(BadInputError, match="are not of one federation"):
        imported(tmp_path / "2")
