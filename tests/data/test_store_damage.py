"""Stores that are incomplete, foreign or damaged are refused with a sentence that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fedarena.core.errors import BadInputError, DamagedFileError
from fedarena.data import Federation
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
    with pytest.raises(BadInputError, match="There is no federation at"):
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


@pytest.mark.parametrize("name", ["samples.arrow", "clients.arrow"])
def test_reading_damaged_data_never_fails_but_with_a_sentence(store: Path, name: str) -> None:
    """A flipped bit may go unnoticed until verify() is called, but it must not crash the process."""
    file = store / name
    content = file.read_bytes()
    unnoticed = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0x80
        file.write_bytes(damaged)
        with suppress(DamagedFileError):
            read_everything(store)
            unnoticed += 1
    assert 10 < unnoticed < len(content) // 7 - 10
