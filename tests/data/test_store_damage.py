"""Stores that are incomplete, foreign or damaged are refused with a sentence that names the file."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import ColumnSpec, Federation, FederationWriter, TaskSpec
from fedarena.data.store import block_checksums
from fedarena.data.store.block_checksums import BLOCK_BYTES, RunningChecksums, checksums_path
from fedarena.data.store.schema import Manifest

FILES = ["federation.json", "samples.arrow", "clients.arrow"]


def read_everything(path: Path) -> None:
    federation = Federation.open(path)
    everybody = federation.clients("all")
    federation.clients("train")
    federation.samples(everybody)
    federation.client_ids(everybody)
    federation.attributes(everybody)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", ["nothing", "8 bytes", "a half", "all but one byte"])
def test_truncated_files(store: Path, name: str, keep: str) -> None:
    file = store / name
    content = file.read_bytes()
    kept = {"nothing": 0, "8 bytes": 8, "a half": len(content) // 2, "all but one byte": len(content) - 1}[keep]
    if name == "federation.json" and keep == "all but one byte":
        kept -= 1  # the last byte is a newline, which JSON does not need
    file.write_bytes(content[:kept])
    words = "is not valid JSON" if name == "federation.json" else f"has {kept} bytes where {len(content)} were written"
    with pytest.raises(DamagedFileError, match=f"{name} {words}"):
        Federation.open(store)


@pytest.mark.parametrize("name", ["samples.arrow", "clients.arrow"])
def test_files_with_something_appended(store: Path, name: str) -> None:
    with open(store / name, "ab") as file:
        file.write(b"\0")
    with pytest.raises(DamagedFileError, match=name):
        Federation.open(store)


@pytest.mark.parametrize("name", FILES)
def test_deleted_files(store: Path, name: str) -> None:
    (store / name).unlink()
    with pytest.raises(DamagedFileError, match=rf"{name} is missing"):
        Federation.open(store)


@pytest.mark.parametrize("name", ["samples.arrow", "clients.arrow"])
def test_a_file_of_zeros_with_the_right_length(store: Path, name: str) -> None:
    length = (store / name).stat().st_size
    (store / name).write_bytes(bytes(length))
    with pytest.raises(DamagedFileError, match=name):
        Federation.open(store)


def test_a_file_deleted_while_the_store_is_open(store: Path) -> None:
    federation = Federation.open(store)
    (store / "samples.arrow").unlink()
    with pytest.raises(DamagedFileError, match=r"samples\.arrow is missing"):
        federation.verify()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda text: "no JSON at all", DamagedFileError, "not valid JSON"),
        (lambda text: "\udcff\udcfe", DamagedFileError, "not valid JSON"),
        (lambda text: "[" * 100_000, DamagedFileError, "not valid JSON"),
        (lambda text: "[1, 2, 3]", BadInputError, "does not describe a federation"),
        (lambda text: '{"name": "some other tool"}', BadInputError, "does not describe a federation"),
        (lambda text: text.replace('"version": 1,', '"version": 99,', 1), BadInputError, "version 99"),
        (lambda text: text.replace('"float32"', '"float33"'), DamagedFileError, r"columns\.x\.dtype"),
        (lambda text: text.replace('"name": "plain"', '"name": "Plain"'), DamagedFileError, "was changed"),
        (lambda text: text.replace('"samples.arrow"', '"s.arrow"'), DamagedFileError, "must list"),
    ],
)
def test_damaged_manifests(store: Path, change: Callable[[str], str], error: type, words: str) -> None:
    file = store / "federation.json"
    changed = change(file.read_text())
    assert changed != file.read_text()
    file.write_bytes(changed.encode(errors="surrogateescape"))
    with pytest.raises(error, match=words) as caught:
        Federation.open(store)
    assert "federation.json" in str(caught.value)


def test_folders_that_are_no_store(tmp_path: Path, store: Path) -> None:
    with pytest.raises(BadInputError, match="There is no federation at"):
        Federation.open(tmp_path / "missing")
    with pytest.raises(BadInputError, match=r"samples\.arrow is a file, and a federation is a folder"):
        Federation.open(store / "samples.arrow")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(BadInputError, match=r"foreign is not a federation: it has no federation\.json"):
        Federation.open(tmp_path / "foreign")


@pytest.mark.parametrize("name", ["samples.arrow", "clients.arrow"])
def test_a_file_of_another_store(store: Path, name: str, tmp_path: Path) -> None:
    """The lengths agree, so only the columns give it away."""
    other = {"samples.arrow": "clients.arrow", "clients.arrow": "samples.arrow"}[name]
    (store / name).write_bytes((store / other).read_bytes())
    content = json.loads((store / "federation.json").read_text())
    content["files"][name]["bytes"] = content["files"][other]["bytes"]
    content.pop("fingerprint")
    content["fingerprint"] = Manifest.model_validate(content).fingerprint
    (store / "federation.json").write_text(json.dumps(content))
    with pytest.raises(DamagedFileError, match=f"{name} has other columns"):
        Federation.open(store)


@pytest.mark.parametrize("name", FILES)
def test_verify_finds_every_flipped_bit(store: Path, name: str) -> None:
    file = store / name
    content = file.read_bytes()
    step = max(len(content) // 200, 1)
    for position in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        with pytest.raises(BadInputError, match=name):
            Federation.open(store).verify()
    file.write_bytes(content)
    Federation.open(store).verify()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["samples.arrow", "clients.arrow"])
def test_reading_finds_damage_with_checksums_of_blocks_and_without(store: Path, name: str) -> None:
    file = store / name
    content = file.read_bytes()
    for are_there in (True, False):
        for position in range(0, len(content), 29):
            damaged = bytearray(content)
            damaged[position] ^= 0x80
            file.write_bytes(damaged)
            with pytest.raises(DamagedFileError, match=name):
                read_everything(store)
        assert checksums_path(file).exists() == are_there
        checksums_path(file).unlink(missing_ok=True)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=6), st.integers(0, 2**32 - 1))
def test_the_checksum_of_a_file_comes_from_those_of_its_blocks(pieces: list[int], seed: int) -> None:
    content = np.random.default_rng(seed).bytes(sum(pieces))
    running, view = RunningChecksums(), memoryview(content)
    for start, length in zip(np.cumsum([0, *pieces]).tolist(), pieces, strict=False):
        running.add(view[start : start + length])
    assert (running.length_bytes, running.crc32) == (len(content), zlib.crc32(content))
    assert running.blocks.tolist() == [
        zlib.crc32(content[start : start + BLOCK_BYTES]) for start in range(0, len(content), BLOCK_BYTES)
    ]


def _large_store(folder: Path) -> Path:
    """Several blocks of samples, of which most clients have a few rows, and strings of clients in more than one."""
    random = np.random.default_rng(0)
    task = TaskSpec(kind="classification", classes=3)
    columns = {"x": ColumnSpec(dtype="float32", shape=(40,)), "y": ColumnSpec(dtype="int64")}
    with FederationWriter(folder / "large", name="large", task=task, columns=columns, rows_per_batch=700) as writer:
        for client in range(1500):
            size = 1 + client % 9
            x = random.normal(size=(size, 40)).astype(np.float32)
            writer.add_client(f"{client} " + "long name " * 40, train={"x": x, "y": random.integers(0, 3, size)})
    return folder / "large"


def test_what_is_read_of_a_large_damaged_file_is_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage elsewhere in the file may go unnoticed, since nobody looks there; damage of what is read may not."""
    monkeypatch.setattr(block_checksums, "SMALL_FILE_BYTES", 0)
    path = _large_store(tmp_path)
    sound = Federation.open(path)
    clients = [3, 250, 251]
    wanted = sound.samples(clients, "train")
    ids = sound.client_ids(clients)
    random = np.random.default_rng(1)
    outcomes = {"refused": 0, "right": 0}
    for name in ("samples.arrow", "clients.arrow"):
        file = path / name
        content = file.read_bytes()
        assert len(content) > 2 * BLOCK_BYTES
        for position in random.integers(0, len(content), 30).tolist():
            damaged = bytearray(content)
            damaged[position] ^= 1 << random.integers(8)
            file.write_bytes(damaged)
            try:
                store = Federation.open(path)
                found, found_ids = store.samples(clients, "train"), store.client_ids(clients)
            except DamagedFileError:
                outcomes["refused"] += 1
                continue
            assert found_ids == ids
            assert all((found.columns[name] == wanted.columns[name]).all() for name in wanted.columns)
            outcomes["right"] += 1
        file.write_bytes(content)
    assert min(outcomes.values()) > 10


def test_checksums_that_are_damaged_themselves(store: Path) -> None:
    file = store / "samples.arrow.blocks"
    content = file.read_bytes()
    for wrong in (content[:-1], content + b"1234", bytes([content[0] ^ 1]) + content[1:], b""):
        file.write_bytes(wrong)
        with pytest.raises(DamagedFileError, match=r"samples\.arrow\.blocks is damaged.*remove it"):
            read_everything(store)


def test_verify_makes_the_checksums_of_an_older_store(store: Path) -> None:
    files = [checksums_path(store / name) for name in ("samples.arrow", "clients.arrow")]
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    Federation.open(store).verify()
    assert [file.read_bytes() for file in files] == contents


def test_reading_makes_checksums_that_are_missing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [checksums_path(store / name) for name in ("samples.arrow", "clients.arrow")]
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    read_everything(store)
    assert [file.read_bytes() for file in files] == contents
    for file in files:
        file.unlink()
    monkeypatch.setattr(block_checksums, "write_bytes", _on_a_full_disk)
    read_everything(store)
    assert not any(file.exists() for file in files)


def _on_a_full_disk(path: Path, data: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nobody_waits_for_a_pipe(store: Path) -> None:
    for name in (*FILES, "samples.arrow.blocks"):
        (store / name).rename(store / "aside")
        os.mkfifo(store / name)
        with pytest.raises(DamagedFileError, match=rf"{name} .*(neither a file nor a folder|has 0 bytes)"):
            read_everything(store)
        (store / "aside").replace(store / name)
    read_everything(store)
