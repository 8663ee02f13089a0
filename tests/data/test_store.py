"""The store gives back what was written, for any clients, parts and columns, and opens without reading it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_oracle import PlainFederation, plain_federations

from fedarena.core.errors import BadInputError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.data.store import federation as federation_of_store
from fedarena.data.store.schema import GROUPS, PARTS


def assert_same_samples(federation: Federation, plain: PlainFederation, clients: list[int], part: str) -> None:
    found = federation.samples(clients, part)
    label = plain.task.label_column
    lengths = [len(plain.clients[client].rows(part, label)) for client in clients]
    assert found.offsets.tolist() == np.cumsum([0, *lengths]).tolist()
    assert found.offsets.dtype == np.int64
    assert federation.counts(clients, part).tolist() == lengths
    for name, spec in plain.columns.items():
        empty = np.empty((0, *spec.shape), dtype=spec.dtype)
        expected = np.concatenate([empty, *(plain.clients[client].rows(part, name) for client in clients)])
        assert found.columns[name].dtype == expected.dtype
        np.testing.assert_array_equal(found.columns[name], expected)


@settings(max_examples=150, deadline=None)
@given(plain=plain_federations(), data=st.data())
def test_round_trip(plain: PlainFederation, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        plain.write(path)
        federation = Federation.open(path)
        federation.verify()
        indexes = st.integers(0, len(plain.clients) - 1)
        asked = data.draw(st.lists(indexes, max_size=12))  # any order, with repeats, or nobody
        for part in (*PARTS, "all"):
            assert_same_samples(federation, plain, asked, part)
        assert federation.client_ids(asked) == [plain.clients[client].id for client in asked]
        attributes = federation.attributes(asked)
        for name in plain.attributes:
            assert list(attributes[name]) == [plain.clients[client].attributes[name] for client in asked]
        for group in GROUPS:
            expected = [index for index, client in enumerate(plain.clients) if client.group == group]
            assert federation.clients(group).tolist() == expected
        assert federation.clients("all").tolist() == list(range(len(plain.clients)))
        assert federation.label_counts.tolist() == plain.label_counts()
        assert federation.num_clients == len(plain.clients)
        label = plain.task.label_column
        assert federation.num_samples == sum(len(client.rows("all", label)) for client in plain.clients)
        for group in GROUPS:
            for part in PARTS:
                rows = [len(c.rows(part, label)) for c in plain.clients if c.group == group]
                assert federation.manifest.samples[group][part] == sum(rows)


@settings(max_examples=60, deadline=None)
@given(plain=plain_federations(), pieces=st.integers(1, 4))
def test_adding_many_clients_at_once_writes_the_same_bytes(plain: PlainFederation, pieces: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        single, bulk = Path(folder) / "single", Path(folder) / "bulk"
        plain.write(single)
        plain.write_in_bulk(bulk, pieces)
        tables = {"samples.arrow", "clients.arrow"}
        checksums = {f"{name}.blocks" for name in tables}
        assert {file.name for file in single.iterdir()} == {"federation.json"} | tables | checksums
        for file in single.iterdir():
            assert (bulk / file.name).read_bytes() == file.read_bytes()


def test_opening_loads_no_batch_and_asking_loads_only_what_is_needed(store: Path, monkeypatch) -> None:
    monkeypatch.setattr(federation_of_store, "_KEPT_CLIENTS", 0)
    federation = Federation.open(store)
    tables = [federation._samples, federation._clients]
    assert [table.batches_loaded for table in tables] == [0, 0]
    federation.samples([1])  # rows 0, 1 and 2 of samples, the first batch of four rows
    assert [table.batches_loaded for table in tables] == [1, 1]
    federation.samples([4])  # the last twelve of thirty rows: batches 4 to 7
    assert [table.batches_loaded for table in tables] == [5, 2]


def test_what_is_known_of_few_clients_is_read_once_and_the_same(store: Path, monkeypatch) -> None:
    kept = Federation.open(store)
    monkeypatch.setattr(federation_of_store, "_KEPT_CLIENTS", 0)
    read = Federation.open(store)
    clients = [3, 0, 3, 1]
    for _ in range(2):
        monkeypatch.setattr(federation_of_store, "_KEPT_CLIENTS", 100)
        counts, ids = kept.counts(clients, "test"), kept.client_ids(clients)
        counts += 5  # nobody else's
        monkeypatch.setattr(federation_of_store, "_KEPT_CLIENTS", 0)
        assert (counts - 5).tolist() == read.counts(clients, "test").tolist()
        assert ids == read.client_ids(clients)


def test_the_manifest_does_not_grow_with_the_number_of_clients(plain: PlainFederation, tmp_path: Path) -> None:
    for name, repetitions in (("few", 1), ("many", 200)):
        with plain.writer(tmp_path / name) as writer:
            for repetition in range(repetitions):
                for client in plain.clients:
                    writer.add_client(f"{client.id}/{repetition}", attributes=client.attributes, **client.parts)
    few, many = ((tmp_path / name / "federation.json").stat().st_size for name in ("few", "many"))
    assert many < few * 1.1


def test_only_the_asked_columns_are_read(store: Path, plain: PlainFederation) -> None:
    found = Federation.open(store).samples([2, 3], "test", columns=["y"])
    assert list(found.columns) == ["y"]
    np.testing.assert_array_equal(found.columns["y"][:2], plain.clients[2].parts["test"]["y"])


def test_samples_are_the_callers_own(store: Path) -> None:
    federation = Federation.open(store)
    first = federation.samples([4]).columns["x"]
    first[:] = -1
    assert (federation.samples([4]).columns["x"] != -1).any()


def test_files_are_plain_arrow_that_other_tools_read(store: Path, plain: PlainFederation) -> None:
    import pyarrow as pa

    with pa.memory_map(str(store / "samples.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.schema.field("x").type == pa.fixed_shape_tensor(pa.float32(), (2, 3))
    assert table.schema.field("y").type == pa.int64()
    found = table["x"].combine_chunks().to_numpy_ndarray()
    np.testing.assert_array_equal(found[:1], plain.clients[1].parts["train"]["x"])


def test_the_fingerprint_is_of_the_content_and_not_of_the_place(plain: PlainFederation, tmp_path: Path) -> None:
    plain.write(tmp_path / "here")
    plain.write(tmp_path / "there")
    plain.clients[3].parts["test"]["x"][0, 0, 0] += 1
    plain.write(tmp_path / "other")
    here, there, other = (Federation.open(tmp_path / name).fingerprint for name in ("here", "there", "other"))
    assert here == there != other


def test_reading_lets_go_of_pages_of_large_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedarena.data.store.table.MAX_RESIDENT_BYTES", 1)
    federation = Federation.open(store)
    everything = federation.samples(federation.clients("all"))
    again = federation.samples(federation.clients("all"))
    np.testing.assert_array_equal(everything.columns["x"], again.columns["x"])
    assert federation._samples._touched_bytes == 0


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda f: f.samples([5]), ["client 5", "0 to 4"]),
        (lambda f: f.counts([-1]), ["client -1", "0 to 4"]),
        (lambda f: f.client_ids([[0]]), ["list of indexes"]),
        (lambda f: f.samples([0], "tset"), ["part", "'tset'", "'test'"]),
        (lambda f: f.counts([0], "tset"), ["part", "'tset'", "'test'"]),
        (lambda f: f.samples([0], columns=["z"]), ["column", "'z'", "x, y"]),
        (lambda f: f.clients("trian"), ["group", "'trian'", "'train'"]),
    ],
)
def test_wrong_questions_get_a_sentence(store: Path, ask, words: list[str]) -> None:
    with pytest.raises(BadInputError) as caught:
        ask(Federation.open(store))
    for word in words:
        assert word in str(caught.value)


def test_manifest_is_readable_json(store: Path) -> None:
    content = json.loads((store / "federation.json").read_text())
    assert content["clients"] == {"train": 5, "validation": 0, "test": 0}
    assert content["columns"]["x"] == {"dtype": "float32", "shape": [2, 3]}
    assert content["source"]["name"] == "custom"


def test_a_federation_whose_clients_have_no_samples(tmp_path: Path) -> None:
    columns = {"x": ColumnSpec(dtype="uint8", shape=(3,)), "y": ColumnSpec(dtype="uint8")}
    task = TaskSpec(kind="classification", classes=2)
    with FederationWriter(tmp_path / "empty", name="empty", task=task, columns=columns) as writer:
        writer.add_client("nobody")
    federation = Federation.open(tmp_path / "empty")
    assert federation.num_samples == 0
    assert federation.samples([0]).columns["x"].shape == (0, 3)
